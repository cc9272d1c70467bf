# SPDX-License-Identifier: MIT OR Apache-2.0
"""`metrale-caps plugins`: every plugin with its layers, and every failure with its cause."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from metrale_caps.cli.targets import tried_plugins
from metrale_caps.cli.terminal import print_json, print_table
from metrale_caps.plugins import GROUP, STRICT_VARIABLE, describe_cause

if TYPE_CHECKING:
    import argparse

    from metrale_caps.plugins import LayerPlugins, PluginOrigin


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "plugins",
        help="the installed layer plugins",
        description=f"Tries every plugin of the entry-point group {GROUP!r} and shows its layers, or why it failed.",
    )
    parser.add_argument("--strict", action="store_true", help=f"status 1 if any failed (also {STRICT_VARIABLE}=1)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    plugins = tried_plugins()
    if arguments.json:
        print_json(_document(plugins))
    else:
        _show(plugins)
    strict = arguments.strict or os.environ.get(STRICT_VARIABLE) == "1"
    return 1 if plugins.failures and strict else 0


def _layers(plugins: LayerPlugins, origin: PluginOrigin) -> list[str]:
    return [layer.name for layer in plugins.layers.values() if layer.origin == origin]


def _document(plugins: LayerPlugins) -> dict[str, Any]:
    return {
        "group": GROUP,
        "plugins": [_origin(origin) | {"layers": _layers(plugins, origin)} for origin in plugins.plugins],
        "failures": [
            _origin(failure.origin)
            | {
                "stage": failure.stage.value,
                "cause_type": type(failure.cause).__name__,
                "cause": describe_cause(failure.cause),
                "attempted": list(failure.attempted),
            }
            for failure in plugins.failures
        ],
    }


def _origin(origin: PluginOrigin) -> dict[str, Any]:
    return {
        "plugin": origin.plugin,
        "value": origin.value,
        "distribution": origin.distribution,
        "version": origin.version,
    }


def _show(plugins: LayerPlugins) -> None:
    if not plugins.plugins and not plugins.failures:
        sys.stdout.write(f"No plugin was found: no installed distribution has the entry-point group {GROUP!r}.\n")
        return
    if plugins.plugins:
        rows = [
            (origin.plugin, origin.distribution, origin.version, ", ".join(_layers(plugins, origin)))
            for origin in plugins.plugins
        ]
        print_table("Layer plugins", ("plugin", "distribution", "version", "layers"), rows)
    for failure in plugins.failures:
        sys.stdout.write(f"failed ({failure.stage.value}): {failure}\n")
