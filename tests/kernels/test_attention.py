# SPDX-License-Identifier: MIT OR Apache-2.0
"""Paged attention against the definition in float64: heads, widths, rows, chunks, and nothing unseen is read."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.batches import Batch, Heads, make_batch

if TYPE_CHECKING:
    from metrale_caps.kernels.operations import Operations

pytestmark = pytest.mark.usefixtures("poisoned_empty")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
SMALL = Heads(3, 1, 16, 16)
DECODE = [(length - 1, 1) for length in (1, 15, 16, 17, 32, 33, 150)]
RAGGED = [(0, 1), (16, 4), (33, 17), (0, 4), (0, 33), (16, 1), (131, 17), (33, 0)]


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize(
    ("heads", "block_size", "dtype"),
    [
        (Heads(9, 3, 64, 64), 16, BF16),
        (Heads(28, 4, 128, 128), 16, BF16),
        (Heads(24, 1, 80, 80), 4, FP16),
        (Heads(8, 8, 96, 96), 12, FP32),
        (Heads(8, 1, 192, 128), 16, BF16),
        (Heads(3, 3, 192, 192), 16, FP16),
        (Heads(4, 2, 256, 256), 16, FP32),
        (Heads(3, 1, 16, 24), 4, FP32),
        (Heads(8, 1, 24, 16), 12, BF16),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, Heads) else str(value),
)
@pytest.mark.parametrize("sequences", [DECODE, RAGGED], ids=["decode", "ragged"])
def test_every_shape_of_heads(
    kernels: Operations,
    twins: Operations,
    heads: Heads,
    block_size: int,
    dtype: torch.dtype,
    sequences: list[tuple[int, int]],
) -> None:
    """Kernel and twin give the exact attention, for tables as wide as needed (decode) or wider (ragged)."""
    batch = make_batch(sequences, heads, block_size=block_size, dtype=dtype, spare_columns=int(sequences is RAGGED))
    exact = batch.exact()
    exact.check(batch.attend(kernels), weights_rounded=True)
    exact.check(batch.attend(twins), weights_rounded=False)


def test_caches_as_the_engine_views_them(each: Operations) -> None:
    """The two halves of one pool, with tables and queries that are dense, give what guarded views give."""
    batches = [make_batch(RAGGED, SMALL, guards=guards) for guards in (0, 1)]
    dense, guarded = (batch.attend(each) for batch in batches)
    assert not batches[0].key_cache.is_contiguous()
    assert torch.equal(dense, guarded)


@given(
    sequences=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=5),
    window=st.none() | st.integers(1, 40),
    more_rows=st.integers(1, 70),
)
@settings(max_examples=20, derandomize=True, deadline=None)
def test_any_rows_of_any_sequences(
    kernels: Operations,
    twins: Operations,
    sequences: list[tuple[int, int]],
    window: int | None,
    more_rows: int,
) -> None:
    """Histories and rows may be anything, none included, and the upper bound of rows may be loose."""
    batch = make_batch(sequences, SMALL, block_size=4)
    exact = batch.exact(window)
    exact.check(batch.attend(kernels, window=window, more_rows=more_rows), weights_rounded=True)
    exact.check(batch.attend(twins, window=window), weights_rounded=False)


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("splits", [1, 2, 3, 7, None])
@pytest.mark.parametrize("window", [None, 20])
def test_splits_change_nothing(kernels: Operations, splits: int | None, window: int | None) -> None:
    """Keys split over programs, some of which see none, combine to the exact attention for one row or more."""
    for sequences in ([(149, 1), (0, 1), (16, 1), (32, 1)], [(140, 10), (0, 5), (20, 17)]):
        batch = make_batch(sequences, SMALL)
        batch.exact(window).check(batch.attend(kernels, splits=splits, window=window), weights_rounded=True)


def _chunk(batch: Batch, first: int, last: int) -> Batch:
    """The step that computes rows `first .. last - 1` of a batch of one whole prompt."""
    return dataclasses.replace(
        batch,
        query=batch.query[first:last],
        lengths=torch.tensor([last], dtype=torch.int32),
        row_starts=torch.tensor([0, last - first], dtype=torch.int32),
        sequences=((first, last - first),),
    )


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("ends", [(16, 33), (1, 2, 18, 33), (15, 31, 32, 33)])
def test_prefill_in_chunks_equals_prefill_whole(each: Operations, ends: tuple[int, ...], window: int | None) -> None:
    """Later keys that are already in the cache do not show in earlier chunks, and every row comes out the same."""
    batch = make_batch([(0, 33)], SMALL, block_size=4)
    whole = batch.attend(each, window=window)
    chunks = [
        _chunk(batch, first, last).attend(each, window=window) for first, last in zip((0, *ends), ends, strict=False)
    ]
    torch.testing.assert_close(torch.cat(chunks), whole, rtol=0, atol=2e-6)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("rows", [1, 3])
def test_padding_row_is_zero_and_leaves_the_others_alone(each: Operations, splits: int, rows: int) -> None:
    """Three sequences padded to four give the bits that three give, and exact zeros for the empty one."""
    real = [(16, rows), (5, rows), (33, rows)]
    alone = make_batch(real, SMALL, dtype=BF16)
    padded = make_batch([*real, (-rows, rows)], SMALL, dtype=BF16)
    padded.query[: 3 * rows].copy_(alone.query)
    padded = dataclasses.replace(
        padded,
        key_cache=alone.key_cache,
        value_cache=alone.value_cache,
        block_tables=torch.cat([alone.block_tables, torch.full_like(alone.block_tables[:1], 10**6)]),
    )
    output = padded.attend(each, splits=splits)
    assert torch.equal(output[: 3 * rows], alone.attend(each, splits=splits))
    assert torch.equal(output[3 * rows :], torch.zeros_like(output[3 * rows :]))


@pytest.mark.parametrize("splits", [1, 2])
def test_row_without_a_visible_key_is_zero(each: Operations, splits: int) -> None:
    """Of a step with more rows than tokens the first rows lie before the sequence, and see nothing."""
    batch = make_batch([(-2, 4), (-20, 21), (3, 2)], SMALL)
    output = batch.attend(each, splits=splits)
    assert not output[:2].any()
    assert not output[4:24].any()
    batch.exact().check(output, weights_rounded=True)


def test_second_call_equals_first(each: Operations) -> None:
    """The first call for a new shape does what every later one does, and no input changes."""
    batch = make_batch([(11, 2), (0, 1)], Heads(5, 5, 40, 40), block_size=5)
    inputs = (batch.query, batch.key_cache, batch.value_cache, batch.block_tables, batch.lengths, batch.row_starts)
    before = [tensor.clone() for tensor in inputs]
    first, second = batch.attend(each), batch.attend(each)
    assert torch.equal(first, second)
    for was, tensor in zip(before, inputs, strict=True):
        assert torch.equal(was.nan_to_num(7.0), tensor.nan_to_num(7.0))
