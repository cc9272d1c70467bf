# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rotation of queries and keys as a product of complex numbers, and which cells of the caches it writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import MemoryFaultError, RaceError
from metrale_caps.kernels.rotary import RotaryTable
from tests.kernels.batches import Cache, Heads, check_same_roundings, make_cache

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.kernels.operations import Operations

pytestmark = pytest.mark.usefixtures("poisoned_empty")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
POSITIONS = 1024
EPS = 1e-5
BLOCKS = 4
GUARD = 77.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a call depends on but for the number of rows."""

    heads: Heads
    rotary_dim: int
    block_size: int = 16
    dtype: torch.dtype = FP32
    normed: bool = False


class Step(NamedTuple):
    """Inputs of one call."""

    qkv: Tensor
    positions: Tensor
    slots: Tensor
    cache: Cache
    norms: tuple[Tensor, Tensor] | None


def _frequencies(rotary_dim: int) -> Tensor:
    return 10000.0 ** -(torch.arange(0, rotary_dim, 2).double() / rotary_dim)


def _step(shape: Shape, rows: int, *, guards: int = 1, skipped: int = 0) -> Step:
    """Random rows at random positions for random free slots; every `skipped`-th row is not to be written."""
    generator = torch.Generator().manual_seed(rows)
    query_heads, kv_heads, width, _ = shape.heads
    columns = (query_heads + 2 * kv_heads) * width
    packed = torch.full((rows + 1, columns + 2 * guards * width), float("nan"), dtype=shape.dtype)
    qkv = packed[:rows, guards * width : guards * width + columns]
    qkv.copy_(torch.randn(rows, columns, generator=generator))
    slots = torch.randperm(max(BLOCKS * shape.block_size, rows), generator=generator)[:rows]
    if skipped:
        slots[::skipped] = -1
    norms = None
    if shape.normed:
        norms = (torch.randn(width, generator=generator).to(shape.dtype), torch.ones(width, dtype=shape.dtype) / 3)
    blocks = -(-max(BLOCKS * shape.block_size, rows) // shape.block_size)
    cache = make_cache(blocks, shape.block_size, shape.heads, shape.dtype, fill=GUARD, guards=guards)
    return Step(qkv, torch.randint(POSITIONS, (rows,), generator=generator), slots, cache, norms)


def _run(operations: Operations, shape: Shape, step: Step) -> Tensor:
    query_norm, key_norm = step.norms or (None, None)
    return operations.rope_write_kv(
        step.qkv,
        RotaryTable.build(_frequencies(shape.rotary_dim), POSITIONS),
        step.positions,
        step.slots,
        step.cache.key,
        step.cache.value,
        query_heads=shape.heads.query,
        key_value_heads=shape.heads.key_value,
        query_norm=query_norm,
        key_norm=key_norm,
        eps=EPS,
    )


def _heads(shape: Shape, step: Step) -> tuple[Tensor, Tensor, Tensor]:
    query_heads, kv_heads, width, _ = shape.heads
    packed = step.qkv.view(-1, query_heads + 2 * kv_heads, width)
    return packed[:, :query_heads], packed[:, query_heads:-kv_heads], packed[:, -kv_heads:]


def _exact(heads: Tensor, norm: Tensor | None, positions: Tensor, rotary_dim: int) -> tuple[Tensor, Tensor]:
    """The rotation as a complex product, and the sum of the magnitudes it adds up, in float64."""
    wide = heads.double()
    if norm is not None:
        wide = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * norm.double()
    half = rotary_dim // 2
    first, second, rest = wide[..., :half], wide[..., half:rotary_dim], wide[..., rotary_dim:]
    angle = positions.double()[:, None, None] * _frequencies(rotary_dim)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    magnitude = first.abs() + second.abs()
    return torch.cat([turned.real, turned.imag, rest], -1), torch.cat([magnitude, magnitude, rest.abs()], -1)


def _check(output: Tensor, exact: Tensor, magnitude: Tensor, *, normed: bool) -> None:
    """Require the error that roundings explain.

    The result is rounded to the dtype once. With a norm, the normalised head and its product with the weight are
    rounded before. Angles up to 1023 radians are fp32, so cosines and sines carry 1023 * 2^-24 at most.
    """
    unit = torch.finfo(output.dtype).eps / 2
    bound = unit * exact.abs() + (2 * unit * magnitude if normed else 0)
    bound = bound * (1 + 3 * unit) + (2 * POSITIONS * 2.0**-24 + 1e-6) * magnitude
    if output.dtype == FP16:
        bound += 2.0**-24  # below 2^-14 numbers of this type are as coarse as that
    assert bool(((output.double() - exact).abs() <= bound).all())


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize(
    "shape",
    [
        Shape(heads=Heads(9, 3, 64, 64), rotary_dim=64, dtype=BF16),
        Shape(heads=Heads(28, 4, 128, 128), rotary_dim=128, dtype=BF16),
        Shape(heads=Heads(24, 1, 80, 80), rotary_dim=80, block_size=4, dtype=FP16),
        Shape(heads=Heads(8, 8, 96, 96), rotary_dim=48, block_size=12),
        Shape(heads=Heads(8, 1, 192, 192), rotary_dim=192, dtype=BF16, normed=True),
        Shape(heads=Heads(4, 2, 256, 256), rotary_dim=64, dtype=BF16, normed=True),
        Shape(heads=Heads(3, 1, 24, 24), rotary_dim=12, block_size=5, normed=True),
        Shape(heads=Heads(3, 1, 16, 16), rotary_dim=2, dtype=FP16, normed=True),
    ],
    ids=lambda shape: f"{'x'.join(map(str, shape.heads[:3]))}-{shape.rotary_dim}",
)
@pytest.mark.parametrize("rows", [1, 17])
def test_every_shape_of_heads(kernels: Operations, twins: Operations, shape: Shape, rows: int) -> None:
    """Kernel and twin rotate as complex numbers multiply, pass further channels through, and store values as is."""
    for operations in (kernels, twins):
        step = _step(shape, rows)
        query, key, value = _heads(shape, step)
        rotated = _run(operations, shape, step)
        assert rotated.shape == query.shape
        assert rotated.dtype == shape.dtype
        cell = (step.slots // shape.block_size, step.slots % shape.block_size)
        norms = step.norms or (None, None)
        _check(rotated, *_exact(query, norms[0], step.positions, shape.rotary_dim), normed=shape.normed)
        _check(step.cache.key[cell], *_exact(key, norms[1], step.positions, shape.rotary_dim), normed=shape.normed)
        assert torch.equal(step.cache.value[cell], value)


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("guards", [0, 1])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 32, 33])
def test_cells_of_no_slot_keep_their_bits(each: Operations, rows: int, guards: int) -> None:
    """Only the named cells change: not the last one for slot -1, nor what lies between heads, tokens and blocks."""
    shape = Shape(heads=Heads(3, 1, 24, 24), rotary_dim=24, block_size=12, dtype=BF16)
    step = _step(shape, rows, guards=guards, skipped=3)
    query = _run(each, shape, step)
    assert not query.isnan().any()
    kept = step.slots[step.slots >= 0]
    assert len(kept) == rows - -(-rows // 3)
    for part in (step.cache.key, step.cache.value):
        part[kept // 12, kept % 12] = GUARD
    for storage in step.cache.storages:
        assert torch.equal(storage, torch.full_like(storage, GUARD))


@given(rows=st.integers(1, 70), skipped=st.integers(0, 3), normed=st.booleans())
@settings(max_examples=15, derandomize=True, deadline=None)
def test_kernel_and_twin_agree_for_any_number_of_rows(
    kernels: Operations, twins: Operations, rows: int, skipped: int, *, normed: bool
) -> None:
    """Queries and both caches have the same bits but at ties, so both round at the same places."""
    shape = Shape(heads=Heads(3, 1, 16, 16), rotary_dim=8, block_size=4, dtype=BF16, normed=normed)
    steps = [_step(shape, rows, skipped=skipped) for _ in range(2)]
    queries = [_run(operations, shape, step) for operations, step in zip((kernels, twins), steps, strict=True)]
    check_same_roundings(*queries)
    for ours, theirs in zip(steps[0].cache.storages, steps[1].cache.storages, strict=True):
        check_same_roundings(ours, theirs)


def test_second_call_on_restored_caches_equals_first(each: Operations) -> None:
    """The first call for a new shape writes once, as every later one does."""
    shape = Shape(heads=Heads(2, 2, 20, 20), rotary_dim=20, block_size=7)
    first, second = _step(shape, 9), _step(shape, 9)
    assert torch.equal(_run(each, shape, first), _run(each, shape, second))
    for one, other in zip(first.cache.storages, second.cache.storages, strict=True):
        assert torch.equal(one, other)


def test_no_rows_write_nothing(each: Operations) -> None:
    """An empty step returns an empty tensor."""
    shape = Shape(heads=Heads(3, 1, 16, 16), rotary_dim=16)
    step = _step(shape, 0)
    assert _run(each, shape, step).shape == (0, 3, 16)
    for storage in step.cache.storages:
        assert torch.equal(storage, torch.full_like(storage, GUARD))


@pytest.mark.parametrize("argument", ["key_cache", "value_cache"])
def test_slot_past_the_pool_is_a_fault(kernels: Operations, argument: str) -> None:
    """A store to a block that the pool does not have names the cache, and is not done."""
    shape = Shape(heads=Heads(3, 1, 16, 16), rotary_dim=16)
    step = _step(shape, 2)
    step.slots[1] = BLOCKS * 16
    larger = make_cache(BLOCKS + 1, 16, shape.heads, FP32, fill=GUARD)
    cache = step.cache._replace(value=larger.value) if argument == "key_cache" else step.cache._replace(key=larger.key)
    with pytest.raises(MemoryFaultError, match="outside") as caught:
        _run(kernels, shape, step._replace(cache=cache))
    assert caught.value.argument == argument


def test_position_past_the_table_is_a_fault(kernels: Operations) -> None:
    """A position for which no rotation was computed names the table."""
    shape = Shape(heads=Heads(3, 1, 16, 16), rotary_dim=16)
    step = _step(shape, 2)
    step.positions[0] = POSITIONS
    with pytest.raises(MemoryFaultError) as caught:
        _run(kernels, shape, step)
    assert caught.value.argument == "cos"


@pytest.mark.usefixtures("tile_sizes")
def test_two_rows_of_one_slot_are_a_race(kernels: Operations) -> None:
    """Rows that would write different keys and values to one cell are found, within a program and between programs."""
    shape = Shape(heads=Heads(3, 1, 16, 16), rotary_dim=16)
    step = _step(shape, 3)
    step.slots[2] = step.slots[0]
    with pytest.raises(RaceError) as caught:
        _run(kernels, shape, step)
    assert caught.value.argument in {"key_cache", "value_cache"}
