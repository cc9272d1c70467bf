# SPDX-License-Identifier: MIT OR Apache-2.0
"""The operations that can be executed: one table, one entry for each name.

An entry writes the Python code of one operation. To support another operation, add an entry to the group it
belongs to; the tests fail until a test kernel makes the generator use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrale_caps.kernels.executor.operations import (
    arithmetic,
    control,
    conversions,
    mathematics,
    memory,
    reductions,
    tensors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from metrale_caps.kernels.executor.ir import Operation
    from metrale_caps.kernels.executor.writer import Writer

OPERATIONS: Mapping[str, Callable[[Writer, Operation], None]] = {
    **arithmetic.ENTRIES,
    **conversions.ENTRIES,
    **mathematics.ENTRIES,
    **tensors.ENTRIES,
    **reductions.ENTRIES,
    **memory.ENTRIES,
    **control.ENTRIES,
}
"""Emitter of each operation."""
