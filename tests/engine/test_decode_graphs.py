# SPDX-License-Identifier: MIT OR Apache-2.0
"""A step replayed from its graph is the step that would have run eagerly, to the bit, and happens exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from metrale_caps.engine import Engine, EngineOptions
from metrale_caps.errors import StaleGraphError
from metrale_caps.state.decode_buffers import DecodeBuffers
from tests.engine.steps import TEXT, Steps, make_decoder, with_layer
from tests.engine.wrapped import Wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from metrale_caps import DecodeContext, PrefillContext

_PROMPTS = [[5, 17, 99, 42, 8], [33], [74, 19, 50] * 6]


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overwrite a step's buffers before each step's inputs are written to them."""
    fill: Callable[..., None] = DecodeBuffers.fill

    def poison_and_fill(buffers: DecodeBuffers, sequences: Any) -> None:
        buffers.poison()
        fill(buffers, sequences)

    monkeypatch.setattr(DecodeBuffers, "fill", poison_and_fill)


def _slots_at(step: int, count: int) -> list[int]:
    """Which slots decode at a step, in which order: rows change places, and now and then a slot sits out."""
    slots = list(range(count))
    if step % 7 in {3, 4}:
        slots.reverse()
    if step % 9 == 5 and count > 1:
        slots.pop()
    return slots


@pytest.mark.parametrize("kernels", ["naive", "triton"])
@pytest.mark.parametrize("attention", [{}, {"splits": 4}, {"splits": 3, "window": 9}], ids=["", "splits", "window"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.usefixtures("poisoned")
def test_replay_equals_eager_to_the_bit(tiny_llama: Any, kernels: str, attention: dict[str, int], count: int) -> None:
    """Forty steps over page, split and window borders; sequences end, and others take over their slots and blocks."""
    replayed = Steps(make_decoder(tiny_llama, kernels, **attention))
    eager = Steps(make_decoder(tiny_llama, kernels, **attention), decode_graphs=False)
    lengths = [13, 1, 30, 16, 7]
    for steps in (replayed, eager):
        for slot in range(count):
            steps.start(slot, TEXT[slot : slot + lengths[slot]])
    for step in range(40):
        if step in {11, 27}:
            for steps in (replayed, eager):
                steps.finish(step % count)
                steps.start(step % count, TEXT[step : step + 3 + step % 5])
        slots = _slots_at(step, count)
        tokens = [TEXT[50 + 5 * step + slot] for slot in slots]
        logits, _ = replayed.decode(slots, tokens)
        expected, _ = eager.decode(slots, tokens)
        assert torch.equal(logits, expected), step
    for ours, theirs in zip(replayed.pages(), eager.pages(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0, equal_nan=True)
    assert replayed.counters.graph_captures + replayed.counters.graph_replays == 40
    assert replayed.counters.graph_captures <= 4
    assert eager.counters.graph_captures == 0
    assert eager.counters.eager_decode_steps == {"the option decode_graphs is False": 40}


def test_graph_captured_at_one_length_holds_at_another(tiny_llama: Any, reference_logits: Any) -> None:
    """A graph of 17 tokens that is replayed at 40 sees all 40."""
    steps = Steps(make_decoder(tiny_llama))
    sequence = steps.start(0, TEXT[:16])
    logits, _ = steps.decode([0], [TEXT[16]])
    assert steps.counters.graph_captures == 1
    for at in range(17, 40):
        logits, routes = steps.decode([0], [TEXT[at]])
        assert "replayed" in str(routes[0])
    torch.testing.assert_close(logits[0], reference_logits(tiny_llama, sequence.tokens)[-1], atol=1e-4, rtol=0)
    assert steps.counters.graph_captures == 1


class SyncsOnHost(Wrapped):
    """Reads a length on the host and says nothing of it."""

    calls = 0

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        hidden = super().decode(hidden, context)
        self.calls += 1
        return hidden * float(int(context.lengths[0]) > 0)


@pytest.mark.parametrize("position", [0, 1])
def test_step_whose_capture_fails_happens_once_and_stays_eager(tiny_llama: Any, position: int) -> None:
    """The capture closes cleanly; the step has the right values, and later ones of that key are not tried again."""
    decoder, layer = with_layer(make_decoder(tiny_llama), position, SyncsOnHost)
    steps, plain = Steps(decoder), Steps(make_decoder(tiny_llama), decode_graphs=False)
    for each in (steps, plain):
        each.start(0, TEXT[:9])
    for at in range(5):
        logits, routes = steps.decode([0], [TEXT[at]])
        assert torch.equal(logits, plain.decode([0], [TEXT[at]])[0])
        assert "eager" in routes[0].route
        (reason,) = routes[0].reasons
        assert f"capture failed: CaptureError: in layer {position}," in str(reason)
        assert "to the host" in str(reason)
    assert layer.calls == 5  # what the capture moved is put back
    assert steps.counters.capture_failures == 1
    assert steps.counters.graph_captures == 0
    for ours, theirs in zip(steps.pages(), plain.pages(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0, equal_nan=True)


def test_dropping_all_graphs_tries_failed_captures_again(tiny_llama: Any) -> None:
    """What has been replaced may well be what made the capture fail."""
    decoder, layer = with_layer(make_decoder(tiny_llama), 0, SyncsOnHost)
    steps = Steps(decoder)
    steps.start(0, TEXT[:9])
    steps.decode([0], [5])
    layer.decode = layer.inner.decode
    steps.decode([0], [6])
    assert steps.counters.graph_captures == 0
    steps.runner.decode_steps.graphs.clear()
    _, routes = steps.decode([0], [7])
    assert "eager" in routes[0].route  # what the layer ran when the model was built is what runs
    assert steps.counters.capture_failures == 2


def _graph_ids(steps: Steps) -> dict[Any, int]:
    graphs = steps.runner.decode_steps.graphs
    return {key: id(graphs.get(key)) for key in graphs.keys}


class SaysStale(Wrapped):
    """Declares that its graphs are stale when a sequence is gone."""

    def graph_stale_on_new_sequence(self) -> bool:
        return True


@pytest.mark.parametrize("stale", [None, 0, 1], ids=["none", "first", "last"])
def test_new_sequence_in_a_slot_drops_its_graphs_only_if_a_layer_says_so(tiny_llama: Any, stale: int | None) -> None:
    """Without such a layer the same graph serves the next sequence; with one, its slot's graphs go and no others."""
    decoder = make_decoder(tiny_llama)
    if stale is not None:
        decoder, _ = with_layer(decoder, stale, SaysStale)
    steps = Steps(decoder)
    for slot in range(4):
        steps.start(slot, TEXT[slot : slot + 5])
    for slots in ([2], [1], [0, 1], [1, 2], [0, 2, 3], [3, 0]):
        steps.decode(slots, TEXT[: len(slots)])
    before = _graph_ids(steps)
    assert len(before) == 6
    steps.finish(2)
    kept = before if stale is None else {key: graph for key, graph in before.items() if 2 not in key.slots}
    assert _graph_ids(steps) == kept
    assert steps.counters.graphs_dropped == len(before) - len(kept)
    captures = steps.counters.graph_captures
    steps.start(2, TEXT[60:69])
    _, routes = steps.decode([2], [9])
    assert steps.counters.graph_captures == captures + (stale is not None)
    assert ("replayed" in str(routes[0])) == (stale is None)


@pytest.mark.parametrize("slot", [8, 9, 1000, -1])
def test_slot_past_the_claimable_ones_drops_nothing(tiny_llama: Any, slot: int) -> None:
    """Not even the graphs of padded batches, which name the dummy slot."""
    decoder, _ = with_layer(make_decoder(tiny_llama), 0, SaysStale)
    steps = Steps(decoder)
    for each in range(3):
        steps.start(each, TEXT[:4])
    steps.decode([0, 1, 2], TEXT[:3])  # padded to four rows
    before = _graph_ids(steps)
    steps.runner.decode_steps.released(slot)
    assert _graph_ids(steps) == before
    assert steps.counters.graphs_dropped == 0


def test_moved_sequence_drops_the_graphs_of_both_slots(tiny_llama: Any) -> None:
    """What either slot held is no longer where its graphs read it."""
    decoder, _ = with_layer(make_decoder(tiny_llama), 0, SaysStale)
    steps = Steps(decoder)
    for slot in range(3):
        steps.start(slot, TEXT[:4])
        steps.decode([slot], [5])
    steps.runner.decode_steps.moved(0, 2)
    assert [key.slots for key in steps.runner.decode_steps.graphs.keys] == [(1,)]
    assert steps.counters.graphs_dropped == 2


class OwnsBuffers(Wrapped):
    """Keeps a sum of its inputs in a buffer of each sequence's own state, and does not say that graphs go stale."""

    def uses_ssm_pool(self) -> bool:
        return False

    def alloc_state(self) -> dict[str, Tensor]:
        return {"sum": torch.zeros(64)}

    def release_state(self, _state: dict[str, Tensor], /) -> None:
        return None

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        (state,) = context.states
        return self.inner.decode(hidden + self._accumulate(state, hidden), context)

    def decode_multi_seq(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        sums = [self._accumulate(state, hidden[row : row + 1]) for row, state in enumerate(context.states)]
        return self.inner.decode_multi_seq(hidden + torch.cat(sums), context)

    def _accumulate(self, state: Any, hidden: Tensor) -> Tensor:
        return state["sum"].add_(hidden[0]).mul_(0.5)[None]


class OwnsBuffersAndSaysSo(OwnsBuffers):
    """The same, and honest."""

    def graph_stale_on_new_sequence(self) -> bool:
        return True


@pytest.mark.parametrize("slots", [[0], [1, 0], [2, 1, 0]])
@pytest.mark.parametrize("position", [0, 1])
def test_layer_that_hides_staleness_is_caught_before_a_wrong_token(
    tiny_llama: Any, slots: list[int], position: int
) -> None:
    """The error names the layer and the buffer; nothing ran, and with the graphs dropped the step is right."""
    decoder, _ = with_layer(make_decoder(tiny_llama), position, OwnsBuffers)
    steps = Steps(decoder)
    for slot in range(3):
        steps.start(slot, TEXT[slot : slot + 4])
    for _ in range(3):
        steps.decode(slots, TEXT[: len(slots)])
    assert steps.counters.graph_replays == 2
    steps.finish(0)
    steps.start(0, TEXT[40:47])
    before = steps.pages()
    with pytest.raises(StaleGraphError, match=rf"the state of layer {position} \(.*OwnsBuffers\): \['sum'\] has moved"):
        steps.decode(slots, TEXT[7 : 7 + len(slots)])
    for ours, theirs in zip(steps.pages(), before, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("position", [0, 1])
def test_honest_owner_of_buffers_replays_as_it_runs(tiny_llama: Any, position: int) -> None:
    """Through sequences that come and go, alone and in batches that are not padded."""
    replayed = Steps(with_layer(make_decoder(tiny_llama), position, OwnsBuffersAndSaysSo)[0])
    eager = Steps(with_layer(make_decoder(tiny_llama), position, OwnsBuffersAndSaysSo)[0], decode_graphs=False)
    for steps in (replayed, eager):
        for slot in range(3):
            steps.start(slot, TEXT[slot : slot + 4])
    for step in range(24):
        if step % 8 == 5:
            for steps in (replayed, eager):
                steps.finish(1)
                steps.start(1, TEXT[step : step + 6])
        slots = [[0], [0, 1], [2, 1, 0]][step % 3]
        tokens = TEXT[step : step + len(slots)]
        assert torch.equal(replayed.decode(slots, tokens)[0], eager.decode(slots, tokens)[0]), step
    assert replayed.counters.graph_replays > 10
    assert replayed.counters.graphs_dropped > 0


class ReplacesState(OwnsBuffers):
    """Computes a new tensor for its state rather than writing to the old one, which it keeps as well."""

    def alloc_state(self) -> dict[str, Tensor]:  # pyright: ignore[reportImplicitOverride]
        return {"sum": torch.zeros(64), "before": torch.zeros(64)}

    def _accumulate(self, state: Any, hidden: Tensor) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        state["before"], state["sum"] = state["sum"], state["sum"] * 0.5 + hidden[0]
        return (state["sum"] + state["before"])[None]


class ReplacesHiddenState(ReplacesState):
    """The same, and nobody else keeps the old one."""

    def _accumulate(self, state: Any, hidden: Tensor) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        state["sum"] = state["sum"] * 0.5 + hidden[0]
        return state["sum"][None]


class StartsFromLiteral(Wrapped):
    """Adds up in place from a number that stands in its code."""

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        total = torch.tensor(0.5)
        total += hidden.sum()
        return self.inner.decode(hidden + total, context)


@pytest.mark.parametrize(
    ("kind", "captured"), [(ReplacesState, False), (ReplacesHiddenState, False), (StartsFromLiteral, True)]
)
def test_step_with_state_that_a_replay_would_not_move_equals_eager(
    tiny_llama: Any, kind: type[Wrapped], captured: bool
) -> None:
    """It is refused, with everything put back, or recorded as it runs."""
    replayed = Steps(with_layer(make_decoder(tiny_llama), 1, kind)[0])
    eager = Steps(with_layer(make_decoder(tiny_llama), 1, kind)[0], decode_graphs=False)
    for steps in (replayed, eager):
        steps.start(0, TEXT[:5])
    for at in range(6):
        logits, (route,) = replayed.decode([0], [TEXT[at]])
        assert torch.equal(logits, eager.decode([0], [TEXT[at]])[0]), at
        assert ("eager" not in route.route) == captured, str(route)
        if not captured:
            assert "another tensor is put in the place of" in str(route)


class SlicesOfOne(OwnsBuffers):
    """Hands out the rows of one tensor as states."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.rows = torch.zeros(9, 64)
        self.next = 0

    def alloc_state(self) -> dict[str, Tensor]:  # pyright: ignore[reportImplicitOverride]
        self.next += 1
        return {"sum": self.rows[self.next - 1]}


class HandsOutIndices(SlicesOfOne):
    """Hands out the indices of those rows."""

    def alloc_state(self) -> Any:  # pyright: ignore[reportImplicitOverride]
        self.next += 1
        return self.next - 1

    def _accumulate(self, state: Any, hidden: Tensor) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        return self.rows[state].add_(hidden[0]).mul_(0.5)[None]


@pytest.mark.parametrize("kind", [SlicesOfOne, HandsOutIndices])
@pytest.mark.parametrize("gone", [0, 1])
def test_state_that_shares_its_memory_with_others_is_told_apart(
    tiny_llama: Any, kind: type[OwnsBuffers], gone: int
) -> None:
    """Whichever row of a batch has another sequence now."""
    steps = Steps(with_layer(make_decoder(tiny_llama), 1, kind)[0])
    for slot in range(2):
        steps.start(slot, TEXT[slot : slot + 4])
    steps.decode([0, 1], TEXT[:2])
    steps.decode([0, 1], TEXT[2:4])
    steps.finish(gone)
    steps.start(gone, TEXT[9:13])
    with pytest.raises(StaleGraphError, match="the state of layer 1"):
        steps.decode([0, 1], TEXT[4:6])


class ReplacesItsWeight(Wrapped):
    """Uses a weight that someone replaces."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.weight = torch.ones(64)

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        return self.inner.decode(hidden * self.weight, context)


def test_replaced_weight_is_caught_until_the_graphs_are_dropped(tiny_llama: Any) -> None:
    """A graph would go on with the old weight; dropped, it is captured over the new one."""
    decoder, layer = with_layer(make_decoder(tiny_llama), 1, ReplacesItsWeight)
    engine = Engine(decoder)
    first = engine.generate([[5, 6, 7]], max_new_tokens=6, ignore_eos=True)
    layer.weight = torch.linspace(-3, 3, 64)
    with pytest.raises(StaleGraphError, match=r"layer 1 \(.*ReplacesItsWeight\): weight has moved"):
        engine.generate([[5, 6, 7]], max_new_tokens=6, ignore_eos=True)
    assert engine.drop_graphs() == 1
    layer.weight = layer.weight[None].expand(1, 64)[0]  # the same numbers at the same place are the same
    changed = engine.generate([[5, 6, 7]], max_new_tokens=6, ignore_eos=True)
    fresh = Engine(decoder, options=EngineOptions(decode_graphs=False))
    assert changed[0].token_ids == fresh.generate([[5, 6, 7]], max_new_tokens=6, ignore_eos=True)[0].token_ids
    assert changed[0].token_ids != first[0].token_ids


class KeepsCount(Wrapped):
    """Has host bookkeeping of each sequence, and room for a number of tokens."""

    room = 12

    def uses_ssm_pool(self) -> bool:
        return False

    def alloc_state(self) -> dict[str, int]:
        return {"length": 0}

    def release_state(self, _state: dict[str, int], /) -> None:
        return None

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        self._count(context.states[0], 1)
        return self.inner.decode(hidden, context)

    def decode_multi_seq(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        for state in context.states:
            self._count(state, 1)
        return self.inner.decode_multi_seq(hidden, context)

    def prefill(self, hidden: Tensor, context: PrefillContext, /) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        self._count(context.states[0], hidden.shape[0])
        return self.inner.prefill(hidden, context)

    def _count(self, state: Any, rows: int) -> None:
        state["length"] += rows

    def check_replay_room(self, _state: dict[str, int], length: int, rows: int, /) -> None:
        if length + rows > self.room:
            raise ValueError(f"{length + rows} tokens in room for {self.room}")

    def sync_replayed_step(self, state: dict[str, int], length: int, rows: int, /) -> None:
        assert state["length"] >= length
        state["length"] = length + rows


@pytest.mark.parametrize("position", [0, 1])
def test_host_bookkeeping_follows_replays_and_a_full_layer_stops_them(tiny_llama: Any, position: int) -> None:
    """Its count is right after each step, whichever way that ran; without room the step runs eagerly and says why."""
    decoder, _ = with_layer(make_decoder(tiny_llama), position, KeepsCount)
    steps, plain = Steps(decoder), Steps(make_decoder(tiny_llama), decode_graphs=False)
    for each in (steps, plain):
        each.start(0, TEXT[:6])
        each.start(1, TEXT[:9])
    for step in range(9):
        slots = [[0], [1, 0]][step % 2]
        logits, routes = steps.decode(slots, TEXT[: len(slots)])
        assert torch.equal(logits, plain.decode(slots, TEXT[: len(slots)])[0])
        full = any(steps.sequences[slot].cursor > KeepsCount.room for slot in slots)
        assert ("eager" in routes[0].route) == full
        if full:
            (reason,) = routes[0].reasons
            assert (
                str(reason) == f"layer {position} has no room for a replay, since ValueError: 13 tokens in room for 12"
            )
        for sequence in steps.sequences.values():
            assert sequence.layer_states[position] == {"length": sequence.cursor}
    assert steps.counters.graph_replays > 0
    assert len(steps.counters.eager_decode_steps) == 1


def test_everything_that_stands_in_the_way_is_said_at_once(tiny_llama: Any) -> None:
    """A suppression, a capture that failed and a layer without room: each is a reason of the same step."""
    decoder, _ = with_layer(make_decoder(tiny_llama), 0, SyncsOnHost)
    steps = Steps(with_layer(decoder, 1, KeepsCount)[0])
    steps.start(0, TEXT[:11])
    steps.decode([0], [5])
    steps.runner.decode_steps.gate.suppressions.add("mine", "I look at something")
    _, (route,) = steps.decode([0], [6])
    said = [str(reason) for reason in route.reasons]
    assert said[0] == "I look at something"
    assert said[1].startswith("layer 1 has no room for a replay")
    assert said[2].startswith("its capture failed")


def test_least_recently_used_graph_gives_way(tiny_llama: Any) -> None:
    """No more graphs than allowed are kept, and a sequence whose graph gave way gets a new one."""
    steps = Steps(make_decoder(tiny_llama), max_decode_graphs=2)
    for slot in range(3):
        steps.start(slot, TEXT[:4])
        steps.decode([slot], [5])
    graphs = steps.runner.decode_steps.graphs
    assert [key.slots for key in graphs.keys] == [(1,), (2,)]
    assert steps.counters.graph_evictions == 1
    _, routes = steps.decode([0], [6])
    assert "captured" in str(routes[0])


def test_engine_counts_what_its_graphs_did(tiny_llama: Any) -> None:
    """A second call replays what the first has captured, and gives what an engine without graphs gives."""
    engine = Engine(make_decoder(tiny_llama), options=EngineOptions(prefill_chunk=8))
    eager = Engine(make_decoder(tiny_llama), options=EngineOptions(prefill_chunk=8, decode_graphs=False))
    for _ in range(2):
        ours = engine.generate(_PROMPTS, max_new_tokens=8, ignore_eos=True)
        theirs = eager.generate(_PROMPTS, max_new_tokens=8, ignore_eos=True)
        assert [output.token_ids for output in ours] == [output.token_ids for output in theirs]
    counters = engine.counters
    assert counters.graph_captures < counters.graph_replays
    assert counters.fused_steps > 0
    steps = counters.graph_captures + counters.graph_replays + counters.fused_steps
    assert steps == counters.decode_steps
    assert counters.eager_decode_steps == {"a fused step has no graph": counters.fused_steps}
