# SPDX-License-Identifier: MIT OR Apache-2.0
"""When a prompt is computed in phases, on which layers, and with which memory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

import pytest

from metrale_caps.engine import Engine, EngineOptions, MemoryUse
from metrale_caps.errors import ConfigurationError, LayerResultError
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
    """Layer by layer: recurrent ones in chunks of 8, 8 and 7 with one recurrence, the others with `prefill`."""
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
    assert calls == [*expected, *(("prefill", 3, *chunk) for chunk in chunks)]


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
    assert all(
        "buffers of a split prefill hold 22 tokens, and the prompt has more" in it for it in _prefill_routes(expected)
    )
    wide = Engine(_decoder(), options=EngineOptions(prefill_chunk=8, split_prefill_tokens=23))
    assert _generate(wide).token_ids == expected.token_ids
    assert wide.counters.split_prefills == 1
    assert 0 < engine.memory.split_prefill_bytes < wide.memory.split_prefill_bytes


def test_prompt_that_comes_while_others_decode_keeps_nobody_waiting() -> None:
    """It joins their steps chunk by chunk instead; the first prompt fills a step, so that it decodes by then."""
    engine = Engine(_decoder(), options=EngineOptions(prefill_chunk=8))
    first, second = engine.generate([TEXT[:8], _LONG], max_new_tokens=6, ignore_eos=True)
    assert engine.counters.split_prefills == 0
    assert engine.counters.fused_steps > 0
    alone = Engine(_decoder(), options=EngineOptions(prefill_chunk=8))
    assert second.token_ids == _generate(alone, tokens=6).token_ids
    assert alone.counters.split_prefills == 1
    assert first.token_ids == _generate(alone, TEXT[:8], tokens=6).token_ids


def test_prompt_that_has_begun_is_not_split_any_more() -> None:
    """Its first chunk shared a step with another prompt; then it goes on chunk by chunk, and says why."""
    engine = Engine(_decoder(), options=EngineOptions(prefill_chunk=8))
    first, second = engine.generate([TEXT[:3], _LONG], max_new_tokens=1, ignore_eos=True)
    assert first.finish_reason == second.finish_reason == "length"
    assert engine.counters.split_prefills == 0
    routes = _prefill_routes(second)
    assert any("a split prefill would keep other sequences waiting" in route for route in routes), routes


@pytest.mark.parametrize("options", [{"prefill_chunk": 256}, {"prefill_chunk": 8, "split_prefill_tokens": 8}])
def test_nothing_is_allocated_where_no_prompt_can_be_split(options: dict[str, Any]) -> None:
    """And the plan does not announce it."""
    engine = Engine(_decoder(), options=EngineOptions(**options))
    assert engine.memory.split_prefill_bytes == engine.memory.split_prefill_tokens == 0
    decision = engine.plan.decision("long_prefill")
    assert decision.route == "`prefill` on every layer"
    assert str(decision.reasons[0]).startswith("no prompt can be longer than a chunk")
    wide = Engine(_decoder(), options=EngineOptions(prefill_chunk=8, split_prefill_tokens=100_000))
    assert wide.memory.split_prefill_tokens == 256


def test_memory_is_told_in_words() -> None:
    """Bytes with their unit, tokens as they are."""
    memory = MemoryUse(
        page_bytes=3 << 20, recurrent_state_bytes=1536, split_prefill_bytes=5 << 19, split_prefill_tokens=77
    )
    parts = ["3.0 MiB of pages", "1.5 KiB of recurrent state", "2.5 MiB for split prompts of up to 77 tokens"]
    assert str(memory) == f"memory beside the weights: {', '.join(parts)}"


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
    engine = Engine(_decoder("qwen3_next"), options=EngineOptions(prefill_chunk=64))
    decision = engine.plan.decision("long_prefill")
    assert [cast("Any", reason).layer_index for reason in decision.reasons] == [0, 1, 2]
    assert decision.route.startswith("in three phases")


def _broken(**methods: Any) -> Engine:
    """An engine whose second layer has other methods."""
    decoder = _decoder()
    inner: Any = decoder.layers[1]
    for name, make in methods.items():
        setattr(inner, name, make(getattr(inner, name)))
    return Engine(decoder, options=EngineOptions(prefill_chunk=8))


def _first_row(rows: Any) -> Any:
    return rows[:1]


def _one_row(rows: Any) -> Any:
    return rows[0]


def _one_column(rows: Any) -> Any:
    return rows[:, :1]


def _in_float64(rows: Any) -> Any:
    return rows.double()


def _nothing(_rows: Any) -> None:
    return None


@pytest.mark.parametrize("method", ["prefill_phase3", "prefill"])
@pytest.mark.parametrize(
    ("change", "got"),
    [
        (_first_row, r"torch.float32 \[1, 64\]"),
        (_one_row, r"torch.float32 \[64\]"),
        (_one_column, r"torch.float32 \[8, 1\]"),
        (_in_float64, r"torch.float64 \[8, 64\]"),
        (_nothing, "NoneType"),
    ],
)
def test_rows_of_another_shape_are_refused_with_the_layer(method: str, change: Any, got: str) -> None:
    """Torch would broadcast most of them without a word."""

    def changed(own: Any) -> Any:
        def call(*arguments: Any) -> Any:
            return change(own(*arguments))

        call.__name__ = method
        return call

    engine = _broken(**{method: changed})
    with pytest.raises(LayerResultError, match=rf"layer 1 .*: `{method}` returned {got}; it must return rows"):
        _generate(engine, _LONG if method == "prefill_phase3" else TEXT[:8])


def test_first_phase_that_changes_its_rows_is_refused() -> None:
    """The third phase adds to them."""

    def adding(phase: Any) -> Any:
        def prefill_phase1(hidden: Any, context: Any, buffers: Any) -> None:
            phase(hidden, context, buffers)
            hidden.add_(1.0)

        return prefill_phase1

    with pytest.raises(LayerResultError, match=r"layer 1 .*: `prefill_phase1` changed the hidden rows"):
        _generate(_broken(prefill_phase1=adding))


def test_error_in_a_phase_says_whose_it_was() -> None:
    """As a note: the error itself comes out as it is, and everything is free again."""

    def failing(_phase: Any) -> Any:
        def prefill_gdn_full(_context: Any, _buffers: Any) -> None:
            raise ZeroDivisionError("oh")

        return prefill_gdn_full

    engine = _broken(prefill_gdn_full=failing)
    with pytest.raises(ZeroDivisionError) as caught:
        _generate(engine)
    (note,) = caught.value.__notes__
    assert note.startswith("raised by `prefill_gdn_full` of layer 1 (")
    assert engine.free_slots == engine.options.max_slots
