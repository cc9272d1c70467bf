# SPDX-License-Identifier: MIT OR Apache-2.0
"""Chunks of the delta rule: any split of a prompt, hard gates, keys that are alike, narrow dtypes, far offsets."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.delta_inputs import (
    KERNELS,
    NAN,
    SHAPES,
    SLACK,
    SMALL,
    TWINS,
    Batch,
    Pair,
    Shape,
    bits,
    check_close,
    each_decay,
    each_pair,
    each_rule,
    gpu_tiles,
    make_batch,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Rule = Callable[..., Tensor]

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
INFINITY = float("inf")
CHUNK = 64

pytestmark = pytest.mark.usefixtures("poisoned_empty")
WRAP = 2**31


@given(pieces=st.lists(st.tuples(st.integers(1, 70), st.booleans()), min_size=1, max_size=6), seed=st.integers(0, 99))
@settings(max_examples=15, derandomize=True, deadline=None)
@each_pair
@each_decay
def test_prompt_in_any_pieces_is_the_prompt_whole(
    pair: Pair,
    per_channel: bool,
    pieces: list[tuple[int, bool]],
    seed: int,
) -> None:
    """Wherever it is split, and whichever way each piece is taken."""
    shape = Shape(1, 2, 8, 6)
    whole = make_batch([sum(rows for rows, _ in pieces)], shape, per_channel=per_channel, seed=seed)
    split = whole.copy()
    output = whole.advance(pair.chunked)
    (slot,), found, first = whole.slots, list[torch.Tensor](), 0
    for rows, in_chunks in pieces:
        piece = split.of_rows(slice(first, first + rows), slot)
        found.append(piece.advance(pair.chunked if in_chunks else pair.recurrent))
        first += rows
    check_close(torch.cat(found), output.double(), SLACK)
    check_close(split.states[slot], whole.states[slot].double(), SLACK)


_HARD = {
    "-1600": [-1600.0],
    "-inf": [-INFINITY],
    "0": [0.0],
    "-1600 or 0": [-1600.0, 0.0],
    "mixed": [-1600.0, -INFINITY, 0.0, -0.0, -1e-6, -0.02, -0.5, -3.0, -90.0, -104.0, -3e38],
    "mild but for one": [-INFINITY, *[-0.02] * 30],
}


def _set_hard_gates(batch: Batch, gates: str) -> None:
    choice = torch.tensor(_HARD[gates])
    picked = torch.randint(len(choice), batch.log_decay.shape, generator=torch.Generator().manual_seed(1))
    batch.log_decay.copy_(choice[picked])


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("gates", _HARD)
@pytest.mark.parametrize("shape", SHAPES[1:], ids=lambda shape: "x".join(map(str, shape)))
@each_rule
@each_decay
def test_hard_gates_are_exact(rule: Rule, per_channel: bool, shape: Shape, gates: str) -> None:
    """Decays that forget all, nothing or anything between, mixed in one chunk, each channel its own."""
    batch = make_batch([130, 3], shape, per_channel=per_channel)
    _set_hard_gates(batch, gates)
    exact = batch.exact()
    batch.check(batch.advance(rule), exact)


@pytest.mark.usefixtures("tile_sizes")
@each_rule
def test_strong_channel_decays_overflow_nothing(rule: Rule) -> None:
    """Sums of 64 rows reach -2000 in one channel and -0.06 in its neighbour: no exponential of either's opposite."""
    batch = make_batch([129], SHAPES[2], per_channel=True)
    rates = torch.logspace(-3, 1.5, batch.shape.key_dim)
    batch.log_decay.copy_(-rates.expand_as(batch.log_decay))
    assert batch.log_decay[:CHUNK].sum(0).min() < -1000
    exact = batch.exact()
    batch.check(batch.advance(rule), exact)


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("beta", [1.0, 0.999])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@each_rule
@each_decay
def test_keys_that_are_all_alike(rule: Rule, per_channel: bool, shape: Shape, beta: float) -> None:
    """Without decay, powers of A grow to 10^17 before they cancel; the rule replaces one value again and again."""
    batch = make_batch([130], shape, per_channel=per_channel)
    batch.key.copy_(batch.key[:1].clone().expand_as(batch.key))
    batch.log_decay.zero_()
    batch.beta.fill_(beta)
    exact = batch.exact()
    batch.check(batch.advance(rule), exact, 1e-4)


class Near(NamedTuple):
    """Exact values, and how far from them the computed ones may be."""

    value: Tensor
    error: Tensor

    def times(self, other: Near) -> Near:
        """The matrix product of both, computed exactly."""
        error = self.error @ (other.value.abs() + other.error) + self.value.abs() @ other.error
        return Near(self.value @ other.value, error)

    def plus(self, other: Near) -> Near:
        return Near(self.value + other.value, self.error + other.error)

    def scaled(self, factor: Tensor | float) -> Near:
        return Near(self.value * factor, self.error * abs(factor))

    @property
    def mT(self) -> Near:  # noqa: N802 - torch's name
        return Near(self.value.mT, self.error.mT)

    def rounded(self, dtype: torch.dtype) -> Near:
        """The same rounded: by half a unit in the last place of what was computed, and half of the least number."""
        info = torch.finfo(dtype)
        most = (self.value.abs() + self.error) * info.eps / 2 + info.smallest_normal * info.eps / 2
        return Near(self.value, self.error + most)


def _exactly(value: Tensor) -> Near:
    return Near(value, torch.zeros_like(value))


def _rounded(value: Tensor, dtype: torch.dtype) -> Near:
    return _exactly(value).rounded(dtype)


def _inverse(lower: Near) -> Near:
    """Return `(I + A)^-1`; if `A` is off by D, the inverse is off by at most `(I - |T| D)^-1 |T| D |T|`."""
    linalg: Any = torch.linalg  # torch leaves the types open
    identity = torch.eye(lower.value.shape[-1], dtype=torch.float64)
    inverse: Tensor = linalg.inv(identity + lower.value)
    moved = inverse.abs() @ lower.error
    series: Tensor = linalg.inv(identity - moved)
    return Near(inverse, series @ moved @ inverse.abs())


def _chunk(batch: Batch, rows: slice, state: Near) -> tuple[Near, Near]:
    """Follow the roundings of one chunk; tensors are `[heads, rows, width]`, the state `[heads, key_dim, value_dim]`.

    Rounded to the dtype of the inputs are T, what it is multiplied with, its products w and u, the scores, and what the
    state is multiplied with or gains: that state, the corrected values, and where channels have decays of their own the
    decayed queries and keys. The products of those are of rounded rows too, if the rows lie in different subchunks.
    """
    dtype, group = batch.query.dtype, batch.shape.heads // batch.shape.key_heads
    info = torch.finfo(dtype)
    q, k = (one[rows].double().repeat_interleave(group, 1).transpose(0, 1) for one in (batch.query, batch.key))
    v, beta = batch.value[rows].double().transpose(0, 1), batch.beta[rows].double().t()[..., None]
    per_channel = batch.log_decay.dim() == batch.query.dim()
    g = batch.log_decay[rows].double().reshape(q.shape[1], batch.shape.heads, -1).transpose(0, 1)
    after = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril(-1)
    between = torch.where(after[:, :, None], g[:, :, None], 0.0).cumsum(1).exp()
    since, until = g.cumsum(1).exp(), between[:, -1]

    def products(left: Tensor) -> Near:
        each = left[:, :, None] * k[:, None] * between
        off = torch.zeros_like(each[..., 0])
        if per_channel:
            # both are rounded, after decays of at most 1
            off = each.abs().sum(-1) * info.eps * (1 + info.eps)
            off += (left.abs().sum(-1)[:, :, None] + k.abs().sum(-1)[:, None]) * info.smallest_normal * info.eps
        return Near(each.sum(-1).tril(), off.tril())

    def narrow(value: Tensor) -> Near:
        return _rounded(value, dtype) if per_channel else _exactly(value)

    lower = products(k).scaled(beta)
    corrections = _inverse(Near(lower.value.tril(-1), lower.error.tril(-1))).rounded(dtype)
    w = corrections.times(_rounded(k * since * beta, dtype)).rounded(dtype)
    u = corrections.times(_rounded(v * beta, dtype)).rounded(dtype)
    held = state.rounded(dtype)
    corrected = u.plus(w.times(held).scaled(-1.0))
    scores = products(q).scaled(batch.scale).rounded(dtype)
    mixed = narrow(q * since * batch.scale).times(held).plus(scores.times(corrected.rounded(dtype)))
    carried = (corrected if per_channel else corrected.scaled(until)).rounded(dtype)
    gained = narrow(k * until if per_channel else k).mT.times(carried)
    return mixed.rounded(dtype), state.scaled(since[:, -1, :, None]).plus(gained)


def _followed(batch: Batch) -> tuple[Near, Near]:
    """Follow the roundings of a batch of one sequence; return its rows and its state as the rule does."""
    (rows,), (slot,) = batch.lengths, batch.slots
    state = _exactly(batch.states[slot].double().mT)
    found = list[Near]()
    for first in range(0, rows, CHUNK):
        mixed, state = _chunk(batch, slice(first, min(first + CHUNK, rows)), state)
        found.append(mixed)
    return Near(*(torch.cat(parts, dim=1).transpose(0, 1) for parts in zip(*found, strict=True))), state.mT


def _check_within_roundings(found: Tensor, near: Near) -> float:
    """Require errors to be within the bound and the arithmetic of fp32; return the largest share of a bound."""
    bound = near.error + SLACK * near.value.abs().max()
    error = (found.double() - near.value).abs()
    assert bool((error <= bound).all()), f"an error is {(error / bound).max():.3g} of its bound"
    return float((error / bound).max())


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("shape", [SMALL, SHAPES[2], Shape(1, 2, 80, 72)], ids=lambda shape: "x".join(map(str, shape)))
@each_decay
def test_narrow_dtypes_err_by_their_roundings(shape: Shape, per_channel: bool, dtype: torch.dtype) -> None:
    """Every number of a chunked pass is as near as the roundings on its way allow, followed one by one in float64."""
    batch = make_batch([150], shape, per_channel=per_channel, dtype=dtype)
    output, state = _followed(batch)
    exact = batch.exact()
    torch.testing.assert_close(output.value, exact.output, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state.value, exact.states[0], rtol=1e-9, atol=1e-9)
    found = batch.advance(KERNELS.chunked)
    assert found.dtype == dtype
    shares = [_check_within_roundings(found, output), _check_within_roundings(batch.states[batch.slots[0]], state)]
    # a bound that nothing comes near would show nothing
    assert min(shares) > 0.05, shares


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("rule", [KERNELS.recurrent, *TWINS], ids=["kernel", "twin", "chunked twin"])
@pytest.mark.parametrize("dtype", [BF16, FP16])
@each_decay
def test_other_ways_round_the_result_alone(rule: Rule, per_channel: bool, dtype: torch.dtype) -> None:
    """They compute in fp32, so that the state is as exact as of fp32 inputs."""
    batch = make_batch([90, 1], per_channel=per_channel, dtype=dtype)
    exact = batch.exact()
    output = batch.advance(rule)
    _check_within_roundings(output, _rounded(exact.output, dtype))
    for index, slot, _ in batch.live():
        check_close(batch.states[slot], exact.states[index], SLACK)


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("gates", _HARD)
@pytest.mark.parametrize("dtype", [BF16, FP16])
@each_decay
def test_narrow_dtypes_err_by_their_roundings_on_hard_gates(gates: str, per_channel: bool, dtype: torch.dtype) -> None:
    """And where keys are all alike.

    The bound cannot see that roundings cancel: where little is forgotten it may exceed the numbers. On the way from an
    input to a result lie no more than ten roundings, each of half a unit in the last place of numbers no larger than
    the largest result; that many are allowed of the largest magnitude.
    """
    batch = make_batch([130], SHAPES[1], per_channel=per_channel, dtype=dtype)
    _set_hard_gates(batch, gates)
    batch.key[64:].copy_(batch.key[:1].clone().expand_as(batch.key[64:]))
    output, state = _followed(batch)
    found = batch.advance(KERNELS.chunked)
    _check_within_roundings(found, output)
    _check_within_roundings(batch.states[batch.slots[0]], state)
    check_close(found, output.value, 5 * torch.finfo(dtype).eps)
    check_close(batch.states[batch.slots[0]], state.value, 5 * torch.finfo(dtype).eps)


@each_decay
def test_heads_too_wide_for_a_gpu_go_through_the_recurrence(per_channel: bool) -> None:
    """To the bit, dummy slots and all."""
    with gpu_tiles():
        for shape, dtype in ((Shape(1, 1, 65, 8), FP32), (Shape(1, 1, 8, 65), FP32), (Shape(1, 1, 129, 8), BF16)):
            batch = make_batch([3, 9, 2], shape, per_channel=per_channel, dtype=dtype, slots=(1, 0, 3), dummy_slot=3)
            other = batch.copy()
            assert torch.equal(batch.advance(KERNELS.chunked), other.advance(KERNELS.recurrent))
            assert torch.equal(bits(batch.pool), bits(other.pool))


@pytest.fixture(scope="module")
def expanse() -> Tensor:
    """An fp32 tensor of 2^31 elements and some, of which only touched pages take memory."""
    return torch.empty_strided((WRAP + 2**20,), (1,), dtype=FP32)


@each_rule
@each_decay
def test_states_on_both_sides_of_the_wrap(rule: Rule, expanse: Tensor, per_channel: bool) -> None:
    """A slot that begins past 2^31 elements is found where the strides say."""
    near = make_batch([3, 66, 1], slots=(0, 4, 3), per_channel=per_channel)
    far = near.with_pool(expanse.as_strided(near.pool.shape, (WRAP // 4, 1)))
    far.pool.copy_(near.pool)
    assert torch.equal(far.advance(rule), near.advance(rule))
    assert torch.equal(bits(far.pool.contiguous()), bits(near.pool))


@pytest.mark.parametrize("axis", ["slots", "rows"])
@each_pair
def test_intermediates_on_both_sides_of_the_wrap(pair: Pair, expanse: Tensor, axis: str) -> None:
    """So are the states after each row."""
    batch = make_batch([3, 2, 1], slots=(0, 4, 3))
    other = batch.copy()
    dense = torch.full((5, 3, *batch.states.shape[1:]), NAN)
    size = batch.states[0].numel()
    strides = (WRAP // 4, size) if axis == "slots" else (size, WRAP // 2)
    far = expanse.as_strided(dense.shape, (*strides, *batch.states.stride()[1:]))
    far.copy_(dense)
    output = batch.advance(pair.recurrent, intermediates=dense)
    assert torch.equal(other.advance(pair.recurrent, intermediates=far), output)
    assert torch.equal(bits(far.contiguous()), bits(dense))
    assert not dense[4, :2].isnan().any()
    assert not dense[0].isnan().any()


@pytest.mark.parametrize("axis", ["rows", "heads"])
@each_rule
@each_decay
def test_inputs_on_both_sides_of_the_wrap(rule: Rule, expanse: Tensor, per_channel: bool, axis: str) -> None:
    """A row, or a head, that begins past 2^31 elements."""
    near = make_batch([3], Shape(3, 3, 16, 16), per_channel=per_channel)
    expected = near.copy().advance(rule)
    for name, one in zip(("query", "key", "value", "log_decay", "beta"), near.inputs, strict=True):
        is_wide = one.dim() == near.query.dim()
        if axis == "heads" and not is_wide:
            continue  # its heads are neighbours
        strides = (16, WRAP // 2, 1) if axis == "heads" else (WRAP // 2, 16, 1) if is_wide else (WRAP // 2, 1)
        far = expanse.as_strided(one.shape, strides)
        far.copy_(one)
        batch = dataclasses.replace(near.copy(), **{name: far})
        assert torch.equal(batch.advance(rule), expected), name
