# SPDX-License-Identifier: MIT OR Apache-2.0
"""To how many rows a decode batch is padded, so that few widths are ever run, captured and compiled for."""

from __future__ import annotations

from bisect import bisect_left

LADDER = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Widths of padded batches; a larger batch is not padded."""


def padded_rows(rows: int) -> int:
    """Return the width of a batch of `rows` rows."""
    index = bisect_left(LADDER, rows)
    return LADDER[index] if index < len(LADDER) else rows
