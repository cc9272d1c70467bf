# SPDX-License-Identifier: MIT OR Apache-2.0
"""The option `--layers`: a model is built from the layer of an installed plugin."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from metrale_caps.cli.targets import foreign_code
from metrale_caps.models.replacements import find_builder

if TYPE_CHECKING:
    import argparse

    from metrale_caps.models.replacements import LayerBuilder
    from metrale_caps.plugins import BlockSource


def add_layers_option(parser: argparse.ArgumentParser) -> None:
    """Add the option to a command."""
    parser.add_argument(
        "--layers", metavar="NAME", help="build the model from an installed plugin's layer of this name"
    )


def layer_builder(name: str | None) -> LayerBuilder | None:
    """Return what builds the layers of that name; None without a name.

    Raises:
        PluginFailedError: the plugin of that name failed; the cause is quoted.
        UnknownPluginError: there is no such layer; what was found is listed.
    """
    with contextlib.redirect_stdout(sys.stderr):  # what plugins print while they are tried
        build = find_builder(name)
    if name is None or build is None:
        return None

    def build_or_refuse(source: BlockSource) -> object | None:
        with foreign_code(name, f"building it for block {source.index}"):
            return build(source)

    return build_or_refuse
