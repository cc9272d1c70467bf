# SPDX-License-Identifier: MIT OR Apache-2.0
"""Who keeps recurrent state where: in the pool, or in states of their own, each released once; rows never mix."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch

from metrale_caps.engine import Engine, EngineOptions
from metrale_caps.kernels.operations import operations
from metrale_caps.layers.delta_net import DeltaNetLayer
from metrale_caps.layers.host_delta_net import HostDeltaState, HostStateDeltaNetLayer
from metrale_caps.models.kimi_linear import build_kimi_linear
from tests.engine.steps import TEXT, Steps, make_decoder
from tests.tiny_models import PROMPT, full_logits, shared_tiny

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps.layer import SsmLayerState
    from metrale_caps.models.decoder import Decoder
    from metrale_caps.state.ssm_pool import SsmPool

BOTH = pytest.mark.parametrize("kernels", ["naive", "triton"])


def _states(pool: SsmPool) -> list[SsmLayerState]:
    return [state for state in pool.layers if state is not None]


def _slot_copies(pool: SsmPool, slots: list[int]) -> list[torch.Tensor]:
    return [
        tensor[slots].clone().view(torch.uint8)
        for state in _states(pool)
        for tensor in (state.convolution, state.recurrent)
    ]


@BOTH
@pytest.mark.parametrize("parked", [[0, 7], [0], [7]])
def test_padding_touches_no_live_slot(tiny_hybrid: Any, kernels: str, parked: list[int]) -> None:
    """With every slot claimed, three rows padded to four, and six to eight, leave all other slots as they were."""
    steps = Steps(make_decoder(tiny_hybrid, kernels))
    for slot in range(8):
        steps.start(slot, TEXT[slot : slot + 5 + slot])
    for count in (3, 6):
        batch = [slot for slot in range(8) if slot not in parked][:count]
        others = [slot for slot in range(8) if slot not in batch]
        before = _slot_copies(steps.runner.pool, [*others, 8])
        logits, _ = steps.decode(batch, [TEXT[50 + slot] for slot in batch])
        assert logits.isfinite().all()
        for ours, theirs in zip(_slot_copies(steps.runner.pool, [*others, 8]), before, strict=True):
            assert torch.equal(ours, theirs)


@BOTH
@pytest.mark.parametrize("count", [1, 2, 3])
def test_replayed_steps_equal_eager_ones_to_the_bit(tiny_hybrid: Any, kernels: str, count: int) -> None:
    """Slots that change hands and rows that change places: the pool's addresses are the only ones a graph holds."""
    replayed = Steps(make_decoder(tiny_hybrid, kernels))
    eager = Steps(make_decoder(tiny_hybrid, kernels), decode_graphs=False)
    for steps in (replayed, eager):
        for slot in range(count):
            steps.start(slot, TEXT[slot : slot + 4 * slot + 1])
    for step in range(10):
        if step == 5:
            for steps in (replayed, eager):
                steps.finish(0)
                steps.start(0, TEXT[step : step + 3])
        slots = list(range(count))[:: -1 if step % 4 == 2 else 1]
        tokens = [TEXT[50 + 5 * step + slot] for slot in slots]
        logits, _ = replayed.decode(slots, tokens)
        expected, _ = eager.decode(slots, tokens)
        assert torch.equal(logits, expected), step
    assert replayed.counters.graph_captures <= 2
    assert replayed.counters.graph_captures + replayed.counters.graph_replays == 10
    live = list(range(count))
    for ours, theirs in zip(
        _slot_copies(replayed.runner.pool, live), _slot_copies(eager.runner.pool, live), strict=True
    ):
        assert torch.equal(ours, theirs)


class _Counting(HostStateDeltaNetLayer):
    """Counts what is allocated and released; may be told to fail."""

    allocated = 0
    fails: str = ""
    released: list[HostDeltaState]

    def alloc_state(self) -> HostDeltaState:  # pyright: ignore[reportImplicitOverride]
        if self.fails == "alloc":
            raise MemoryError("no memory")
        self.allocated += 1
        return super().alloc_state()

    def release_state(self, state: HostDeltaState, /) -> None:  # pyright: ignore[reportImplicitOverride]
        self.released = [*getattr(self, "released", []), state]
        super().release_state(state)

    def decode(self, hidden: Any, context: Any, /) -> Any:  # pyright: ignore[reportImplicitOverride]
        if self.fails == "decode":
            raise RuntimeError("no decode")
        return super().decode(hidden, context)


def _kimi(kernels: Any, own: dict[int, Callable[..., Any]]) -> Decoder:
    """The tiny Kimi Linear, with layers of other classes at some places."""
    decoders = {
        kind: build_kimi_linear(
            shared_tiny("kimi_linear"),
            operations(kernels),
            context_tokens=256,
            consume=False,
            delta_layer=kind,
        )
        for kind in {DeltaNetLayer, *own.values()}
    }
    layers = list(decoders[DeltaNetLayer].layers)
    for index, kind in own.items():
        layers[index] = decoders[kind].layers[index]
    return dataclasses.replace(decoders[DeltaNetLayer], layers=tuple(layers))


@BOTH
@pytest.mark.parametrize("own", [[0], [1], [3], [0, 1, 3]])
def test_layers_that_own_their_state_give_what_pool_layers_give(kernels: str, own: list[int]) -> None:
    """Both kinds in one model, in any places: prompts, steps, and sequences side by side have the same logits."""
    plain = Steps(_kimi(kernels, {}))
    mixed = Steps(_kimi(kernels, dict.fromkeys(own, HostStateDeltaNetLayer)))
    assert mixed.runner.plan.own_state_layers == tuple(own)
    assert [state is None for state in mixed.runner.pool.layers] == [index in {2, *own} for index in range(4)]
    for steps in (plain, mixed):
        steps.start(0, TEXT[:33])
        steps.start(1, TEXT[40:45])
    for step in range(5):
        tokens = [TEXT[60 + step], TEXT[70 + step]]
        expected, _ = plain.decode([0, 1], tokens)
        logits, routes = mixed.decode([0, 1], tokens)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
        assert "one sequence at a time (hc_perseq), eager" in routes[0].route


def test_state_is_allocated_once_and_released_once() -> None:
    """Through generation with preemptions every state that was made is released, and none twice."""
    decoder = _kimi("naive", {1: _Counting})
    engine: Any = Engine(decoder, options=EngineOptions(num_blocks=9, block_size=8, max_slots=3, prefill_chunk=8))
    outputs = engine.generate([PROMPT, PROMPT[::-1], PROMPT[3:]], max_new_tokens=20, ignore_eos=True)
    (expected,) = Engine(_kimi("naive", {})).generate([PROMPT], max_new_tokens=20, ignore_eos=True)
    assert outputs[0].token_ids == expected.token_ids
    assert engine.counters.preemptions > 0
    layer: Any = decoder.layers[1]
    assert layer.allocated == 3 + engine.counters.preemptions
    assert len(layer.released) == len(set(map(id, layer.released))) == layer.allocated


@pytest.mark.parametrize("fails", ["alloc", "decode"])
def test_failing_layer_leaks_no_state_and_no_slot(fails: str) -> None:
    """What the layer before it has allocated is released once, and the next call finds everything free."""
    decoder = _kimi("naive", {0: _Counting, 3: _Counting})
    engine = Engine(decoder, options=EngineOptions(max_slots=2))
    first, last = (decoder.layers[index] for index in (0, 3))
    assert isinstance(first, _Counting)
    assert isinstance(last, _Counting)
    last.fails = fails
    with pytest.raises((MemoryError, RuntimeError)):
        engine.generate([PROMPT, PROMPT[3:]], max_new_tokens=4, ignore_eos=True)
    assert engine.free_slots == 2
    assert first.allocated == len(first.released)
    assert last.allocated == len(getattr(last, "released", []))
    last.fails = ""
    (output,) = engine.generate([PROMPT], max_new_tokens=4, ignore_eos=True)
    (expected,) = Engine(_kimi("naive", {})).generate([PROMPT], max_new_tokens=4, ignore_eos=True)
    assert output.token_ids == expected.token_ids


def test_layer_in_the_pool_is_never_asked_to_allocate() -> None:
    """It may have the method, and gets its part of the pool all the same."""

    class Both(DeltaNetLayer):
        def alloc_state(self) -> object:
            raise AssertionError("asked to allocate")

        def release_state(self, state: object, /) -> None:
            raise AssertionError(state)

        def uses_ssm_pool(self) -> bool:  # pyright: ignore[reportImplicitOverride]
            return True

    engine = Engine(_kimi("naive", dict.fromkeys([0, 1, 3], Both)))
    (output,) = engine.generate([PROMPT], max_new_tokens=6, ignore_eos=True)
    (expected,) = Engine(_kimi("naive", {})).generate([PROMPT], max_new_tokens=6, ignore_eos=True)
    assert output.token_ids == expected.token_ids


@BOTH
def test_greedy_tokens_equal_those_of_full_passes_under_pressure(tiny_hybrid: Any, kernels: Any) -> None:
    """Greedy answers with few slots and blocks, prompts in phases, fused steps, graphs and preemptions."""
    engine = Engine.from_pretrained(
        tiny_hybrid, kernels=kernels, max_slots=2, num_blocks=5, prefill_chunk=5, block_size=8
    )
    prompts = [PROMPT, PROMPT[4:], PROMPT[:3]]
    outputs = engine.generate(prompts, max_new_tokens=12, ignore_eos=True)
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = list(prompt)
        for _ in range(12):
            tokens.append(int(full_logits(tiny_hybrid, tokens)[-1].argmax()))
        assert [*prompt, *output.token_ids] == tokens
    counters = engine.counters
    assert counters.preemptions > 0
    assert counters.split_prefills > 0
    assert counters.fused_steps > 0
    assert counters.graph_replays > 0
