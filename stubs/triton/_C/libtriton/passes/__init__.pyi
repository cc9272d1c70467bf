# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compiler passes, each added to a `pass_manager`."""

from . import common as common
from . import ttir as ttir
