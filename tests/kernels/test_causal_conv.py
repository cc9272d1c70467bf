# SPDX-License-Identifier: MIT OR Apache-2.0
"""The causal convolution against its definition in float64: rows, states, intermediates, and nothing else touched."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import LaunchError, MemoryFaultError, RaceError
from metrale_caps.kernels import causal_conv as launcher
from metrale_caps.kernels.graphs import capture
from metrale_caps.kernels.naive import causal_conv as twin
from tests.kernels.batches import check_same_roundings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    Convolve = Callable[..., Tensor]

pytestmark = pytest.mark.usefixtures("poisoned_empty")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
SENTINEL = 5.0
DECODE = (1,) * 5
VERIFY = (4, 1, 0, 3)
RAGGED = (37, 1, 0, 131, 2)


@pytest.fixture(scope="module", params=["triton", "naive"])
def convolve(request: pytest.FixtureRequest) -> Convolve:
    """Kernel and twin in turn."""
    return launcher.causal_conv if request.param == "triton" else twin.causal_conv


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def _with_guards(shape: tuple[int, ...], dtype: torch.dtype, fill: float) -> tuple[Tensor, Tensor]:
    """A view of this shape whose axes all lie inside wider ones, and what holds it."""
    whole = torch.full([size + 3 for size in shape], fill, dtype=dtype)
    return whole[tuple(slice(1, 1 + size) for size in shape)], whole


@dataclass(frozen=True)
class Batch:
    """A packed batch whose slots and guards hold NaN wherever no owned sequence has its state."""

    x: Tensor
    weight: Tensor
    states: Tensor
    pool: Tensor
    slots: tuple[int, ...]
    counts: tuple[int, ...]
    dummy_slot: int | None

    def convolve(self, convolve: Convolve, *, more_rows: int = 0, intermediates: Tensor | None = None) -> Tensor:
        """Run the operation on the batch."""
        return convolve(
            self.x,
            self.weight,
            self.states,
            torch.tensor(self.slots, dtype=torch.int32),
            torch.tensor([0, *self.counts]).cumsum(0, dtype=torch.int32),
            max_rows=max(self.counts) + more_rows,
            dummy_slot=self.dummy_slot,
            intermediates=intermediates,
        )

    def sequences(self) -> list[tuple[int, Tensor, bool]]:
        """Slot, rows and whether it belongs to somebody, of each sequence."""
        parts = _split(self.x, self.counts)
        return [(slot, rows, slot not in {-1, self.dummy_slot}) for slot, rows in zip(self.slots, parts, strict=True)]


def _split(rows: Tensor, counts: Sequence[int]) -> list[Tensor]:
    return [rows[first:last] for first, last in pairwise(accumulate(counts, initial=0))]


def make_batch(
    counts: Sequence[int],
    *,
    width: int = 4,
    window: int = 3,
    channels: int = 24,
    dtype: torch.dtype = FP32,
    slots: Sequence[int] | None = None,
    dummy_slot: int | None = None,
    seed: int = 0,
) -> Batch:
    """Return a batch with random inputs and states."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(counts) + 2, generator=generator)
    chosen = tuple(int(slot) for slot in order[: len(counts)]) if slots is None else tuple(slots)
    x, _ = _with_guards((sum(counts), channels), dtype, float("nan"))
    weight, _ = _with_guards((width, channels), dtype, float("nan"))
    states, pool = _with_guards((len(counts) + 2, window, channels), dtype, float("nan"))
    weight.copy_(torch.randn(weight.shape, generator=generator))
    batch = Batch(x, weight, states, pool, chosen, tuple(counts), dummy_slot)
    for slot, rows, is_owned in batch.sequences():
        if is_owned:
            rows.copy_(torch.randn(rows.shape, generator=generator) * 2)
            states[slot] = torch.randn(window, channels, generator=generator).to(dtype)
    return batch


def _check_rows(output: Tensor, inputs: Tensor, weight: Tensor) -> None:
    """Require `output` to be the convolution of `[width - 1 + rows, channels]`, rounded once."""
    width, rows = weight.shape[0], output.shape[0]
    wide, taps = inputs.double(), weight.double()
    products = torch.stack([wide[tap : tap + rows] * taps[tap] for tap in range(width)])
    mixed = products.sum(0)
    exact = mixed * torch.sigmoid(mixed)
    unit = torch.finfo(output.dtype).eps / 2
    # SiLU widens an error of its argument by a tenth at most
    summed = 1.1 * (width + 1) * 2.0**-24 * products.abs().sum(0)
    bound = exact.abs() * (unit + 1e-6) + summed * (1 + unit) + (2.0**-25 if output.dtype == FP16 else 0)
    assert bool(((output.double() - exact).abs() <= bound).all())


def _check(batch: Batch, output: Tensor, before: Tensor, kept: Tensor | None = None) -> None:
    """Check rows, states and intermediates of a batch whose pool held `before`, and that nothing else changed."""
    window, width = batch.states.shape[1], batch.weight.shape[0]
    expected = before.clone()
    inner = expected[1 : 1 + batch.states.shape[0], 1 : 1 + window, 1 : 1 + batch.x.shape[1]]
    expected_kept = None if kept is None else torch.full_like(kept, SENTINEL)
    for (slot, rows, is_owned), got in zip(batch.sequences(), _split(output, batch.counts), strict=True):
        if not is_owned:
            assert torch.equal(_bits(got), torch.zeros_like(_bits(got)))
            continue
        inputs = torch.cat([inner[slot], rows])
        _check_rows(got, inputs[window - width + 1 :], batch.weight)
        inner[slot] = inputs[len(rows) :]
        if expected_kept is not None:
            for row in range(len(rows)):
                expected_kept[slot, row] = inputs[row + 1 : row + 1 + window]
    assert torch.equal(_bits(batch.pool), _bits(expected))
    if kept is not None and expected_kept is not None:
        assert torch.equal(_bits(kept), _bits(expected_kept))


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("counts", [DECODE, VERIFY, RAGGED], ids=["decode", "verify", "ragged"])
@pytest.mark.parametrize(
    ("width", "window", "channels", "dtype"),
    [(4, 3, 40, BF16), (4, 4, 33, FP32), (2, 1, 300, FP16), (3, 9, 7, BF16), (8, 7, 64, FP32), (8, 16, 1, BF16)],
)
def test_rows_states_and_intermediates(
    convolve: Convolve, counts: tuple[int, ...], width: int, window: int, channels: int, dtype: torch.dtype
) -> None:
    """Rows are exact but for one rounding, states are bits of inputs, and all else in the pool stays as it was."""
    batch = make_batch(counts, width=width, window=window, channels=channels, dtype=dtype)
    before, given = batch.pool.clone(), batch.x.clone()
    kept, _ = _with_guards((len(counts) + 2, max(counts) + 1, window, channels), dtype, SENTINEL)
    _check(batch, batch.convolve(convolve, more_rows=1, intermediates=kept), before, kept)
    assert torch.equal(batch.x, given)
    # the next step begins where this one ended, and keeps no intermediates
    before = batch.pool.clone()
    _check(batch, batch.convolve(convolve), before)


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("dummy_slot", [None, 2])
def test_padding_is_zero_and_touches_no_state(
    convolve: Convolve, dtype: torch.dtype, rows: int, dummy_slot: int | None
) -> None:
    """Sequences that belong to nobody may share a slot and hold NaN; the dummy is a slot like others if it is none."""
    nobody = -1 if dummy_slot is None else dummy_slot
    slots = (4, nobody, 0 if dummy_slot is None else 1, nobody, -1)
    batch = make_batch((rows,) * 5, dtype=dtype, slots=slots, dummy_slot=dummy_slot)
    before = batch.pool.clone()
    kept, _ = _with_guards((7, rows, 3, 24), dtype, SENTINEL)
    _check(batch, batch.convolve(convolve, intermediates=kept), before, kept)


@pytest.mark.usefixtures("tile_sizes")
@given(data=st.data(), rows=st.integers(1, 90))
@settings(max_examples=25, derandomize=True, deadline=None)
def test_any_chunks_of_a_prompt_give_its_bits(convolve: Convolve, data: st.DataObject, rows: int) -> None:
    """Rows and state are the same, to the bit, however a prompt is cut, and whoever shares the steps."""
    dtype = data.draw(st.sampled_from([FP32, BF16]))
    width, window = data.draw(st.sampled_from([(4, 3), (4, 5), (2, 1), (7, 6)]))
    cuts = data.draw(st.lists(st.integers(0, rows), max_size=4).map(sorted))
    whole = make_batch((rows,), width=width, window=window, dtype=dtype, slots=(1,), seed=rows)
    state, slot = whole.states[1].clone(), 1
    expected = whole.convolve(convolve)
    found: list[Tensor] = []
    for first, last in pairwise([0, *cuts, rows]):
        others = data.draw(st.lists(st.integers(0, 20), max_size=2))
        counts = (*others, last - first)
        step = make_batch(counts, width=width, window=window, dtype=dtype, seed=first + 1)
        step.weight.copy_(whole.weight)
        slot = step.slots[-1]
        step.states[slot] = state
        step.x[sum(others) :] = whole.x[first:last]
        if max(counts):
            found.append(step.convolve(convolve)[sum(others) :])
        state = step.states[slot].clone()
    assert torch.equal(_bits(torch.cat(found)), _bits(expected))
    assert torch.equal(_bits(state), _bits(whole.states[1]))


@given(
    counts=st.lists(st.integers(0, 70), min_size=1, max_size=5).filter(any),
    more_rows=st.integers(0, 70),
)
@settings(max_examples=20, derandomize=True, deadline=None)
def test_kernel_and_twin_agree(counts: list[int], more_rows: int) -> None:
    """For any rows and any bound of them they have the same bits but at ties, and the same states."""
    first, second = (make_batch(counts, dtype=BF16) for _ in range(2))
    check_same_roundings(first.convolve(launcher.causal_conv, more_rows=more_rows), second.convolve(twin.causal_conv))
    assert torch.equal(_bits(first.pool), _bits(second.pool))


@pytest.mark.parametrize(
    ("rows", "after"),
    [([4.0], [2.0, 3.0, 4.0]), ([4.0, 5.0], [3.0, 4.0, 5.0]), ([4.0, 5.0, 6.0, 7.0], [5.0, 6.0, 7.0])],
)
def test_window_of_three_shifts(convolve: Convolve, rows: list[float], after: list[float]) -> None:
    """A state [1, 2, 3] and one row 4 make [2, 3, 4]; the newest tap is the last, and each tap sees its own input."""
    x = torch.tensor(rows)[:, None]
    states = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 3, 1)
    weight = torch.tensor([1000.0, 100.0, 10.0, 1.0])[:, None]
    starts = torch.tensor([0, len(rows)], dtype=torch.int32)
    output = convolve(x, weight, states, torch.zeros(1, dtype=torch.int32), starts, max_rows=len(rows), dummy_slot=None)
    assert states.flatten().tolist() == after  # pyright: ignore[reportUnknownMemberType]
    # SiLU leaves large numbers as they are
    assert output.flatten().tolist() == [1234.0, 2345.0, 3456.0, 4567.0][: len(rows)]  # pyright: ignore[reportUnknownMemberType]


def test_sums_that_overflow_an_exponential(convolve: Convolve) -> None:
    """Far negative sums give zero, far positive ones themselves, and neither gives NaN."""
    x, states = torch.tensor([[-1e4, 1e4, -200.0, 0.0]]), torch.zeros(1, 1, 4)
    weight = torch.tensor([[0.0], [1.0]]).expand(2, 4).contiguous()
    slots, starts = torch.zeros(1, dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    output = convolve(x, weight, states, slots, starts, max_rows=1, dummy_slot=None)
    assert output.tolist() == [[0.0, 1e4, 0.0, 0.0]]  # pyright: ignore[reportUnknownMemberType]


@pytest.mark.parametrize("rows", [1, 70])
def test_replays_advance_states_and_captures_do_not(convolve: Convolve, rows: int) -> None:
    """A captured step convolves with the inputs, and for the slots, that are there when it is replayed."""
    batch, same = (make_batch((rows, rows), dtype=BF16) for _ in range(2))
    starts, slots = torch.tensor([0, rows, 2 * rows], dtype=torch.int32), torch.full((2,), -1, dtype=torch.int32)
    before = batch.pool.clone()
    step = capture(
        lambda: convolve(batch.x, batch.weight, batch.states, slots, starts, max_rows=rows, dummy_slot=None),
        torch.device("cpu"),
    )
    assert torch.equal(_bits(batch.pool), _bits(before))
    slots.copy_(torch.tensor(batch.slots))
    for factor in (1.0, -0.5):
        for one in (batch, same):
            one.x.mul_(factor)
        step.replay()
        assert torch.equal(_bits(step.output), _bits(same.convolve(convolve)))
        assert torch.equal(_bits(batch.pool), _bits(same.pool))


@pytest.mark.parametrize("rows", [2, 40])
def test_slots_and_rows_on_both_sides_of_the_wrap(convolve: Convolve, rows: int) -> None:
    """States, intermediates and inputs that lie more than 2^31 elements apart are found, and nothing is copied."""
    resident = _resident_bytes()
    # the second sequence begins past the wrap, or some of its rows lie so far from its first
    far_row, far_slot, channels = 2**31 // max(2, rows - 2) + 64, 2**30 + 48, 16
    x = torch.empty_strided((2 + rows, channels), (far_row, 1), dtype=BF16)
    states = torch.empty_strided((3, 3, channels), (far_slot, channels, 1), dtype=BF16)
    kept = torch.empty_strided((3, rows, 3, channels), (far_slot, 3 * channels, channels, 1), dtype=BF16)
    dense = make_batch((2, rows), channels=channels, dtype=BF16, slots=(0, 2))
    x.copy_(dense.x)
    states[::2] = dense.states[:3:2]
    kept[::2] = SENTINEL
    dense_kept = torch.full((4, rows, 3, channels), SENTINEL, dtype=BF16)
    expected = dense.convolve(convolve, intermediates=dense_kept)
    far = dataclasses.replace(dense, x=x, states=states)
    assert torch.equal(far.convolve(convolve, intermediates=kept), expected)
    assert torch.equal(states[::2], dense.states[:3:2])
    assert torch.equal(kept[::2], dense_kept[:3:2])
    assert _resident_bytes() - resident < 64 * 2**20


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_sequences_without_rows_keep_their_states(convolve: Convolve) -> None:
    """As does a step without rows, and one without sequences."""
    batch = make_batch((0, 0))
    before = batch.pool.clone()
    assert batch.convolve(convolve).shape == (0, 24)
    assert make_batch((0,)).convolve(convolve, more_rows=3).shape == (0, 24)
    nothing = torch.zeros(0, dtype=torch.int32)
    starts = torch.zeros(1, dtype=torch.int32)
    convolve(batch.x, batch.weight, batch.states, nothing, starts, max_rows=1, dummy_slot=None)
    assert torch.equal(_bits(batch.pool), _bits(before))


def test_slots_that_are_not_a_sequences_own_are_found() -> None:
    """The executor names a state that two sequences share, and a slot outside the pool."""
    with pytest.raises(RaceError, match="'states'"):
        make_batch((1, 1), slots=(1, 1)).convolve(launcher.causal_conv)
    batch = make_batch((1, 1), slots=(1, 2))
    outside = torch.tensor([1, 9], dtype=torch.int32)
    starts = torch.tensor([0, 1, 2], dtype=torch.int32)
    with pytest.raises(MemoryFaultError, match="reads outside 'states'"):
        launcher.causal_conv(batch.x, batch.weight, batch.states, outside, starts, max_rows=1, dummy_slot=None)


X, WEIGHT, STATES = torch.zeros(3, 8), torch.zeros(4, 8), torch.zeros(5, 3, 8)
SLOTS, STARTS = torch.zeros(2, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": X[0]}, r"x must be \[rows, channels\]"),
        ({"x": X.double()}, "x must be .* but is torch.float64"),
        ({"x": torch.zeros(8, 3).T}, "the last axis of x must be contiguous"),
        ({"weight": WEIGHT[:, :7]}, "channels is 7 rather than 8"),
        ({"weight": WEIGHT.int()}, "weight must be .* but is torch.int32"),
        ({"weight": torch.zeros(8, 4).T}, "the last axis of weight must be contiguous"),
        ({"weight": torch.zeros(1, 8)}, "weight has 1 taps, but a convolution has 2 to 8 here"),
        ({"weight": torch.zeros(9, 8)}, "weight has 9 taps"),
        ({"states": STATES[:, 1:]}, "a window of 2 inputs, but 4 taps need 3 to 16"),
        ({"states": torch.zeros(5, 17, 8)}, "a window of 17 inputs"),
        ({"states": STATES.bfloat16()}, "states must be torch.float32, but is torch.bfloat16"),
        ({"states": torch.zeros(5, 8, 3).mT}, "the last axis of states must be contiguous"),
        ({"sequence_slots": SLOTS.long()}, "sequence_slots must be torch.int32"),
        ({"row_starts": STARTS[:2]}, "sequences_and_one is 2 rather than 3"),
        ({"row_starts": STARTS.long()}, "row_starts must be torch.int32"),
        ({"max_rows": 0}, "max_rows is 0, but x has 3 rows"),
        ({"intermediates": torch.zeros(4, 2, 3, 8)}, "slots is 4 rather than 5"),
        ({"intermediates": torch.zeros(5, 2, 4, 8)}, "window is 4 rather than 3"),
        ({"intermediates": torch.zeros(5, 2, 3, 8).half()}, "intermediates must be torch.float32"),
        ({"intermediates": torch.zeros(5, 1, 3, 8)}, "room for 1 rows of a sequence, but max_rows is 2"),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, Any], message: str) -> None:
    """The error says which argument, and what was expected of it."""
    given: dict[str, Any] = {
        "x": X,
        "weight": WEIGHT,
        "states": STATES,
        "sequence_slots": SLOTS,
        "row_starts": STARTS,
        "max_rows": 2,
        "dummy_slot": None,
    }
    with pytest.raises(LaunchError, match=message):
        launcher.causal_conv(**(given | changed))
