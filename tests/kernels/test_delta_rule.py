# SPDX-License-Identifier: MIT OR Apache-2.0
"""The delta rule against its recurrence in float64: packed sequences, verify rows, nobody's rows, errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import LaunchError, RaceError
from metrale_caps.kernels.graphs import capture
from tests.kernels.delta_inputs import (
    KERNELS,
    NAN,
    NOBODY,
    PAIRS,
    RULES,
    SHAPES,
    SMALL,
    Batch,
    Pair,
    Shape,
    bits,
    each_decay,
    each_pair,
    each_rule,
    make_batch,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Rule = Callable[..., Tensor]

pytestmark = pytest.mark.usefixtures("poisoned_empty")

LENGTHS = (1, 3, 63, 64, 65, 95, 127, 129)
RAGGED = (5, 0, 70, 1, 0, 64, 17)
STEPS = 8


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@each_pair
@each_decay
def test_prefill_and_steps_keep_the_state_exact(pair: Pair, shape: Shape, per_channel: bool) -> None:
    """Prompts of every length around a chunk's, then steps: all rows and the last state are the recurrence's."""
    batch = make_batch(LENGTHS, shape, per_channel=per_channel)
    exact = batch.exact()
    batch.check(batch.advance(pair.chunked), exact)
    for step in range(STEPS):
        decode = make_batch([1] * len(LENGTHS), shape, per_channel=per_channel, slots=batch.slots, seed=step + 1)
        decode = decode.with_pool(batch.pool)
        exact = decode.exact(exact.states)
        decode.check(decode.advance(pair.recurrent), exact)


@pytest.mark.usefixtures("tile_sizes")
@each_rule
@each_decay
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_sequence_is_what_it_is_alone(rule: Rule, per_channel: bool, dtype: torch.dtype) -> None:
    """To the bit; no other byte of the pool changes, no input changes, and nothing beside a strided row is read."""
    before = make_batch(RAGGED, per_channel=per_channel, dtype=dtype)
    batch = before.copy()
    inputs = [one.clone() for one in batch.inputs]
    output = batch.advance(rule)
    batch.check_only_own_states_changed(before)
    assert all(torch.equal(*pair) for pair in zip(inputs, batch.inputs, strict=True))
    assert not output.isnan().any()
    for _, slot, rows in before.live():
        alone = before.of_rows(rows, slot).copy()
        assert torch.equal(alone.advance(rule), output[rows])
        assert torch.equal(alone.states[slot], batch.states[slot])


@pytest.mark.usefixtures("tile_sizes")
@each_rule
@each_decay
def test_loose_bound_of_rows_changes_nothing(rule: Rule, per_channel: bool) -> None:
    """A graph is captured with an upper bound; programs without rows do nothing."""
    tight = make_batch(RAGGED, per_channel=per_channel)
    loose = tight.copy()
    assert torch.equal(tight.advance(rule), loose.advance(rule, more_rows=200))
    assert torch.equal(bits(tight.pool), bits(loose.pool))


def _rows_of_slots(storage: Tensor, batch: Batch) -> Tensor:
    """View a storage that is larger on every axis as `[slots, 4, heads, value_dim, key_dim]`."""
    slots, *inner = batch.states.shape
    return storage[:slots, :4, 3 : 3 + batch.states[0].numel()].view(slots, 4, *inner)


@pytest.mark.usefixtures("tile_sizes")
@each_pair
@each_decay
@pytest.mark.parametrize("shape", SHAPES[:2], ids=lambda shape: "x".join(map(str, shape)))
def test_verify_is_so_many_single_steps(pair: Pair, per_channel: bool, shape: Shape) -> None:
    """To the bit, and the state after each row is kept where it belongs; cells of nobody are not touched."""
    lengths, dummy = (4, 1, 0, 3, 4, 2), 6
    batch = make_batch(lengths, shape, per_channel=per_channel, slots=(3, 0, 5, 7, dummy, NOBODY), dummy_slot=dummy)
    before, single = batch.copy(), batch.copy()
    storage = torch.full((batch.states.shape[0] + 1, 5, batch.states[0].numel() + 7), NAN)
    expected = storage.clone()
    output = batch.advance(pair.recurrent, intermediates=_rows_of_slots(storage, batch))
    for _, slot, rows in single.live():
        for index, row in enumerate(range(rows.start, rows.stop)):
            step = single.of_rows(slice(row, row + 1), slot)
            assert torch.equal(step.advance(pair.recurrent)[0], output[row])
            _rows_of_slots(expected, batch)[slot, index] = step.states[slot]
    assert torch.equal(bits(batch.pool), bits(single.pool))
    assert torch.equal(bits(storage), bits(expected))
    batch.check_only_own_states_changed(before)
    plain = before.copy()
    assert torch.equal(plain.advance(pair.recurrent), output)


@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5), seed=st.integers(0, 99))
@settings(max_examples=10, derandomize=True, deadline=None)
@each_pair
def test_any_rows_of_any_sequences(pair: Pair, lengths: list[int], seed: int) -> None:
    """Both ways of either implementation give the exact rows for any number of rows, none included."""
    for per_channel in (False, True):
        for rule in pair:
            batch = make_batch(lengths, Shape(1, 2, 5, 3), per_channel=per_channel, seed=seed)
            exact = batch.exact()
            batch.check(batch.advance(rule), exact)


@pytest.mark.usefixtures("tile_sizes")
@each_rule
@each_decay
@pytest.mark.parametrize("poison", [False, True], ids=["numbers", "nan"])
def test_rows_of_nobody_are_zeros_and_touch_nothing(rule: Rule, per_channel: bool, poison: bool) -> None:
    """Slot -1 and a dummy slot that several sequences share, whatever their rows hold; the others do not notice."""
    dummy = 4
    slots = (NOBODY, 2, dummy, dummy, 0, NOBODY, dummy)
    before = make_batch((3, 9, 1, 66, 2, 65, 0), per_channel=per_channel, slots=slots, dummy_slot=dummy)
    owned = torch.zeros(before.query.shape[0], dtype=torch.bool)
    for _, _, rows in before.live():
        owned[rows] = True
    if poison:
        for one in before.inputs:
            one[~owned] = NAN
    batch = before.copy()
    output = batch.advance(rule)
    assert not output[~owned].any()
    batch.check_only_own_states_changed(before)
    for _, slot, rows in before.live():
        alone = before.of_rows(rows, slot).copy()
        assert torch.equal(alone.advance(rule), output[rows])
        assert torch.equal(alone.states[slot], batch.states[slot])


@each_rule
def test_without_a_dummy_slot_every_slot_is_somebodys(rule: Rule) -> None:
    """The slot that was a dummy before holds a state like others."""
    batch = make_batch((3, 2), slots=(3, 2))
    exact = batch.exact()
    batch.check(batch.advance(rule), exact)


@pytest.mark.parametrize(("index", "name"), list(enumerate(RULES)))
def test_first_call_for_a_shape_advances_once(index: int, name: str) -> None:
    """The state after it is the exact one, and the same as after a second call on a restored copy."""
    # nothing else here has these widths, so that whatever a first call does is done here
    batch = make_batch((3, 1), Shape(1, 3, 17, 21 + index), seed=3)
    restored, exact = batch.copy(), batch.exact()
    output = batch.advance(RULES[name])
    batch.check(output, exact)
    assert torch.equal(restored.advance(RULES[name]), output)
    assert torch.equal(bits(restored.pool), bits(batch.pool))


@each_rule
@each_decay
def test_capture_advances_nothing_and_each_replay_once(rule: Rule, per_channel: bool) -> None:
    """A recorded step does what the call does, on the state that lies there by then."""
    batch = make_batch((2, 1), per_channel=per_channel)
    before, eager = batch.copy(), batch.copy()
    slots, starts = torch.tensor(batch.slots, dtype=torch.int32), batch.row_starts
    states = batch.states
    step = capture(
        lambda: rule(*batch.inputs, states, slots, starts, scale=batch.scale, max_rows=2),
        torch.device("cpu"),
    )
    assert torch.equal(bits(batch.pool), bits(before.pool))
    for _ in range(3):
        step.replay()
        assert torch.equal(step.output, eager.advance(rule))
        assert torch.equal(bits(batch.pool), bits(eager.pool))


@each_rule
@pytest.mark.parametrize("lengths", [(), (0,), (0, 0, 0)])
@each_decay
def test_no_rows_give_no_rows(rule: Rule, lengths: tuple[int, ...], per_channel: bool) -> None:
    """Without sequences, and with sequences without rows, nothing runs and no state changes."""
    batch = make_batch(lengths, per_channel=per_channel)
    before = batch.copy()
    assert batch.advance(rule).shape == (0, SMALL.heads, SMALL.value_dim)
    assert batch.advance(rule, more_rows=70).shape == (0, SMALL.heads, SMALL.value_dim)
    batch.check_only_own_states_changed(before)


@each_rule
def test_pool_without_slots_serves_no_sequences(rule: Rule) -> None:
    """And nobody's, which need none."""
    batch = make_batch((2, 1), slots=(NOBODY, NOBODY))
    batch = batch.with_pool(batch.pool[:0])
    assert not batch.advance(rule).any()


@each_pair
def test_intermediates_without_slots_take_nothing(pair: Pair) -> None:
    """As the pool that they belong to."""
    batch = make_batch((2, 1), slots=(NOBODY, NOBODY))
    batch = batch.with_pool(batch.pool[:0])
    kept = torch.zeros(0, 2, SMALL.heads, SMALL.value_dim, SMALL.key_dim)
    assert not batch.advance(pair.recurrent, intermediates=kept).any()


def _arguments(**changed: object) -> dict[str, Any]:
    batch = make_batch((2, 1))
    return {
        "query": batch.query,
        "key": batch.key,
        "value": batch.value,
        "log_decay": batch.log_decay,
        "beta": batch.beta,
        "states": batch.states,
        "sequence_slots": torch.tensor(batch.slots, dtype=torch.int32),
        "row_starts": batch.row_starts,
        "scale": 1.0,
        "max_rows": 2,
    } | changed


_FAULTS: dict[str, tuple[dict[str, object], str]] = {
    "query axes": ({"query": torch.zeros(3, 32)}, r"query must be \[rows, key_heads, key_dim\], but has the shape"),
    "key width": ({"key": torch.zeros(3, 2, 8)}, r"key must be .* key_dim is 8 rather than 16"),
    "key heads": ({"key": torch.zeros(3, 4, 16)}, r"key must be .* key_heads is 4 rather than 2"),
    "value rows": ({"value": torch.zeros(2, 4, 24)}, r"value must be .* rows is 2 rather than 3"),
    "heads": ({"value": torch.zeros(3, 5, 24)}, "5 value heads cannot share 2 key heads evenly"),
    "no key heads": (
        {"query": torch.zeros(3, 0, 16), "key": torch.zeros(3, 0, 16)},
        "4 value heads cannot share 0 key heads evenly",
    ),
    "beta heads": ({"beta": torch.zeros(3, 2)}, r"beta must be .* heads is 2 rather than 4"),
    "decay heads": ({"log_decay": torch.zeros(3, 2)}, r"log_decay must be .* heads is 2 rather than 4"),
    "decay channels": ({"log_decay": torch.zeros(3, 4, 24)}, r"log_decay must be .* key_dim is 24 rather than 16"),
    "state order": ({"states": torch.zeros(4, 4, 16, 24)}, r"states must be .* value_dim is 16 rather than 24"),
    "slots axes": ({"sequence_slots": torch.zeros(2, 1, dtype=torch.int32)}, r"sequence_slots must be \[sequences\]"),
    "starts": (
        {"row_starts": torch.zeros(2, dtype=torch.int32)},
        r"row_starts must be .* sequences_and_one is 2 rather than 3",
    ),
    "query dtype": ({"query": torch.zeros(3, 2, 16).double()}, "query must be .*, but is torch.float64"),
    "key dtype": ({"key": torch.zeros(3, 2, 16).half()}, "key must be torch.float32, but is torch.float16"),
    "value dtype": ({"value": torch.zeros(3, 4, 24).bfloat16()}, "value must be torch.float32, but is torch.bfloat16"),
    "decay dtype": ({"log_decay": torch.zeros(3, 4).half()}, "log_decay must be torch.float32, but is torch.float16"),
    "beta dtype": ({"beta": torch.zeros(3, 4).half()}, "beta must be torch.float32, but is torch.float16"),
    "states dtype": ({"states": torch.zeros(4, 4, 24, 16).half()}, "states must be torch.float32, but is"),
    "slots dtype": ({"sequence_slots": torch.zeros(2).long()}, "sequence_slots must be torch.int32, but is"),
    "starts dtype": ({"row_starts": torch.zeros(3).long()}, "row_starts must be torch.int32, but is torch.int64"),
    "query stride": ({"query": torch.zeros(3, 2, 32)[..., ::2]}, "the last axis of query must be contiguous"),
    "key stride": ({"key": torch.zeros(3, 2, 32)[..., ::2]}, "the last axis of key must be contiguous"),
    "value stride": ({"value": torch.zeros(3, 4, 48)[..., ::2]}, "the last axis of value must be contiguous"),
    "decay stride": ({"log_decay": torch.zeros(3, 8)[:, ::2]}, "the last axis of log_decay must be contiguous"),
    "beta stride": ({"beta": torch.zeros(4, 3).t()}, "the last axis of beta must be contiguous"),
    "slots stride": (
        {"sequence_slots": torch.zeros(4, dtype=torch.int32)[::2]},
        "the last axis of sequence_slots must be contiguous",
    ),
    "starts stride": (
        {"row_starts": torch.zeros(6, dtype=torch.int32)[::2]},
        "the last axis of row_starts must be contiguous",
    ),
    "states stride": ({"states": torch.zeros(4, 4, 16, 24).mT}, "a slot of states must be contiguous"),
}


@each_rule
@pytest.mark.parametrize("fault", _FAULTS)
def test_argument_that_does_not_fit_is_named(rule: Rule, fault: str) -> None:
    """Kernels and twins refuse with the same words."""
    changed, message = _FAULTS[fault]
    with pytest.raises(LaunchError, match=message):
        rule(**_arguments(**changed))


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (torch.zeros(4, 2, 4, 16, 24), r"intermediates must be .* value_dim is 16 rather than 24"),
        (torch.zeros(3, 2, 4, 24, 16), r"intermediates must be .* slots is 3 rather than 4"),
        (torch.zeros(4, 2, 4, 24, 16).half(), "intermediates must be torch.float32, but is torch.float16"),
        (torch.zeros(4, 2, 4, 16, 24).mT, "a row of intermediates must be contiguous"),
        (torch.zeros(4, 2, 8, 24, 16)[:, :, ::2], "a row of intermediates must be contiguous"),
        (torch.zeros(4, 1, 4, 24, 16), "a sequence may have 2 rows, but intermediates holds the states of 1"),
    ],
)
def test_intermediates_that_do_not_fit_are_named(pair: Pair, kept: Tensor, message: str) -> None:
    """Shape, dtype, strides and the number of rows."""
    with pytest.raises(LaunchError, match=message):
        pair.recurrent(**_arguments(intermediates=kept))


@pytest.mark.parametrize("rule", KERNELS, ids=["recurrent", "chunked"])
def test_two_sequences_of_one_slot_are_an_error(rule: Rule) -> None:
    """On a GPU the state would be either one's; the executor says so."""
    batch = make_batch((2, 1), slots=(1, 1))
    with pytest.raises(RaceError, match="'states'"):
        batch.advance(rule)
