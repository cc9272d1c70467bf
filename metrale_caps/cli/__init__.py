# SPDX-License-Identifier: MIT OR Apache-2.0
"""The `metrale-caps` command."""

from metrale_caps.cli.main import main as main

__all__ = ["main"]
