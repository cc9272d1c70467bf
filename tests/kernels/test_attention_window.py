# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sliding windows of paged attention: which keys are seen, and that those before the window are not even read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from metrale_caps.kernels.host import host_integers
from tests.kernels.batches import Heads, make_batch

if TYPE_CHECKING:
    from metrale_caps.kernels.operations import Operations

pytestmark = pytest.mark.usefixtures("poisoned_empty", "tile_sizes")

SMALL = Heads(3, 1, 16, 16)


def _seen_keys(operations: Operations, history: int, rows: int, window: int | None, splits: int) -> list[list[int]]:
    """The keys each row sees, read off its output: keys are all equal, and each value marks its own position."""
    batch = make_batch([(history, rows)], SMALL, block_size=4)
    blocks = host_integers(batch.block_tables[0])
    for position in range(history + rows):
        cell = (blocks[position // 4], position % 4)
        batch.key_cache[cell] = 1.0
        batch.value_cache[cell] = torch.nn.functional.one_hot(torch.tensor(position), 16).float()
    output = batch.attend(operations, window=window, splits=splits)
    for row in output.flatten(0, 1):
        marked = row[row != 0]
        torch.testing.assert_close(marked, torch.full_like(marked, 1 / len(marked)))
    seen = output != 0
    assert torch.equal(seen, seen[:, :1].expand_as(seen)), "heads of one row see the same keys"
    return [host_integers(torch.nonzero(row).flatten()) for row in seen[:, 0]]


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("length", [1, 4, 5, 8, 9])
def test_row_sees_exactly_its_window(each: Operations, length: int, splits: int) -> None:
    """With a window of four the row at p sees p-3 .. p, whether it is alone or the last of many."""
    for rows in {1, 2, length}:
        if rows <= length:
            expected = [list(range(max(0, p - 3), p + 1)) for p in range(length - rows, length)]
            assert _seen_keys(each, length - rows, rows, 4, splits) == expected


@pytest.mark.parametrize("window", [1, 9, 100])
def test_window_of_one_and_wider_than_the_sequence(each: Operations, window: int) -> None:
    """A window of one sees the row itself; one as wide as the sequence hides nothing."""
    expected = [list(range(max(0, p - window + 1), p + 1)) for p in range(9)]
    assert _seen_keys(each, 0, 9, window, 1) == expected


@pytest.mark.parametrize("history", [0, 60, 127, 128, 200, 301])
def test_tiles_wholly_outside_of_a_rows_window(kernels: Operations, twins: Operations, history: int) -> None:
    """Of many rows with narrow windows, most rows see nothing of most tiles, before and after their keys."""
    batch = make_batch([(history, 70), (history, 1)], SMALL)
    exact = batch.exact(window=4)
    exact.check(batch.attend(kernels, window=4), weights_rounded=True)
    exact.check(batch.attend(twins, window=4), weights_rounded=False)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("rows", [1, 6])
def test_nothing_before_the_window_is_read(each: Operations, rows: int, splits: int) -> None:
    """Keys that left every row's window may be gone: NaN in their cells and no entry in the table change nothing."""
    histories = [2, 3, 4, 17, 40, 150]
    batch = make_batch(
        [(history, rows) for history in histories],
        SMALL,
        block_size=4,
        hidden_before=[max(0, history - 3) for history in histories],
    )
    batch.exact(window=4).check(batch.attend(each, window=4, splits=splits), weights_rounded=True)
