# SPDX-License-Identifier: MIT OR Apache-2.0
"""Offsets past 2^31 elements, in tensors that are allocated but hardly touched: no product wraps, nothing is copied."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch

from metrale_caps.kernels.rotary import RotaryTable
from tests.kernels.batches import Heads, make_batch

if TYPE_CHECKING:
    from collections.abc import Generator

    from torch import Tensor

    from metrale_caps.kernels.operations import Operations

WRAP = 2**31
WIDTH = 32
TOUCHED_BYTES = 64 * 2**20
"""What a test may add to the resident memory: hundreds of times less than the tensor spans."""


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def expanse() -> Generator[Tensor]:
    """A bf16 tensor of 2^31 elements and some, of which only touched pages take memory."""
    before = _resident_bytes()
    yield torch.empty(WRAP + 2**20, dtype=torch.bfloat16)
    assert _resident_bytes() - before < TOUCHED_BYTES


class Layout(NamedTuple):
    """A cache of one to three heads: its strides in elements, and what lies past the wrap."""

    name: str
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]
    blocks: tuple[int, ...]


LAYOUTS = [
    # 1024 elements from block to block: block 2097152 begins at 2^31
    Layout("blocks", (WRAP // 1024 + 64, 16, 1), (1024, 32, 32), (3, WRAP // 1024 - 1, WRAP // 1024, WRAP // 1024 + 7)),
    Layout("heads", (8, 16, 3), (512, 32, WRAP // 2), (5, 0, 2, 7)),
    Layout("tokens", (8, 3, 2), (64, WRAP // 2, 32), (5, 0, 2, 7)),
]


def _views(expanse: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Keys and values of one layout, 2^16 elements apart where blocks leave room, else interleaved halves."""
    shape, strides = (*layout.shape, WIDTH), (*layout.strides, 1)
    apart = 512 if layout.name == "blocks" else 2**16
    return expanse.as_strided(shape, strides, 0), expanse.as_strided(shape, strides, apart)


@pytest.mark.parametrize("layout", LAYOUTS, ids=[layout.name for layout in LAYOUTS])
def test_keys_and_values_on_both_sides_of_the_wrap(each: Operations, expanse: Tensor, layout: Layout) -> None:
    """What rotation writes is found where the strides say, and attention reads it as it reads a small cache."""
    _, block_size, heads = layout.shape
    key_cache, value_cache = _views(expanse, layout)
    length = 4 * block_size
    small = make_batch(
        [(length - 1, 1)], Heads(2 * heads, heads, WIDTH, WIDTH), block_size=block_size, dtype=key_cache.dtype
    )
    table = torch.tensor([layout.blocks], dtype=torch.int32)
    position = torch.arange(length)
    slots = table[0, position // block_size].long() * block_size + position % block_size
    query = torch.zeros(length, 2 * heads, WIDTH, dtype=key_cache.dtype)
    rotated = each.rope_write_kv(
        torch.cat([query, small.keys[0], small.values[0]], dim=1).flatten(1),
        RotaryTable(torch.ones(length, WIDTH // 2), torch.zeros(length, WIDTH // 2)),
        position,
        slots,
        key_cache,
        value_cache,
        query_heads=2 * heads,
        key_value_heads=heads,
    )
    assert not rotated.any()
    for cache, written in ((key_cache, small.keys[0]), (value_cache, small.values[0])):
        assert torch.equal(cache[slots // block_size, slots % block_size], written)
    large = dataclasses.replace(small, key_cache=key_cache, value_cache=value_cache, block_tables=table)
    assert torch.equal(large.attend(each), small.attend(each))


def test_rows_on_both_sides_of_the_wrap(each: Operations, expanse: Tensor) -> None:
    """Operations on rows find a row that begins past 2^31 elements."""
    rows = expanse.as_strided((3, WIDTH), (WRAP // 2, 1))
    dense = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0)).to(rows.dtype)
    weight = torch.linspace(0.5, 2, WIDTH, dtype=rows.dtype)
    rows.copy_(dense)
    assert torch.equal(each.rms_norm(rows, weight, 1e-5), each.rms_norm(dense, weight, 1e-5))
    assert torch.equal(each.silu_mul(rows), each.silu_mul(dense))
    residual = dense.clone()
    expected = each.add_rms_norm(dense, residual, weight, 1e-5)
    assert torch.equal(each.add_rms_norm(dense, rows, weight, 1e-5), expected)
    assert torch.equal(rows, residual)


@pytest.mark.parametrize("axis", ["rows", "heads"])
def test_queries_on_both_sides_of_the_wrap(each: Operations, expanse: Tensor, axis: str) -> None:
    """Attention finds a query whose row, or whose head, begins past 2^31 elements."""
    batch = make_batch([(5, 3)], Heads(3, 1, WIDTH, WIDTH), dtype=expanse.dtype)
    strides = (WRAP // 2, WIDTH, 1) if axis == "rows" else (WIDTH, WRAP // 2, 1)
    far = expanse.as_strided((3, 3, WIDTH), strides)
    far.copy_(batch.query)
    assert torch.equal(dataclasses.replace(batch, query=far).attend(each), batch.attend(each))
