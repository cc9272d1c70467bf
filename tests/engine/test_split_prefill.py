# SPDX-License-Identifier: MIT OR Apache-2.0
"""When a prompt is computed in phases, on which layers, and with which memory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

import pytest

from metrale_caps.engine import Engine, EngineOptions
from metrale_caps.errors import ConfigurationError
from metrale_caps.kernels.operations import operations
from metrale_caps.models.registry import build_decoder
from tests.engine.steps import TEXT
from tests.tiny_models import full_logits, shared_tiny

if TYPE_CHECKING:
    import torch

    from metrale_caps.engine import GenerationOutput
    from metrale_caps.models.decoder import Decoder

_LONG = TEXT[:23]


def _decoder(name: str = "qwen3_5") -> Decoder:
    return build_decoder(shared_tiny(name), operations("naive"), consume=False)


def _generate(engine: Engine, prompt: list[int] = _LONG, tokens: int = 3) -> GenerationOutput:
    (output,) = engine.generate([prompt], max_new_tokens=tokens, ignore_eos=True)
    return output


def _prefill_routes(output: GenerationOutput) -> list[str]:
    return [str(use.taken) for use in output.routes if use.taken.step == "prefill"]


class _Recording:
    """Notes the calls of a recurrent layer's phases, or of another layer's `prefill`."""

    def __init__(self, inner: Any, calls: list[tuple[str, int, int, int]], index: int) -> None:
        self._inner, self._calls, self._index = inner, calls, index

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not name.startswith("prefill"):
            return found

        def call(*arguments: Any) -> Any:
            context = arguments[0] if name == "prefill_gdn_full" else arguments[1]
            self._calls.append((name, self._index, context.chunk_start, context.max_rows))
            return found(*arguments)

        return call


def test_phases_run_per_chunk_and_once_over_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer by layer: recurrent ones in chunks of 8, 8 and 7 with one recurrence, the others with one `prefill`."""
    decoder = _decoder()
    calls: list[tuple[str, int, int, int]] = []
    for index, layer in enumerate(decoder.layers):
        recording = _Recording(layer, calls, index)
        for name in ("prefill", "prefill_phase1", "prefill_gdn_full", "prefill_phase3"):
            if hasattr(layer, name):
                monkeypatch.setattr(layer, name, getattr(recording, name), raising=False)
    _generate(Engine(decoder, options=EngineOptions(prefill_chunk=8)), tokens=1)
    chunks = [(0, 8), (8, 8), (16, 7)]
    expected: list[tuple[str, int, int, int]] = []
    for index in range(3):
        expected += [("prefill_phase1", index, *chunk) for chunk in chunks]
        expected += [("prefill_gdn_full", index, 0, 23)]
        expected += [("prefill_phase3", index, *chunk) for chunk in chunks]
    assert calls == [*expected, ("prefill", 3, 0, 23)]


def test_long_prompt_runs_in_phases_and_says_which_layers_do() -> None:
    """One pass, however many chunks; the answer is that of chunked prefill."""
    engine = Engine(_decoder(), options=EngineOptions(prefill_chunk=8))
    output = _generate(engine)
    (route,) = _prefill_routes(output)
    assert "in three phases on the layers that have them" in route
    assert "3 layers (0-2)" in route
    assert engine.counters.split_prefills == 1
    assert engine.counters.prefill_chunks == 1
    chunked = Engine(_decoder(), options=EngineOptions(prefill_chunk=8, split_prefill=False))
    assert _generate(chunked).token_ids == output.token_ids
    assert (chunked.counters.split_prefills, chunked.counters.prefill_chunks) == (0, 3)


@pytest.mark.parametrize("prompt", [TEXT[:8], TEXT[:1]])
def test_prompt_of_one_chunk_is_not_split(prompt: list[int]) -> None:
    """Phases bound memory, and there is nothing to bound."""
    engine = Engine(_decoder(), options=EngineOptions(prefill_chunk=8))
    _generate(engine, prompt)
    assert engine.counters.split_prefills == 0


def test_prompt_longer_than_the_buffers_goes_chunk_by_chunk() -> None:
    """The bound is an option, and what it comes to is reported."""
    engine = Engine(_decoder(), options=EngineOptions(prefill_chunk=8, split_prefill_tokens=22))
    assert engine.memory.split_prefill_tokens == 22
    expected = _generate(engine)
    assert engine.counters.split_prefills == 0
    wide = Engine(_decoder(), options=EngineOptions(prefill_chunk=8, split_prefill_tokens=23))
    assert _generate(wide).token_ids == expected.token_ids
    assert wide.counters.split_prefills == 1
    assert 0 < engine.memory.split_prefill_bytes < wide.memory.split_prefill_bytes


def test_prompt_that_comes_while_others_decode_keeps_nobody_waiting() -> None:
    """It joins their steps chunk by chunk instead."""
    engine = Engine(_decoder(), options=EngineOptions(prefill_chunk=8))
    first, second = engine.generate([TEXT[:3], _LONG], max_new_tokens=6, ignore_eos=True)
    assert engine.counters.split_prefills == 0
    assert engine.counters.fused_steps > 0
    alone = Engine(_decoder(), options=EngineOptions(prefill_chunk=8))
    assert second.token_ids == _generate(alone, tokens=6).token_ids
    assert first.token_ids == _generate(alone, TEXT[:3], tokens=6).token_ids


def test_stack_without_phases_prefills_chunk_by_chunk_and_allocates_nothing() -> None:
    """No layer says that it is recurrent."""
    engine = Engine(
        build_decoder(shared_tiny("llama"), operations("naive"), consume=False), options=EngineOptions(prefill_chunk=8)
    )
    _generate(engine)
    assert engine.counters.split_prefills == 0
    assert engine.memory.split_prefill_bytes == engine.memory.recurrent_state_bytes == 0
    assert engine.plan.decision("long_prefill").reasons == ()


def test_option_turns_it_off_and_is_the_reason() -> None:
    """The plan says so, and nothing is allocated for it."""
    engine = Engine(_decoder(), options=EngineOptions(split_prefill=False))
    decision = engine.plan.decision("long_prefill")
    assert decision.route == "`prefill` on every layer"
    assert str(decision.reasons[0]) == "the option split_prefill is False"
    assert engine.memory.split_prefill_bytes == 0
    assert engine.memory.recurrent_state_bytes > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split_prefill": 1}, r"split_prefill is 1 \(int\); it must be True or False"),
        ({"split_prefill_tokens": 0}, "split_prefill_tokens is 0; it must be at least 1"),
        ({"split_prefill_tokens": 1.5}, r"split_prefill_tokens is 1.5 \(float\); it must be a whole number"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    """Each error names the option, what came and what is expected."""
    with pytest.raises(ConfigurationError, match=message):
        EngineOptions(**options)


class _Whole:
    """A recurrent layer whose first phase is its whole `prefill`, as a layer may have it that keeps no buffers."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._rows: dict[int, torch.Tensor] = {}

    def is_ssm_layer(self) -> bool:
        return True

    def uses_ssm_pool(self) -> bool:
        return True

    def ssm_state_spec(self) -> Any:
        return self.inner.ssm_state_spec()

    def decode(self, hidden: Any, context: Any, /) -> Any:
        return self.inner.decode(hidden, context)

    def decode_multi_seq(self, hidden: Any, context: Any, /) -> Any:
        return self.inner.decode_multi_seq(hidden, context)

    def decode_verify_multi(self, hidden: Any, context: Any, /) -> Any:
        return self.inner.decode_verify_multi(hidden, context)

    def prefill(self, hidden: Any, context: Any, /) -> Any:
        return self.inner.prefill(hidden, context)

    def prefill_phase1(self, hidden: Any, context: Any, buffers: Any, /) -> None:
        assert buffers.rows == {}
        self._rows[context.chunk_start] = self.inner.prefill(hidden.clone(), context)

    def prefill_gdn_full(self, _context: Any, _buffers: Any, /) -> None: ...

    def prefill_phase3(self, _hidden: Any, context: Any, _buffers: Any, /) -> Any:
        return self._rows.pop(context.chunk_start)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_layer_may_do_all_in_its_first_phase(position: int) -> None:
    """It needs no buffers, and may return rows of its own; the answer does not change."""
    decoder = _decoder()
    layers = list(decoder.layers)
    layers[position] = _Whole(layers[position])
    engine = Engine(dataclasses.replace(decoder, layers=tuple(layers)), options=EngineOptions(prefill_chunk=8))
    output = _generate(engine)
    assert engine.counters.split_prefills == 1
    expected = full_logits(shared_tiny("qwen3_5"), _LONG)[-1].argmax()
    assert output.token_ids[0] == int(expected)
    assert output.token_ids == _generate(Engine(_decoder())).token_ids


def test_plan_names_every_layer_that_runs_in_phases() -> None:
    """And the others run `prefill`."""
    decision = Engine(_decoder("qwen3_next")).plan.decision("long_prefill")
    assert [cast("Any", reason).layer_index for reason in decision.reasons] == [0, 1, 2]
    assert decision.route.startswith("in three phases")
