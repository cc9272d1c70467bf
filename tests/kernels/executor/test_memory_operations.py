# SPDX-License-Identifier: MIT OR Apache-2.0
"""Loads, stores and atomic updates through strided views and masks, of every memory type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.kernels.executor import execute
from metrale_caps.kernels.executor.specialization import POINTERS
from tests.kernels.executor.values import listed

if TYPE_CHECKING:
    from collections.abc import Callable

examples = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**32 - 1)


@triton.jit
def tile_kernel(
    x: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    R: tl.constexpr,
    C: tl.constexpr,
    TRANSPOSED: tl.constexpr,
) -> None:
    """Copies a tile by rows of neighbours, or by columns of them, under a mask of both axes."""
    row = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)[:, None]
    column = tl.arange(0, C)[None, :]
    mask = (row < rows) & (column < columns)
    tile = tl.load(x + row * x_stride + column, mask=mask)
    if TRANSPOSED:
        tl.store(out + column * out_stride + row, tile, mask=mask)
    else:
        tl.store(out + row * out_stride + column, tile, mask=mask)


@triton.jit
def scattered_kernel(x: tl.tensor, index: tl.tensor, keep: tl.tensor, out: tl.tensor, N: tl.constexpr) -> None:
    lane = tl.arange(0, N)
    mask = tl.load(keep + lane)
    at = tl.load(index + lane, mask=mask, other=0)
    tl.store(out + lane, tl.load(x + at, mask=mask, other=-1))


@triton.jit
def scalar_kernel(x: tl.tensor, out: tl.tensor, on: tl.tensor) -> None:
    value = tl.load(x, mask=on > 0, other=3)
    tl.store(out, value, mask=on >= 0)


@triton.jit
def atomic_kernel(
    x: tl.tensor, at: tl.tensor, old: tl.tensor, out: tl.tensor, N: tl.constexpr, KIND: tl.constexpr
) -> None:
    lane = tl.arange(0, N)
    value = tl.load(x + lane)
    place = out + tl.load(at + lane)
    mask = value != 5
    if KIND == "add":
        before = tl.atomic_add(place, value, mask=mask)
    elif KIND == "max":
        before = tl.atomic_max(place, value, mask=mask)
    elif KIND == "min":
        before = tl.atomic_min(place, value, mask=mask)
    elif KIND == "and":
        before = tl.atomic_and(place, value, mask=mask)
    elif KIND == "or":
        before = tl.atomic_or(place, value, mask=mask)
    elif KIND == "xor":
        before = tl.atomic_xor(place, value, mask=mask)
    else:
        before = tl.atomic_xchg(place, value, mask=mask)
    tl.store(old + lane, before, mask=mask)


@triton.jit
def swap_kernel(out: tl.tensor, old: tl.tensor, expected: tl.tensor, N: tl.constexpr) -> None:
    lane = tl.arange(0, N)
    before = tl.atomic_cas(out + lane, tl.load(expected + lane), tl.full((N,), 100, tl.int32))
    tl.store(old + lane, before)


@triton.jit
def count_kernel(counter: tl.tensor) -> None:
    tl.atomic_add(counter, 1)


@triton.jit
def descriptor_kernel(x: tl.tensor, out: tl.tensor, rows: tl.tensor, R: tl.constexpr, C: tl.constexpr) -> None:
    source = tl.make_tensor_descriptor(x, shape=[rows, C], strides=[C, 1], block_shape=[R, C])
    target = tl.make_tensor_descriptor(out, shape=[rows, C], strides=[C, 1], block_shape=[R, C])
    first = tl.program_id(0) * R
    target.store([first, 0], source.load([first, 0]) + 1)


def pattern(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Random bits, except that there is no NaN; booleans are 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    raw = torch.randint(0, 60, shape, generator=generator)
    return raw.to(torch.float32).to(dtype) if dtype.is_floating_point else raw.to(dtype)


@pytest.mark.parametrize("dtype", POINTERS)
@examples
@given(
    shape=st.tuples(st.integers(1, 13), st.integers(1, 16)),
    padding=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    transposed=st.booleans(),
    seed=seeds,
)
def test_masked_tiles_of_strided_views(
    dtype: torch.dtype, shape: tuple[int, int], padding: tuple[int, int], transposed: bool, seed: int
) -> None:
    """What is inside is copied, bit for bit; what is outside the mask or between the rows stays as it was."""
    rows, columns = shape
    x = pattern((rows, columns + padding[0]), dtype, seed)[:, :columns]
    whole = pattern((columns, rows + padding[1]) if transposed else (rows, columns + padding[1]), dtype, seed + 1)
    expected = whole.clone()
    out = whole[:, :rows] if transposed else whole[:, :columns]
    (expected[:, :rows] if transposed else expected[:, :columns]).copy_(x.T if transposed else x)
    arguments = {"x": x, "out": out, "rows": rows, "columns": columns, "x_stride": x.stride(0)}
    extents = {"out_stride": out.stride(0), "R": 4, "C": 16, "TRANSPOSED": transposed}
    execute(tile_kernel, (4,), {**arguments, **extents}, writes=("out",))
    assert torch.equal(whole.view(torch.uint8), expected.view(torch.uint8))


@examples
@given(seed=seeds)
def test_scattered_lanes_and_boolean_masks(seed: int) -> None:
    """Lanes masked off give `other`, whatever their index is."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(50, generator=generator)
    keep = torch.rand(32, generator=generator) < 0.5
    index = torch.where(keep, torch.randint(0, 50, (32,), generator=generator), 2**40)
    out = torch.empty(32)
    execute(scattered_kernel, (1,), {"x": x, "index": index, "keep": keep, "out": out, "N": 32}, writes=("out",))
    assert torch.equal(out, torch.where(keep, x[index.clamp(max=49)], torch.tensor(-1.0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(("on", "expected"), [(1, 9), (0, 3), (-1, 0)])
def test_scalar_access_under_a_mask(dtype: torch.dtype, on: int, expected: int) -> None:
    """A scalar that is masked off is neither read nor written."""
    x, out = torch.tensor([9], dtype=dtype), torch.tensor([0], dtype=dtype)
    execute(scalar_kernel, (1,), {"x": x, "out": out, "on": on}, writes=("out",))
    assert out.item() == expected


def test_expanded_argument_is_read() -> None:
    """A view with stride zero holds its element many times."""
    x, out = torch.tensor([4.0]).expand(3, 8), torch.zeros(3, 8)
    arguments = {"x": x, "out": out, "rows": 1, "columns": 1, "x_stride": 0, "out_stride": 8}
    execute(tile_kernel, (1,), {**arguments, "R": 4, "C": 16, "TRANSPOSED": False}, writes=("out",))
    assert out.sum() == 4


ATOMICS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "max": max,
    "min": min,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "exch": lambda _, b: b,
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32])
@pytest.mark.parametrize("kind", ATOMICS)
@examples
@given(seed=seeds)
def test_atomic_updates_of_shared_addresses(kind: str, dtype: torch.dtype, seed: int) -> None:
    """Lanes that share an address take turns, and each gets what it replaced."""
    generator = torch.Generator().manual_seed(seed)
    low = 0 if dtype == torch.uint32 else -9
    x = torch.randint(low, 9, (16,), generator=generator)
    at = torch.randint(0, 5, (16,), generator=generator)
    start = torch.randint(low, 9, (5,), generator=generator)
    out, old = start.clone().to(dtype), torch.zeros(16, dtype=dtype)
    execute(atomic_kernel, (1,), {"x": x.to(dtype), "at": at, "old": old, "out": out, "N": 16, "KIND": kind})
    memory, replaced = listed(start), [0] * 16
    for lane, (value, place) in enumerate(zip(listed(x), listed(at), strict=True)):
        if value != 5:
            replaced[lane] = memory[place]
            memory[place] = ATOMICS[kind](memory[place], value)
    assert listed(out.long()) == memory
    assert listed(old.long()) == replaced


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_atomic_sum_of_floats_rounds_each_step(dtype: torch.dtype) -> None:
    """Sums of a narrow type are rounded to it at every step."""
    x, at = torch.full((16,), 1.5, dtype=dtype), torch.zeros(16, dtype=torch.int64)
    out, old = torch.tensor([256.0], dtype=dtype), torch.zeros(16, dtype=dtype)
    execute(atomic_kernel, (1,), {"x": x, "at": at, "old": old, "out": out, "N": 16, "KIND": "add"})
    expected = torch.tensor(256.0, dtype=dtype)
    for _ in range(16):
        expected = expected + torch.tensor(1.5, dtype=dtype)
    assert out[0] == expected


def test_compare_and_swap() -> None:
    """Only elements that are as expected are replaced."""
    out, expected = torch.arange(8, dtype=torch.int32), torch.arange(8, dtype=torch.int32)
    expected[::2] = -1
    old = torch.empty_like(out)
    execute(swap_kernel, (1,), {"out": out, "old": old, "expected": expected, "N": 8})
    assert listed(old) == list(range(8))
    assert listed(out) == [0, 100, 2, 100, 4, 100, 6, 100]


def test_programs_may_update_one_address_atomically() -> None:
    """Atomic updates among themselves are no race."""
    counter = torch.zeros(1, dtype=torch.int32)
    execute(count_kernel, (9,), {"counter": counter})
    assert counter.item() == 9


def test_tensor_descriptors() -> None:
    """Loads and stores through descriptors are clipped to the described shape."""
    x, out = torch.randn(13, 16), torch.zeros(13, 16)
    execute(descriptor_kernel, (2,), {"x": x, "out": out, "rows": 13, "R": 8, "C": 16}, writes=("out",))
    assert torch.equal(out, x + 1)
