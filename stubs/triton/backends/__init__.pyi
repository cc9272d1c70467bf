# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compiler back ends found in the installation, by name."""

from .compiler import BaseBackend
from .driver import DriverBase

class Backend:
    compiler: type[BaseBackend]
    driver: type[DriverBase]

backends: dict[str, Backend]
