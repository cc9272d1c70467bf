# SPDX-License-Identifier: MIT OR Apache-2.0
"""The bindings to the compiler."""

from . import ir as ir
from . import passes as passes
