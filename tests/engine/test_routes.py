# SPDX-License-Identifier: MIT OR Apache-2.0
"""The dispatchers obey the plan: one layer's answer changes how a step runs, and never what comes out."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import pytest

from metrale_caps import MultiSeqDecodeLayer, PrefillLayer
from metrale_caps.engine import Engine, EngineOptions
from metrale_caps.kernels.operations import operations
from metrale_caps.models.registry import build_decoder

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps import DecodeContext, PagedKvSpec, PrefillContext
    from metrale_caps.models.decoder import Decoder

_PROMPTS = [[5, 17, 99, 42, 8], [33], [74, 19, 50] * 6]
_NEW = 6


class OnlyDecodes:
    """Has nothing but `decode` over an inner layer, and declares what that makes impossible."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.rows: list[int] = []

    def kv_cache_spec(self) -> PagedKvSpec:
        return self.inner.kv_cache_spec()

    def decode_verify_multi_unsupported(self) -> bool:
        return True

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:
        self.rows.append(hidden.shape[0])
        assert context.positions.shape == context.lengths.shape == (1,)
        assert context.block_tables.shape[0] == 1
        return self.inner.decode(hidden, context)


class DeclinesBatches(OnlyDecodes):
    """Can do all, but says a batch must be decoded one sequence at a time."""

    def decode_multi_seq_unsupported(self) -> bool:
        return True

    def decode_multi_seq(self, _hidden: Tensor, _context: DecodeContext, /) -> Tensor:
        raise AssertionError("a batch reached a layer that declined it")

    def prefill(self, hidden: Tensor, context: PrefillContext, /) -> Tensor:
        return self.inner.prefill(hidden, context)


class OwnsState:
    """Keeps a state of its own for each sequence and counts what happens to it."""

    def __init__(self, inner: Any, *, fail_at: int | None = None) -> None:
        self.inner = inner
        self.fail_at = fail_at
        self.alive: list[dict[str, int]] = []
        self.allocated = 0
        self.steps = 0

    def kv_cache_spec(self) -> PagedKvSpec:
        return self.inner.kv_cache_spec()

    def uses_ssm_pool(self) -> bool:
        return False

    def decode_verify_multi_unsupported(self) -> bool:
        return True

    def alloc_state(self) -> dict[str, int]:
        self.allocated += 1
        state = {"seen": 0}
        self.alive.append(state)
        return state

    def release_state(self, state: dict[str, int], /) -> None:
        self.alive = [other for other in self.alive if other is not state]

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:
        self._advance(context, 1)
        return self.inner.decode(hidden, context)

    def prefill(self, hidden: Tensor, context: PrefillContext, /) -> Tensor:
        self._advance(context, hidden.shape[0])
        return self.inner.prefill(hidden, context)

    def _advance(self, context: Any, rows: int) -> None:
        (state,) = context.states
        assert state["seen"] == int(context.positions[0]), "a sequence was handed another's state"
        state["seen"] += rows
        self.steps += 1
        if self.fail_at is not None and self.steps >= self.fail_at:
            raise RuntimeError("the layer failed")


def _decoder(model: Any) -> Decoder:
    return build_decoder(model, operations("naive"), consume=False)


def _replace(decoder: Decoder, position: int, wrap: Any) -> tuple[Decoder, Any]:
    layer = wrap(decoder.layers[position])
    layers = (*decoder.layers[:position], layer, *decoder.layers[position + 1 :])
    return dataclasses.replace(decoder, layers=layers), layer


def _tokens(decoder: Decoder, **options: Any) -> list[tuple[int, ...]]:
    outputs = Engine(decoder, options=EngineOptions(**options)).generate(_PROMPTS, max_new_tokens=_NEW, ignore_eos=True)
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("position", [0, 1])
def test_layer_that_declines_batches_gets_each_sequence_alone(tiny_llama: Any, position: int) -> None:
    """Wherever it stands, every sequence of a batch runs through `decode`; tokens and their order are unchanged."""
    decoder, layer = _replace(_decoder(tiny_llama), position, DeclinesBatches)
    engine = Engine(decoder)
    outputs = engine.generate(_PROMPTS, max_new_tokens=_NEW, ignore_eos=True)
    assert [output.token_ids for output in outputs] == _tokens(_decoder(tiny_llama))
    assert engine.plan.hc_perseq
    assert set(layer.rows) == {1}
    taken = [use.taken for output in outputs for use in output.routes if "hc_perseq" in use.taken.route]
    assert taken
    assert all(f"layer {position}" in str(route) for route in taken)


@pytest.mark.parametrize("position", [0, 1])
def test_layer_with_only_decode_runs_row_by_row(tiny_llama: Any, position: int) -> None:
    """A layer that lacks the batched and the prefill method gets one row and one context at a time."""
    decoder, layer = _replace(_decoder(tiny_llama), position, OnlyDecodes)
    engine = Engine(decoder, options=EngineOptions(prefill_chunk=5))
    outputs = engine.generate(_PROMPTS, max_new_tokens=_NEW, ignore_eos=True)
    assert [output.token_ids for output in outputs] == _tokens(_decoder(tiny_llama))
    assert set(layer.rows) == {1}
    assert not engine.plan.hc_perseq
    taken = {str(use.taken) for output in outputs for use in output.routes}
    for step, method in (("decode", "decode_multi_seq"), ("prefill", "prefill")):
        (said,) = [route for route in taken if route.startswith(step) and "row by row on some layers" in route]
        assert f"layer {position} " in said
        assert f"has no `{method}`" in said


def test_layer_that_inherits_a_forward_stub_runs_row_by_row(tiny_llama: Any) -> None:
    """Declaring a forward protocol without writing its method is no implementation of it."""

    class InheritsStubs(OnlyDecodes, MultiSeqDecodeLayer, PrefillLayer):
        pass

    decoder, layer = _replace(_decoder(tiny_llama), 0, InheritsStubs)
    assert _tokens(decoder) == _tokens(_decoder(tiny_llama))
    assert set(layer.rows) == {1}


def test_failing_release_locks_nothing(tiny_llama: Any) -> None:
    """A layer that cannot release fails the call once; all else is released and the engine goes on."""

    class CannotRelease(OwnsState):
        broken = True

        def release_state(self, state: dict[str, int], /) -> None:  # pyright: ignore[reportImplicitOverride]
            super().release_state(state)
            if self.broken:
                raise RuntimeError("the layer cannot release")

    decoder, layer = _replace(_decoder(tiny_llama), 1, CannotRelease)
    engine = Engine(decoder, options=EngineOptions(num_blocks=3))
    with pytest.raises(RuntimeError, match="cannot release"):
        engine.generate(_PROMPTS, max_new_tokens=_NEW, ignore_eos=True)
    assert layer.alive == []
    assert not engine.busy
    assert engine.free_blocks == engine.num_blocks
    assert engine.free_slots == engine.options.max_slots
    layer.broken = False
    outputs = engine.generate(_PROMPTS, max_new_tokens=_NEW, ignore_eos=True)
    assert [output.token_ids for output in outputs] == _tokens(_decoder(tiny_llama))


@pytest.mark.parametrize("options", [{}, {"max_slots": 2}, {"num_blocks": 3}, {"prefill_chunk": 4}])
def test_owned_state_follows_its_sequence_and_is_released_once(tiny_llama: Any, options: dict[str, int]) -> None:
    """Each sequence has its own state, also after it gave way; at the end none is left."""
    decoder, layer = _replace(_decoder(tiny_llama), 1, OwnsState)
    assert _tokens(decoder, **options) == _tokens(_decoder(tiny_llama))
    assert layer.alive == []
    assert layer.allocated >= len(_PROMPTS)


@pytest.mark.parametrize("fail_at", [1, 2, 4, 9])
def test_error_in_a_layer_loses_nothing(tiny_llama: Any, fail_at: int) -> None:
    """The error comes out as itself; blocks, slots and states are free again and the engine goes on."""
    decoder, layer = _replace(_decoder(tiny_llama), 0, functools.partial(OwnsState, fail_at=fail_at))
    engine = Engine(decoder)
    with pytest.raises(RuntimeError, match="the layer failed"):
        engine.generate(_PROMPTS, max_new_tokens=_NEW, ignore_eos=True)
    assert layer.alive == []
    assert engine.free_blocks == engine.num_blocks
    assert engine.free_slots == engine.options.max_slots
    layer.fail_at = None
    outputs = engine.generate(_PROMPTS, max_new_tokens=_NEW, ignore_eos=True)
    assert [output.token_ids for output in outputs] == _tokens(_decoder(tiny_llama))


def test_failing_allocation_leaks_nothing(tiny_llama: Any) -> None:
    """A layer that cannot allocate fails the call; what was claimed before it is free again."""

    class CannotAllocate(OwnsState):
        def alloc_state(self) -> dict[str, int]:  # pyright: ignore[reportImplicitOverride]
            raise MemoryError("no room")

    decoder, first = _replace(_decoder(tiny_llama), 0, OwnsState)
    decoder, _ = _replace(decoder, 1, CannotAllocate)
    engine = Engine(decoder)
    with pytest.raises(MemoryError, match="no room"):
        engine.generate(_PROMPTS, max_new_tokens=_NEW)
    assert first.alive == []
    assert engine.free_slots == engine.options.max_slots
