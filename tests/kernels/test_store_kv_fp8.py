# SPDX-License-Identifier: MIT OR Apache-2.0
"""Stores into FP8 pages: the nearest code of every number, found by search, and which cells are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import MemoryFaultError, RaceError
from metrale_caps.kernels.graphs import capture
from metrale_caps.kernels.host import host_integers
from tests.kernels.batches import Cache, Heads, make_cache

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.kernels.operations import Operations

pytestmark = pytest.mark.usefixtures("poisoned_empty")

FP32, BF16, FP16, FP8 = torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn
BITS = {FP32: torch.int32, BF16: torch.int16, FP16: torch.int16}
GUARD = 80.0
NAN = 0x7F
INF = float("inf")

MAGNITUDES = torch.tensor(
    [fraction * 2.0**-9 for fraction in range(8)]
    + [(8 + fraction) * 2.0 ** (exponent - 10) for exponent in range(1, 16) for fraction in range(8)],
    dtype=torch.float64,
)[:NAN]
"""What the codes 0 .. 0x7E stand for, from the type's definition."""
TIES = (MAGNITUDES[1:] + MAGNITUDES[:-1]) / 2


class Step(NamedTuple):
    """Inputs of one call."""

    keys: Tensor
    values: Tensor
    slots: Tensor
    cache: Cache
    scales: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a call depends on but for the number of rows; widths of queries do not matter."""

    heads: Heads
    block_size: int = 16
    dtype: torch.dtype = FP32
    scales: tuple[float, float] = (1.0, 1.0)


def _numbers(rows: int, heads: int, width: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Random bits, so that any exponent, infinities and NaN occur, between numbers near 1; heads lie apart."""
    size = dtype.itemsize * 8
    bits = torch.randint(-(2 ** (size - 1)), 2 ** (size - 1), (rows, heads, width), generator=generator)
    wild = bits.to(BITS[dtype]).view(dtype)
    near = (torch.randn(rows, heads, width, generator=generator) * 30).to(dtype)
    packed = torch.full((rows, heads + 1, width + 4), float("nan"), dtype=dtype)
    x = packed[:, :heads, :width]
    x.copy_(torch.where(torch.rand(x.shape, generator=generator) < 0.5, wild, near))
    return x


def _step(shape: Shape, rows: int, *, guards: int = 1, skipped: int = 0) -> Step:
    """Random rows for random free slots; every `skipped`-th row is NaN and not to be written."""
    generator = torch.Generator().manual_seed(rows)
    heads = shape.heads
    keys = _numbers(rows, heads.key_value, heads.key_width, shape.dtype, generator)
    values = _numbers(rows, heads.key_value, heads.value_width, shape.dtype, generator)
    blocks = rows // shape.block_size + 2
    slots = torch.randperm(blocks * shape.block_size, generator=generator)[:rows]
    if skipped:
        slots[::skipped] = -1
        keys[::skipped], values[::skipped] = float("nan"), float("nan")
    cache = make_cache(blocks, shape.block_size, heads, FP8, fill=GUARD, guards=guards)
    return Step(keys, values, slots, cache, (torch.tensor(shape.scales[:1]), torch.tensor(shape.scales[1:])))


def _run(operations: Operations, step: Step) -> None:
    operations.store_kv_fp8(step.keys, step.values, step.slots, step.cache.key, step.cache.value, *step.scales)


def _nearest_codes(x: Tensor, scale: Tensor) -> Tensor:
    """The code whose number is nearest to `x` times the reciprocal of `scale`, the even one of two."""
    scaled = (x.float() * (1 / scale)).double()
    below = torch.searchsorted(TIES, scaled.abs(), right=True)
    is_tie = (below > 0) & (scaled.abs() == TIES[below - 1])
    codes = below - (is_tie & (below % 2 == 1)).long() + 128 * scaled.signbit().long()
    return torch.where(scaled.isnan(), NAN, codes).to(torch.uint8)


def _check(shape: Shape, step: Step) -> None:
    """Require the nearest code in each named cell, and nothing written elsewhere."""
    kept = step.slots >= 0
    cell = (step.slots[kept] // shape.block_size, step.slots[kept] % shape.block_size)
    for x, cache, scale in zip((step.keys, step.values), (step.cache.key, step.cache.value), step.scales, strict=True):
        assert torch.equal(cache.view(torch.uint8)[cell], _nearest_codes(x[kept], scale))
        cache[cell] = GUARD
    for storage in step.cache.storages:
        assert torch.equal(storage.float(), torch.full(storage.shape, GUARD))


def _stored(operations: Operations, x: Tensor, scale: float = 1.0) -> Tensor:
    """The codes of numbers in one row."""
    cache = torch.zeros(1, 1, 1, x.numel(), dtype=FP8)
    scales = (torch.tensor([scale]), torch.tensor([1.0]))
    row = x.view(1, 1, -1)
    operations.store_kv_fp8(row, row, torch.tensor([0]), cache, cache.clone(), *scales)
    return cache.view(torch.uint8).flatten()


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize(
    "shape",
    [
        Shape(heads=Heads(0, 3, 64, 64), dtype=BF16, scales=(0.0371, 2.0)),
        Shape(heads=Heads(0, 8, 128, 128), dtype=BF16, scales=(1e-12, 1e12)),
        Shape(heads=Heads(0, 1, 80, 24), block_size=4, dtype=FP16, scales=(3.0, 0.7)),
        Shape(heads=Heads(0, 5, 192, 128), block_size=12, scales=(0.1, 1e30)),
        Shape(heads=Heads(0, 2, 1, 2), block_size=1, scales=(1.0, 300.0)),
    ],
    ids=lambda shape: "x".join(map(str, shape.heads[1:])),
)
@pytest.mark.parametrize("rows", [1, 17])
def test_every_shape_of_heads(each: Operations, shape: Shape, rows: int) -> None:
    """The cells of the rows hold the nearest codes, for numbers of every exponent; no other cell changes."""
    step = _step(shape, rows)
    _run(each, step)
    _check(shape, step)


@given(
    rows=st.integers(0, 70),
    heads=st.builds(Heads, st.just(0), st.integers(1, 5), st.integers(1, 40), st.integers(1, 40)),
    block_size=st.integers(1, 20),
    dtype=st.sampled_from([FP32, BF16, FP16]),
    scales=st.tuples(st.floats(2.0**-40, 2.0**40, width=32), st.floats(2.0**-10, 2.0**10, width=32)),
    guards=st.sampled_from([0, 1]),
    skipped=st.integers(0, 3),
)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_any_rows_heads_and_scales(
    kernels: Operations,
    twins: Operations,
    rows: int,
    heads: Heads,
    block_size: int,
    dtype: torch.dtype,
    scales: tuple[float, float],
    guards: int,
    skipped: int,
) -> None:
    """Kernel and twin write the same bits, those of the nearest codes, and rows of slot -1 may be NaN."""
    shape = Shape(heads=heads, block_size=block_size, dtype=dtype, scales=scales)
    for operations in (kernels, twins):
        step = _step(shape, rows, guards=guards, skipped=skipped)
        _run(operations, step)
        _check(shape, step)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
def test_every_code_comes_back(each: Operations, dtype: torch.dtype) -> None:
    """What a code stands for is stored as that code; a NaN as the one without a sign."""
    codes = torch.arange(256).to(torch.uint8)
    codes[255] = NAN
    assert torch.equal(_stored(each, codes.view(FP8).float().to(dtype)), codes)


def test_numbers_around_every_tie(each: Operations) -> None:
    """Ties go to the even code, subnormals included, and the next fp32 number on either side to its own."""
    ties = TIES.float()
    assert torch.equal(_stored(each, ties), (torch.arange(126) + torch.arange(126) % 2).to(torch.uint8))
    assert torch.equal(_stored(each, -ties), _stored(each, ties) + 128)
    assert torch.equal(_stored(each, ties.nextafter(torch.tensor(0.0))), torch.arange(126).to(torch.uint8))
    assert torch.equal(_stored(each, ties.nextafter(torch.tensor(INF))), torch.arange(1, 127).to(torch.uint8))


def test_codes_are_those_of_torch(each: Operations) -> None:
    """Where torch's own conversion does not overflow, it gives the same bits."""
    x = torch.cat([torch.linspace(-448, 448, 5001), torch.randn(5000) * 2.0**-7])
    assert torch.equal(_stored(each, x), x.to(FP8).view(torch.uint8))


@pytest.mark.parametrize(
    ("number", "scale", "code"),
    [
        (448.0, 1.0, 0x7E),
        (464.1, 1.0, 0x7E),
        (-1e30, 1.0, 0xFE),
        (INF, 1.0, 0x7E),
        (-INF, 2.0, 0xFE),
        (3e38, 1e-12, 0x7E),  # the quotient is infinite
        (float("nan"), 1.0, NAN),
        (-float("nan"), 1.0, NAN),
        (0.0, 3.0, 0x00),
        (-0.0, 3.0, 0x80),
        (-1e-45, 1.0, 0x80),
        (2.0**-10, 1.0, 0x00),  # half of the smallest code
        (3 * 2.0**-10, 1.0, 0x02),
        (7.5 * 2.0**-9, 1.0, 0x08),  # from the subnormals up to the smallest normal
        (896.0, 2.0, 0x7E),
    ],
)
def test_number_at_an_end_of_the_range(each: Operations, number: float, scale: float, code: int) -> None:
    """Infinities and large numbers saturate, NaN stays NaN, zero keeps its sign."""
    assert host_integers(_stored(each, torch.tensor([number]), scale)) == [code]


def test_keys_and_values_as_halves_of_packed_rows(each: Operations) -> None:
    """Views of one packed tensor and of one pool, as the engine has them, are not copied."""
    packed = torch.randn(3, 8, 16).to(BF16)
    pool = torch.zeros(2, 2, 4, 2, 16, dtype=FP8)
    slots = torch.tensor([7, -1, 2])
    one = torch.tensor([0.5])
    keys, values = pool.unbind(1)
    each.store_kv_fp8(packed[:, 4:6], packed[:, 6:], slots, keys, values, one, one)
    expected = torch.zeros(2, 2, 4, 2, 16)
    for row, (block, offset) in ((0, (1, 3)), (2, (0, 2))):
        expected[block, 0, offset] = (packed[row, 4:6].float() / 0.5).to(FP8).float()
        expected[block, 1, offset] = (packed[row, 6:].float() / 0.5).to(FP8).float()
    assert torch.equal(pool.float(), expected)


def test_captured_step_uses_the_scales_of_the_moment(each: Operations) -> None:
    """A capture writes nothing and notes the caches; each replay reads rows, slots and scales anew."""
    shape = Shape(heads=Heads(0, 2, 16, 24), block_size=4)
    step = _step(shape, 5)

    def body() -> Tensor:
        _run(each, step)
        return step.cache.key

    graph = capture(body, torch.device("cpu"))
    assert graph.calls == 1
    held = {buffer.storage for buffer in graph.baked}
    everything = (step.keys, step.values, step.slots, *step.scales, *step.cache.storages)
    assert {tensor.untyped_storage().data_ptr() for tensor in everything} <= held
    for storage in step.cache.storages:
        assert torch.equal(storage.float(), torch.full(storage.shape, GUARD))
    for factor in (1.0, 0.3):
        step.scales[0].fill_(factor)
        step.scales[1].fill_(2 * factor)
        step.keys.normal_()
        step.slots[2] = -1
        graph.replay()
        _check(shape, step)


@pytest.mark.parametrize("argument", ["key_cache", "value_cache"])
def test_slot_past_the_pool_is_a_fault(kernels: Operations, argument: str) -> None:
    """A store to a block that the pool does not have names the cache, and is not done."""
    shape = Shape(heads=Heads(0, 1, 16, 16))
    step = _step(shape, 2)
    blocks = step.cache.key.shape[0]
    step.slots[1] = blocks * 16
    larger = make_cache(blocks + 1, 16, shape.heads, FP8, fill=GUARD)
    cache = step.cache._replace(value=larger.value) if argument == "key_cache" else step.cache._replace(key=larger.key)
    with pytest.raises(MemoryFaultError, match="outside") as caught:
        _run(kernels, step._replace(cache=cache))
    assert caught.value.argument == argument


@pytest.mark.usefixtures("tile_sizes")
def test_two_rows_of_one_slot_are_a_race(kernels: Operations) -> None:
    """Rows that would write different codes to one cell are found, within a program and between programs."""
    step = _step(Shape(heads=Heads(0, 1, 16, 16)), 3)
    step.keys[2], step.values[2] = -step.keys[0].nan_to_num(1.0), -step.values[0].nan_to_num(1.0)
    step.slots[2] = step.slots[0]
    with pytest.raises(RaceError) as caught:
        _run(kernels, step)
    assert caught.value.argument in {"key_cache", "value_cache"}
