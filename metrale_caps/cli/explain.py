# SPDX-License-Identifier: MIT OR Apache-2.0
"""`metrale-caps explain`: the route plan of a model or of a layer class, with every reason."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from metrale_caps.capabilities import QUERIES
from metrale_caps.cli.terminal import print_json, progress_bar
from metrale_caps.errors import ConfigurationError
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
    target = arguments.target
    plan = _plan_of_class(target) if target is not None and _names_class(target) else _plan_of_checkpoint(target)
    if arguments.json:
        print_json(plan.as_json())
        return 0
    lines = [*_layers(plan), "", "route plan", *(f"  {decision}" for decision in plan.decisions)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _names_class(target: str) -> bool:
    module, colon, name = target.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def _plan_of_checkpoint(target: str | None) -> RoutePlan:
    from metrale_caps.models.checkpoint import find_checkpoint

    checkpoint = find_checkpoint(target)
    from metrale_caps.engine.runner import UNAVAILABLE
    from metrale_caps.kernels.operations import operations
    from metrale_caps.models.loading import load_skeleton
    from metrale_caps.models.registry import build_decoder

    with progress_bar() as progress:
        decoder = build_decoder(load_skeleton(checkpoint, progress), operations("naive"), consume=True)
    return RoutePlan(decoder.layers, unavailable=UNAVAILABLE)


def _plan_of_class(target: str) -> RoutePlan:
    module_name, _, name = target.partition(":")
    sys.path.insert(0, "")  # a module beside the user is found, as with `python -m`
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{target!r} cannot be explained: {error}") from error
    except AttributeError as error:
        raise ConfigurationError(f"{target!r} cannot be explained: {error}") from error
    finally:
        sys.path.remove("")
    if not callable(found):
        raise ConfigurationError(f"{target!r} is {type(found).__name__}, not a class or a function that makes a layer")
    try:
        layer = found()
    except TypeError as error:
        raise ConfigurationError(
            f"{target!r} cannot be made without arguments ({error}); name a function that makes the layer"
        ) from error
    return RoutePlan([layer])


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
