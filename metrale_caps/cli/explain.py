# SPDX-License-Identifier: MIT OR Apache-2.0
"""`metrale-caps explain`: the route plan of a model or of a layer class, with every reason."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from metrale_caps.queries import QUERIES
from metrale_caps.cli.layer_class import foreign_code, make_layer, names_class
from metrale_caps.cli.terminal import print_json, progress_bar
from metrale_caps.routing.limits import UNAVAILABLE
from metrale_caps.routing.plan import RoutePlan

if TYPE_CHECKING:
    import argparse


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "explain",
        help="the route plan of a model or layer",
        description="Shows which routes a model's layers allow and who stands in the way. Weights are not loaded.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        help="checkpoint folder, GGUF file, or module:Class of a layer (default: the default model)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    target, as_json = arguments.target, arguments.json
    if target is not None and names_class(target):
        layer = make_layer(target)
        with foreign_code(target, "asking it"):
            document = _document(RoutePlan([layer], unavailable=UNAVAILABLE), as_json=as_json)
    else:
        document = _document(_plan_of_checkpoint(target), as_json=as_json)
    if as_json:
        print_json(document)
    else:
        sys.stdout.write("\n".join(document) + "\n")
    return 0


def _document(plan: RoutePlan, *, as_json: bool) -> Any:
    """Return what is to be shown; some answers are asked again for it."""
    if as_json:
        return plan.as_json()
    return [*_layers(plan), "", "route plan", *(f"  {decision}" for decision in plan.decisions)]


def _plan_of_checkpoint(target: str | None) -> RoutePlan:
    from metrale_caps.models.checkpoint import find_checkpoint

    checkpoint = find_checkpoint(target)
    from metrale_caps.kernels.operations import operations
    from metrale_caps.models.loading import load_skeleton
    from metrale_caps.models.registry import build_decoder

    with progress_bar() as progress:
        decoder = build_decoder(load_skeleton(checkpoint, progress), operations("naive"), consume=True)
    return RoutePlan(decoder.layers, unavailable=UNAVAILABLE)


def _layers(plan: RoutePlan) -> list[str]:
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for index, layer in enumerate(plan.capabilities):
        answers = tuple(f"{name} = {layer.answer(name)} ({layer.sources[name].value})" for name in QUERIES)
        groups.setdefault((layer.layer_type, answers), []).append(index)
    lines: list[str] = []
    for (layer_type, answers), indices in groups.items():
        where = f"layer {indices[0]}" if len(indices) == 1 else f"{len(indices)} layers from {indices[0]} on"
        lines += [f"{where}: {layer_type}", *(f"  {answer}" for answer in answers)]
    return lines
