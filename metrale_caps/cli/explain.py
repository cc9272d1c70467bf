# SPDX-License-Identifier: MIT OR Apache-2.0
"""`metrale-caps explain`: the route plan of a model, of a layer class or of a plugin's layers, with every reason."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from metrale_caps.cli.layers_option import add_layers_option, layer_builder
from metrale_caps.cli.targets import find_targets, foreign_code, names_class
from metrale_caps.cli.terminal import print_json, progress_bar
from metrale_caps.errors import CheckpointError, ConfigurationError, UnknownPluginError
from metrale_caps.queries import QUERIES
from metrale_caps.routing.decision import index_ranges
from metrale_caps.routing.limits import UNAVAILABLE
from metrale_caps.routing.plan import RoutePlan

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from metrale_caps.cli.targets import Target


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "explain",
        help="the route plan of a model, a layer or a plugin",
        description="Shows which routes a model's layers allow and who stands in the way. Weights are not loaded.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        help="checkpoint folder, GGUF file, module:Class of a layer, or a plugin's layer, entry point or distribution "
        "(default: the default model)",
    )
    add_layers_option(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with contextlib.redirect_stdout(sys.stderr):  # what layers print when they are made and asked
        document = _explained(arguments.target, arguments.layers, as_json=arguments.json)
    if arguments.json:
        print_json(document)
    else:
        sys.stdout.write("\n".join(document) + "\n")
    return 0


def _explained(target: str | None, layers: str | None, *, as_json: bool) -> Any:
    targets = _find_layers(target)
    if target is None or targets is None:
        return _document(_plan_of_checkpoint(target, layers), as_json=as_json)
    if layers is not None:
        raise ConfigurationError(f"--layers belongs to a model, and {target!r} is a layer; leave one of them out")
    documents = [_document_of_layer(each, as_json=as_json) for each in targets]
    return documents[0] if names_class(target) else _joined(targets, documents, as_json=as_json)


def _find_layers(target: str | None) -> list[Target] | None:
    """Return the layers that a target names, or None where it is a checkpoint.

    Raises:
        CheckpointError: it is neither a checkpoint nor a plugin.
    """
    if target is None or os.path.exists(os.path.expanduser(target)):  # noqa: PTH110, PTH111 - no name makes these raise
        return None
    if names_class(target):
        return find_targets(target)
    if not target or any(mark in target for mark in ("/", os.sep, "~")):  # a path, for which no plugin need be tried
        return None
    try:
        return find_targets(target)
    except UnknownPluginError as unknown:
        from metrale_caps.models.checkpoint import find_checkpoint

        try:
            find_checkpoint(target)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; nor is it a plugin: {unknown}") from error
        return None


def _document_of_layer(target: Target, *, as_json: bool) -> Any:
    layer = target.make()
    with foreign_code(target.label, "asking it"):
        return _document(RoutePlan([layer], unavailable=UNAVAILABLE), as_json=as_json)


def _joined(targets: Sequence[Target], documents: Sequence[Any], *, as_json: bool) -> Any:
    """Return one document for the layers of a plugin, however many they are."""
    if as_json:
        return {
            "targets": [{"target": target.label, "plan": plan} for target, plan in zip(targets, documents, strict=True)]
        }
    return [line for target, lines in zip(targets, documents, strict=True) for line in ("", target.label, *lines)][1:]


def _document(plan: RoutePlan, *, as_json: bool) -> Any:
    """Return what is to be shown; some answers are asked again for it."""
    if as_json:
        return plan.as_json()
    return [*_layers(plan), "", "route plan", *(f"  {decision}" for decision in plan.decisions)]


def _plan_of_checkpoint(target: str | None, layers: str | None) -> RoutePlan:
    from metrale_caps.models.checkpoint import find_checkpoint

    checkpoint = find_checkpoint(target)
    from metrale_caps.kernels.operations import operations
    from metrale_caps.models.loading import load_skeleton
    from metrale_caps.models.registry import build_decoder

    builder = layer_builder(layers)
    with progress_bar() as progress:
        skeleton = load_skeleton(checkpoint, progress)
        decoder = build_decoder(skeleton, operations("naive"), consume=True, layers=builder)
    return RoutePlan(decoder.layers, unavailable=UNAVAILABLE)


def _layers(plan: RoutePlan) -> list[str]:
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for index, layer in enumerate(plan.capabilities):
        answers = tuple(f"{name} = {layer.answer(name)} ({layer.sources[name].value})" for name in QUERIES)
        groups.setdefault((layer.layer_type, answers), []).append(index)
    lines: list[str] = []
    for (layer_type, answers), indices in groups.items():
        where = f"layer {indices[0]}" if len(indices) == 1 else f"{len(indices)} layers ({index_ranges(indices)})"
        lines += [f"{where}: {layer_type}", *(f"  {answer}" for answer in answers)]
    return lines
