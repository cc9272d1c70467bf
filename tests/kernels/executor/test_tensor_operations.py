# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernels that reshape, combine and multiply tensors, against torch at random shapes and types."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.kernels.executor import execute
from tests.kernels.executor.values import listed

examples = settings(max_examples=8, deadline=None)
powers = st.sampled_from([2, 4, 16])
seeds = st.integers(0, 2**32 - 1)
FLOAT_TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


@triton.jit
def rearrange_kernel(x: tl.tensor, y: tl.tensor, out: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> None:
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    at = rows[:, None] * COLUMNS + columns[None, :]
    first = tl.load(x + at)
    second = tl.load(y + at)
    joined = tl.join(first, second)
    turned = tl.permute(joined, (2, 1, 0))
    flat = tl.reshape(turned, (2 * ROWS * COLUMNS,))
    tl.store(out + tl.arange(0, 2 * ROWS * COLUMNS), flat)


@triton.jit
def halves_kernel(x: tl.tensor, low: tl.tensor, high: tl.tensor, both: tl.tensor, N: tl.constexpr) -> None:
    pairs = tl.reshape(tl.load(x + tl.arange(0, 2 * N)), (N, 2))
    even, odd = tl.split(pairs)
    tl.store(low + tl.arange(0, N), even)
    tl.store(high + tl.arange(0, N), odd)
    tl.store(both + tl.arange(0, 2 * N), tl.cat(even, odd, can_reorder=True))


@triton.jit
def dot_kernel(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, out: tl.tensor, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
) -> None:
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    left = tl.load(a + m * K + tl.arange(0, K)[None, :])
    right = tl.load(b + tl.arange(0, K)[:, None] * N + n)
    total = tl.dot(left, right, tl.load(c + m * N + n), out_dtype=c.dtype.element_ty)
    tl.store(out + m * N + n, total)


@triton.jit
def batched_dot_kernel(a: tl.tensor, b: tl.tensor, out: tl.tensor, B: tl.constexpr, N: tl.constexpr) -> None:
    batch = tl.arange(0, B)[:, None, None] * N * N
    at = batch + tl.arange(0, N)[None, :, None] * N + tl.arange(0, N)[None, None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def reduce_kernel(
    x: tl.tensor, total: tl.tensor, largest: tl.tensor, where: tl.tensor, AXIS: tl.constexpr, N: tl.constexpr
) -> None:
    lane = tl.arange(0, N)
    tile = tl.load(x + lane[:, None] * N + lane[None, :])
    tl.store(total + lane, tl.sum(tile, AXIS))
    tl.store(largest + lane, tl.max(tile, AXIS))
    tl.store(where + lane, tl.argmin(tile, AXIS))


@triton.jit
def exclusive_or_kernel(x: tl.tensor, out: tl.tensor, N: tl.constexpr) -> None:
    tl.store(out, tl.xor_sum(tl.load(x + tl.arange(0, N)), 0))


@triton.jit
def recurrence(
    decay: tl.tensor, value: tl.tensor, next_decay: tl.tensor, next_value: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    return decay * next_decay, value * next_decay + next_value


@triton.jit
def scan_kernel(
    x: tl.tensor,
    decay: tl.tensor,
    sums: tl.tensor,
    products: tl.tensor,
    states: tl.tensor,
    REVERSE: tl.constexpr,
    N: tl.constexpr,
) -> None:
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    values = tl.load(x + at)
    decays = tl.load(decay + at)
    tl.store(sums + at, tl.cumsum(values, 1, reverse=REVERSE))
    tl.store(products + at, tl.cumprod(values, 0, reverse=REVERSE))
    _, state = tl.associative_scan((decays, values), 1, recurrence, reverse=REVERSE)
    tl.store(states + at, state)


@triton.jit
def count_kernel(x: tl.tensor, masked: tl.tensor, out: tl.tensor, N: tl.constexpr, BINS: tl.constexpr) -> None:
    lane = tl.arange(0, N)
    counts = tl.histogram(tl.load(x + lane), BINS, mask=tl.load(masked + lane))
    tl.store(out + tl.arange(0, BINS), counts)


@triton.jit
def gather_kernel(x: tl.tensor, index: tl.tensor, out: tl.tensor, AXIS: tl.constexpr, N: tl.constexpr) -> None:
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.gather(tl.load(x + at), tl.load(index + at), AXIS))


@triton.jit
def sort_kernel(x: tl.tensor, out: tl.tensor, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    tl.store(out + at, tl.sort(tl.load(x + at)))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers of a seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


@examples
@given(rows=powers, columns=powers, dtype=FLOAT_TYPES, seed=seeds)
def test_join_permute_and_reshape(rows: int, columns: int, dtype: torch.dtype, seed: int) -> None:
    """Elements end where torch's stack, permute and reshape put them."""
    x, y = random(rows, columns, dtype=dtype, seed=seed), random(rows, columns, dtype=dtype, seed=seed + 1)
    out = torch.empty(2 * rows * columns, dtype=dtype)
    arguments = {"x": x, "y": y, "out": out, "ROWS": rows, "COLUMNS": columns}
    execute(rearrange_kernel, (1,), arguments, writes=("out",))
    assert torch.equal(out, torch.stack((x, y), -1).permute(2, 1, 0).reshape(-1))


@pytest.mark.filterwarnings("ignore:tl.cat")
@examples
@given(count=powers, dtype=FLOAT_TYPES, seed=seeds)
def test_split_and_concatenate(count: int, dtype: torch.dtype, seed: int) -> None:
    """The last axis is taken apart; concatenation keeps every element."""
    x = random(2 * count, dtype=dtype, seed=seed)
    low, high, both = (torch.empty(size, dtype=dtype) for size in (count, count, 2 * count))
    execute(halves_kernel, (1,), {"x": x, "low": low, "high": high, "both": both, "N": count})
    assert torch.equal(low, x[::2])
    assert torch.equal(high, x[1::2])
    assert torch.equal(both.sort().values, x.sort().values)


@examples
@given(shape=st.tuples(*[st.sampled_from([16, 32])] * 3), dtype=FLOAT_TYPES, seed=seeds)
def test_dot_accumulates_in_float32(shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
    """The product of narrow floats is as exact as that of the same values in float32."""
    m, n, k = shape
    a, b, c = (
        random(m, k, dtype=dtype, seed=seed),
        random(k, n, dtype=dtype, seed=seed + 1),
        random(m, n, seed=seed + 2),
    )
    out = torch.empty(m, n)
    execute(dot_kernel, (1,), {"a": a, "b": b, "c": c, "out": out, "M": m, "N": n, "K": k})
    torch.testing.assert_close(out, (a.double() @ b.double() + c).float(), rtol=1e-5, atol=1e-5)


@examples
@given(seed=seeds)
def test_integer_dot_is_exact(seed: int) -> None:
    """8-bit integers add up in 32 bits."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-128, 128, (32, 32), dtype=torch.int8, generator=generator) for _ in range(2))
    c = torch.randint(-(2**31), 2**31 - 1, (32, 32), dtype=torch.int32, generator=generator)
    out = torch.empty_like(c)
    execute(dot_kernel, (1,), {"a": a, "b": b, "c": c, "out": out, "M": 32, "N": 32, "K": 32})
    exact = a.long() @ b.long() + c
    assert torch.equal(out, exact.to(torch.int32))


def test_batched_dot() -> None:
    """A leading axis is a batch."""
    a, b, out = random(4, 16, 16), random(4, 16, 16, seed=1), torch.empty(4, 16, 16)
    execute(batched_dot_kernel, (1,), {"a": a, "b": b, "out": out, "B": 4, "N": 16})
    torch.testing.assert_close(out, a @ b, rtol=1e-5, atol=1e-5)


@examples
@given(axis=st.sampled_from([0, 1]), count=powers, dtype=st.sampled_from([torch.float32, torch.int32]), seed=seeds)
def test_reductions(axis: int, count: int, dtype: torch.dtype, seed: int) -> None:
    """Sum and maximum by numpy's reductions, the position of the minimum by folding the kernel's own combination."""
    x = (random(count, count, seed=seed) * 3).to(dtype)
    total, largest = torch.empty(count, dtype=dtype), torch.empty(count, dtype=dtype)
    where = torch.empty(count, dtype=torch.int32)
    arguments = {"x": x, "total": total, "largest": largest, "where": where, "AXIS": axis, "N": count}
    execute(reduce_kernel, (1,), arguments)
    torch.testing.assert_close(total, x.sum(axis).to(dtype), rtol=1e-5, atol=1e-5)
    assert torch.equal(largest, x.amax(axis))
    first = (x == x.amin(axis, keepdim=True)).int().argmax(axis)
    assert torch.equal(where.long(), first)


def test_exclusive_or_of_an_axis() -> None:
    """`tl.xor_sum` of integers."""
    x = torch.randint(0, 2**31 - 1, (64,), dtype=torch.int32, generator=torch.Generator().manual_seed(3))
    out = torch.empty(1, dtype=torch.int32)
    execute(exclusive_or_kernel, (1,), {"x": x, "out": out, "N": 64})
    expected = 0
    for number in listed(x):
        expected ^= number
    assert out.item() == expected


@examples
@given(reverse=st.booleans(), count=powers, seed=seeds)
def test_scans(reverse: bool, count: int, seed: int) -> None:
    """Sums and products along an axis, and a linear recurrence by its own associative combination."""
    x, decay = random(count, count, seed=seed), random(count, count, seed=seed + 1).sigmoid()
    sums, products, states = (torch.empty(count, count) for _ in range(3))
    arguments = {"x": x, "decay": decay, "sums": sums, "products": products, "states": states}
    execute(scan_kernel, (1,), {**arguments, "REVERSE": reverse, "N": count})

    def turn(tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return tensor.flip(axis) if reverse else tensor

    torch.testing.assert_close(sums, turn(turn(x, 1).cumsum(1), 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(products, turn(turn(x, 0).cumprod(0), 0), rtol=1e-5, atol=1e-5)
    state = torch.zeros(count)
    expected: list[torch.Tensor] = []
    for step in range(count):
        state = state * turn(decay, 1)[:, step] + turn(x, 1)[:, step]
        expected.append(state)
    torch.testing.assert_close(states, turn(torch.stack(expected, 1), 1), rtol=1e-5, atol=1e-5)


@examples
@given(count=st.sampled_from([16, 64]), seed=seeds)
def test_histogram_counts_active_lanes(count: int, seed: int) -> None:
    """Lanes masked off are not counted."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 16, (count,), dtype=torch.int32, generator=generator)
    masked = torch.rand(count, generator=generator) < 0.5
    out = torch.empty(16, dtype=torch.int32)
    execute(count_kernel, (1,), {"x": x, "masked": masked, "out": out, "N": count, "BINS": 16})
    assert torch.equal(out.long(), torch.bincount(x[masked].long(), minlength=16))


@examples
@given(axis=st.sampled_from([0, 1]), count=powers, dtype=FLOAT_TYPES, seed=seeds)
def test_gather_takes_along_an_axis(axis: int, count: int, dtype: torch.dtype, seed: int) -> None:
    """Equal to torch's gather."""
    x = random(count, count, dtype=dtype, seed=seed)
    index = torch.randint(0, count, (count, count), dtype=torch.int32, generator=torch.Generator().manual_seed(seed))
    out = torch.empty_like(x)
    execute(gather_kernel, (1,), {"x": x, "index": index, "out": out, "AXIS": axis, "N": count})
    assert torch.equal(out, x.gather(axis, index.long()))


@examples
@given(count=powers, seed=seeds)
def test_sort_of_the_standard_library(count: int, seed: int) -> None:
    """Triton's own sorting network, which is made of reshapes, reductions and exclusive-ors."""
    x, out = random(count, seed=seed), torch.empty(count)
    execute(sort_kernel, (1,), {"x": x, "out": out, "N": count})
    assert torch.equal(out, x.sort().values)
