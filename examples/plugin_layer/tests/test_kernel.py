# SPDX-License-Identifier: MIT OR Apache-2.0
"""The kernels against plain torch, over pages in which every cell that need not be read is NaN."""

from __future__ import annotations

import pytest
import torch
from metrale_sliding_window.kernels import attend, write_pages

from metrale_caps import ForwardContext, PagedKv

BLOCK_SIZE = 4
NAN = float("nan")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _attend_plainly(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int) -> torch.Tensor:
    """Attention of one row `[heads, width]` over all keys up to its own, `[keys, kv_heads, width]`, in fp64."""
    group = query.shape[0] // keys.shape[1]
    seen_keys, seen_values = (part[-window:].double().repeat_interleave(group, 1) for part in (keys, values))
    scores = torch.einsum("hd,khd->hk", query.double(), seen_keys) * query.shape[1] ** -0.5
    return torch.einsum("hk,khd->hd", scores.softmax(1), seen_values)


def _context(rows: list[int], lengths: list[int], blocks: int, padding: int) -> ForwardContext:
    """Sequences whose blocks lie scattered, in descending order, with `padding` rows at the end that are nobody's."""
    tables = torch.full((len(rows), blocks), 10**6, dtype=torch.int32)
    free = iter(range(len(rows) * blocks - 1, -1, -1))
    slots = [-1] * (sum(rows) + padding)
    for sequence, (count, length) in enumerate(zip(rows, lengths, strict=True)):
        used = -(-length // BLOCK_SIZE)
        tables[sequence, :used] = torch.tensor([next(free) for _ in range(used)], dtype=torch.int32)
        for row in range(count):
            position = length - count + row
            if position >= 0:
                cell = int(tables[sequence, position // BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE
                slots[sum(rows[:sequence]) + row] = cell
    starts = torch.tensor([0, *rows], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return ForwardContext(
        positions=torch.zeros(sum(rows) + padding, dtype=torch.int64, device=DEVICE),
        cache_slots=torch.tensor(slots, device=DEVICE),
        block_tables=tables.to(DEVICE),
        lengths=torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        row_starts=starts.to(DEVICE),
        sequence_slots=torch.arange(len(rows), dtype=torch.int32, device=DEVICE),
        max_rows=max(rows),
        max_length=max(lengths),
    )


@pytest.mark.parametrize("window", [1, 3, 64, 1000])
@pytest.mark.parametrize(
    ("rows", "lengths"),
    [([1, 1, 1], [1, 7, 130]), ([5, 1, 0, 2], [9, 66, 20, 2]), ([128, 3], [128, 150]), ([1, 2], [0, 0])],
    ids=["decode", "ragged", "long chunk", "nothing visible"],
)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(3, 3, 20), (6, 2, 24), (4, 1, 64)])
def test_rows_see_their_window_and_nothing_else(
    rows: list[int], lengths: list[int], window: int, heads: int, kv_heads: int, width: int
) -> None:
    """Rows agree with plain torch, rows that see nothing are zero, and NaN where nothing is to be seen stays there."""
    random = torch.Generator(DEVICE).manual_seed(len(rows) * window)
    padding, blocks = 2, -(-max(1, *lengths) // BLOCK_SIZE)
    context = _context(rows, lengths, blocks, padding)
    query = torch.randn(sum(rows) + padding, heads, width, generator=random, device=DEVICE)
    pool = torch.full((len(rows) * blocks, 2, BLOCK_SIZE, kv_heads, width), NAN, device=DEVICE)
    pages = PagedKv(pool[:, 0], pool[:, 1])
    expected = torch.zeros(query.shape, dtype=torch.float64, device=DEVICE)
    for sequence, (count, length) in enumerate(zip(rows, lengths, strict=True)):
        keys, values = torch.randn(2, length, kv_heads, width, generator=random, device=DEVICE)
        first_row = int(context.row_starts[sequence])
        for row in range(count if length else 0):
            own = length - count + row + 1
            expected[first_row + row] = _attend_plainly(query[first_row + row], keys[:own], values[:own], window)
        oldest = max(0, length - count - window + 1) if count else length
        for position in range(oldest, length):
            cell = int(context.block_tables[sequence, position // BLOCK_SIZE]), position % BLOCK_SIZE
            pages.keys[cell], pages.values[cell] = keys[position], values[position]

    torch.testing.assert_close(
        attend(query, pages, context, window=window, scale=width**-0.5).double(), expected, atol=1e-5, rtol=0.0
    )


def test_each_row_is_written_to_its_own_cell_and_no_other() -> None:
    """A row lands in its slot, a row without a slot nowhere, and all other cells keep their bits."""
    context = _context([2, 1], [6, 3], blocks=2, padding=3)
    keys, values = torch.randn(2, 6, 3, 20, device=DEVICE)
    pool = torch.full((4, 2, BLOCK_SIZE, 3, 20), NAN, device=DEVICE)
    pages = PagedKv(pool[:, 0], pool[:, 1])
    write_pages(keys, values, context.cache_slots, pages)
    for written, rows in ((pages.keys, keys), (pages.values, values)):
        cells = written.reshape(-1, 3, 20)
        assert torch.equal(cells[context.cache_slots[:3]], rows[:3])
        assert int(cells.isnan().all(dim=2).all(dim=1).sum()) == cells.shape[0] - 3


def test_pages_that_do_not_match_are_refused() -> None:
    """The kernels know one set of strides."""
    keys = torch.zeros(2, BLOCK_SIZE, 1, 16, device=DEVICE)
    pages = PagedKv(keys, torch.zeros(2, BLOCK_SIZE, 1, 32, device=DEVICE)[..., :16])
    with pytest.raises(ValueError, match="strides"):
        attend(keys[0], pages, _context([4], [4], 1, 0), window=2, scale=1.0)
