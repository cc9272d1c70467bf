# SPDX-License-Identifier: MIT OR Apache-2.0
"""Accesses that a kernel must not make, each reported with kernel, argument, offsets and programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import MemoryFaultError, RaceError
from metrale_caps.kernels.executor import execute
from metrale_caps.kernels.executor.layout import gaps_of, span_of
from metrale_caps.kernels.executor.races import RaceMonitor
from tests.kernels.executor.values import shared


@triton.jit
def copy_kernel(x: tl.tensor, out: tl.tensor, offset: tl.tensor, N: tl.constexpr) -> None:
    lane = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + lane, tl.load(x + lane + offset))


@triton.jit
def row_kernel(
    x: tl.tensor, out: tl.tensor, first: tl.tensor, stride: tl.tensor, R: tl.constexpr, N: tl.constexpr
) -> None:
    """Rows of neighbours, which are checked as rows."""
    row = (first + tl.arange(0, R))[:, None].to(tl.int64) * stride
    tile = tl.load(x + row + tl.arange(0, N)[None, :])
    tl.store(out + tl.arange(0, R)[:, None] * N + tl.arange(0, N)[None, :], tile)


@triton.jit
def scalar_kernel(x: tl.tensor, out: tl.tensor, at: tl.tensor) -> None:
    tl.store(out, tl.load(x + at))


@triton.jit
def paged_sum_kernel(pool: tl.tensor, table: tl.tensor, lengths: tl.tensor, out: tl.tensor, PAGE: tl.constexpr) -> None:
    length = tl.load(lengths)
    total = 0.0
    for start in range(0, length, PAGE):
        page = tl.load(table + start // PAGE).to(tl.int64)
        lane = tl.arange(0, PAGE)
        total += tl.sum(tl.load(pool + page * PAGE + lane, mask=start + lane < length, other=0.0), 0)
    tl.store(out, total)


@triton.jit
def same_address_kernel(out: tl.tensor, step: tl.tensor) -> None:
    tl.store(out + tl.program_id(0) * step, 1.0)


@triton.jit
def neighbour_kernel(x: tl.tensor, out: tl.tensor, shift: tl.tensor, N: tl.constexpr) -> None:
    lane = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + lane, tl.load(x + lane + shift))


@triton.jit
def lanes_kernel(x: tl.tensor, at: tl.tensor, out: tl.tensor, N: tl.constexpr) -> None:
    lane = tl.arange(0, N)
    tl.store(out + tl.load(at + lane), tl.load(x + lane))


@triton.jit
def overlapping_rows_kernel(x: tl.tensor, out: tl.tensor, stride: tl.tensor, R: tl.constexpr, N: tl.constexpr) -> None:
    row, lane = tl.arange(0, R)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + row.to(tl.int64) * stride + lane, tl.load(x + row * N + lane))


@triton.jit
def counter_kernel(counter: tl.tensor, seen: tl.tensor) -> None:
    program = tl.program_id(0)
    if program == 0:
        tl.atomic_add(counter, 1)
    else:
        tl.store(seen + program, tl.load(counter))


@pytest.mark.parametrize("offset", [-1, 1, -(2**20), 2**20])
def test_read_outside_an_argument(offset: int) -> None:
    """One element before, one after, and far away; the offsets are those of the offending lanes."""
    x, out = torch.zeros(8), torch.zeros(8)
    with pytest.raises(MemoryFaultError, match=r"copy_kernel.*reads outside 'x'") as caught:
        execute(copy_kernel, (1,), {"x": x, "out": out, "offset": offset, "N": 8}, writes=("out",))
    lanes = [lane + offset for lane in range(8) if not 0 <= lane + offset < 8]
    assert caught.value.argument == "x"
    assert caught.value.kernel == "copy_kernel"
    assert list(caught.value.offsets) == lanes


def test_fault_names_the_program() -> None:
    """The second program is the one that runs over the end."""
    with pytest.raises(MemoryFaultError) as caught:
        execute(copy_kernel, (2,), {"x": torch.zeros(12), "out": torch.zeros(16), "offset": 0, "N": 8})
    assert caught.value.program == (1, 0, 0)
    assert caught.value.offsets == (12, 13, 14, 15)


def test_write_outside_an_argument() -> None:
    """Nothing is written by the store that faults."""
    out = torch.zeros(8)[:6]
    with pytest.raises(MemoryFaultError, match="writes outside 'out'"):
        execute(copy_kernel, (1,), {"x": torch.ones(8), "out": out, "offset": 0, "N": 8})
    assert out.sum() == 0


@pytest.mark.parametrize("at", [-1, 3])
def test_scalar_outside_an_argument(at: int) -> None:
    """A single address is checked like many."""
    with pytest.raises(MemoryFaultError, match="'x'") as caught:
        execute(scalar_kernel, (1,), {"x": torch.zeros(3), "out": torch.zeros(1), "at": at})
    assert caught.value.offsets == (at,)


@pytest.mark.parametrize("first", [-1, 2])
def test_row_outside_an_argument(first: int) -> None:
    """Rows of neighbours before the first or past the last element."""
    x, out = torch.zeros(4, 8), torch.zeros(4, 8)
    arguments = {"x": x, "out": out, "first": first, "stride": 8, "R": 4, "N": 8}
    with pytest.raises(MemoryFaultError) as caught:
        execute(row_kernel, (1,), arguments, writes=("out",))
    rows = [first + row for row in range(4) if not 0 <= first + row < 4]
    assert list(caught.value.offsets) == [row * 8 + lane for row in rows for lane in range(8)]


def test_store_to_a_read_only_argument() -> None:
    """Only arguments named in `writes` may be stored to."""
    out = torch.zeros(8)
    with pytest.raises(MemoryFaultError, match="stores to the read-only 'out'"):
        execute(copy_kernel, (1,), {"x": torch.ones(8), "out": out, "offset": 0, "N": 8}, writes=("x",))
    assert out.sum() == 0


def test_gap_of_a_strided_view() -> None:
    """Between the rows of one half of an interleaved pool lie the rows of the other half."""
    pool = torch.arange(2 * 4 * 8.0).view(4, 2, 8)
    keys, out = pool.unbind(1)[0], torch.zeros(4, 8)
    arguments = {"x": keys, "out": out, "first": 0, "R": 4, "N": 8}
    execute(row_kernel, (1,), {**arguments, "stride": 16}, writes=("out",))
    assert torch.equal(out, keys)
    with pytest.raises(MemoryFaultError, match="reads in a gap of 'x'") as caught:
        execute(row_kernel, (1,), {**arguments, "stride": 8}, writes=("out",))
    assert caught.value.offsets[0] == 8
    with pytest.raises(MemoryFaultError, match="reads in a gap of 'x'"):
        execute(copy_kernel, (1,), {"x": keys, "out": out, "offset": 4, "N": 8}, writes=("out",))
    with pytest.raises(MemoryFaultError, match="reads in a gap of 'x'"):
        execute(scalar_kernel, (1,), {"x": keys, "out": out, "at": 9}, writes=("out",))


def test_page_outside_the_pool() -> None:
    """A block table that names a page which the pool does not have."""
    pool, out = torch.ones(3, 16), torch.zeros(1)
    lengths = torch.tensor([32], dtype=torch.int32)
    arguments = {"pool": pool, "lengths": lengths, "out": out, "PAGE": 16}
    execute(paged_sum_kernel, (1,), {**arguments, "table": torch.tensor([2, 0])}, writes=("out",))
    assert out.item() == 32
    with pytest.raises(MemoryFaultError) as caught:
        execute(paged_sum_kernel, (1,), {**arguments, "table": torch.tensor([2, 3])}, writes=("out",))
    assert caught.value.argument == "pool"
    assert caught.value.offsets == tuple(range(48, 64))


def test_length_past_the_block_table() -> None:
    """A length that needs more pages than the table lists."""
    arguments = {"pool": torch.ones(9, 16), "table": torch.tensor([2, 0]), "out": torch.zeros(1), "PAGE": 16}
    with pytest.raises(MemoryFaultError, match="'table'") as caught:
        execute(paged_sum_kernel, (1,), {**arguments, "lengths": torch.tensor([33])}, writes=("out",))
    assert caught.value.offsets == (2,)


def test_empty_argument_has_no_element() -> None:
    """Every access to an empty tensor is outside."""
    with pytest.raises(MemoryFaultError, match="'x'"):
        execute(scalar_kernel, (1,), {"x": torch.zeros(0), "out": torch.zeros(1), "at": 0})


def test_two_programs_write_one_address() -> None:
    """Even if they write the same value: which one wins is not defined."""
    out = torch.zeros(8)
    execute(same_address_kernel, (8,), {"out": out, "step": 1})
    with pytest.raises(RaceError, match="both write 'out'") as caught:
        execute(same_address_kernel, (2,), {"out": out, "step": 0})
    assert caught.value.offsets == (0,)
    assert caught.value.programs == ((0, 0, 0), (1, 0, 0))


@pytest.mark.parametrize("shift", [-1, 1])
def test_program_reads_what_another_writes(shift: int) -> None:
    """In either order of running; through two arguments that share memory."""
    pool = torch.zeros(34)
    inside = pool[1:33]
    arguments = {"x": inside, "N": 8, "shift": 0}
    execute(neighbour_kernel, (4,), {**arguments, "out": inside}, writes=("out",))
    with pytest.raises(RaceError, match="write and read") as caught:
        execute(neighbour_kernel, (4,), {"x": pool, "out": inside, "shift": 1 + shift, "N": 8}, writes=("out",))
    assert caught.value.argument == "out"
    first, second = caught.value.programs
    assert abs(first[0] - second[0]) == 1


def test_one_program_may_read_what_it_writes() -> None:
    """A launch of one program has no other to race with."""
    x = torch.zeros(9)
    execute(neighbour_kernel, (1,), {"x": x, "out": x, "shift": 1, "N": 8})


def test_atomic_update_and_plain_read_of_other_programs() -> None:
    """Atomicity does not order a plain access."""
    counter, seen = torch.zeros(1, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    with pytest.raises(RaceError, match="atomically update and read 'counter'"):
        execute(counter_kernel, (3,), {"counter": counter, "seen": seen})


def test_two_lanes_of_one_store_collide() -> None:
    """Different values at one address; equal values are no fault."""
    x, at, out = torch.arange(8.0), torch.arange(8), torch.zeros(8)
    execute(lanes_kernel, (1,), {"x": x, "at": at, "out": out, "N": 8})
    at[5] = 2
    with pytest.raises(RaceError, match="two lanes") as caught:
        execute(lanes_kernel, (1,), {"x": x, "at": at, "out": out, "N": 8})
    assert caught.value.offsets == (2,)
    x[5] = x[2]
    execute(lanes_kernel, (1,), {"x": x, "at": at, "out": out, "N": 8})


def test_rows_of_one_store_collide() -> None:
    """Rows of neighbours that overlap."""
    x, out = torch.arange(32.0), torch.zeros(64)
    execute(overlapping_rows_kernel, (1,), {"x": x, "out": out, "stride": 8, "R": 4, "N": 8})
    assert torch.equal(out[:32], x)
    with pytest.raises(RaceError, match="two lanes"):
        execute(overlapping_rows_kernel, (1,), {"x": x, "out": out, "stride": 7, "R": 4, "N": 8})


@settings(max_examples=150, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    strides=st.lists(st.integers(0, 30), min_size=4, max_size=4),
)
def test_gaps_are_the_offsets_that_no_element_has(shape: list[int], strides: list[int]) -> None:
    """For any view: nested, dense, expanded, or overlapping itself."""
    extents, steps = tuple(shape), tuple(strides[: len(shape)])
    span = span_of(extents, steps)
    storage = torch.zeros(span)
    storage.as_strided(extents, steps).fill_(1)
    gaps = gaps_of(extents, steps)
    offsets = torch.arange(span).numpy()
    held = torch.ones(span) if gaps is None else shared(gaps.holds(offsets)).float()
    assert torch.equal(held, storage)
    for width in (1, 2, 3):
        if gaps is None or span < width:
            continue
        rows = gaps.holds_rows(offsets[: span - width + 1], width)
        whole = storage.unfold(0, width, 1).all(1).numpy()
        assert not (rows & ~whole).any()


@settings(max_examples=100, deadline=None)
@given(
    accesses=st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["reads", "writes", "atomics"]), st.integers(0, 12), st.integers(1, 3)
        ),
        max_size=10,
    )
)
def test_race_is_found_exactly_when_there_is_one(accesses: list[tuple[int, str, int, int]]) -> None:
    """Against the definition, for random accesses of four programs."""
    monitor = RaceMonitor(["x"], [0], [4])
    for program in range(4):
        for who, kind, start, width in accesses:
            if who == program:
                row = (np.array([start]), width) if width > 1 else np.array([start])
                getattr(monitor.logs[0], kind).append(row)
        monitor.end_program((program, 0, 0))
    touched = [(who, kind, start + lane) for who, kind, start, width in accesses for lane in range(width)]
    expected = any(
        first[0] != second[0]
        and first[2] == second[2]
        and ("writes" in {first[1], second[1]} or {first[1], second[1]} == {"reads", "atomics"})
        for first in touched
        for second in touched
    )
    assert (monitor.race() is not None) == expected
