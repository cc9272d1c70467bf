# SPDX-License-Identifier: MIT OR Apache-2.0
"""Exactly one layer, wherever it stands, decides how a step runs: it is the reason given; outputs stay the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from metrale_caps.engine import Engine, EngineOptions, decoding
from metrale_caps.routing.decision import LayerReason
from tests.engine.steps import make_decoder, with_layer
from tests.engine.wrapped import Wrapped
from tests.tiny_models import make_model

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps import DecodeContext
    from metrale_caps.engine import GenerationOutput
    from metrale_caps.routing.taken import RouteTaken

_PROMPTS = [[5, 17, 99, 42, 8], [33], [74, 19, 50] * 6]
_POSITIONS = pytest.mark.parametrize("position", [0, 1, 2], ids=["first", "middle", "last"])


@pytest.fixture(scope="module")
def deep_llama() -> Any:
    """A tiny Llama with a layer between the first and the last."""
    return make_model("llama", 14, rms_norm_eps=1e-5, num_hidden_layers=3)


@pytest.fixture(scope="module")
def expected(deep_llama: Any) -> list[tuple[int, ...]]:
    """Tokens of each prompt, each generated alone and eagerly."""
    engine = Engine(make_decoder(deep_llama), options=EngineOptions(max_slots=1, decode_graphs=False))
    return [output.token_ids for output in engine.generate(_PROMPTS, max_new_tokens=8, ignore_eos=True)]


def _generate(decoder: Any) -> tuple[Engine, list[GenerationOutput]]:
    engine = Engine(decoder, options=EngineOptions(prefill_chunk=8))
    return engine, engine.generate(_PROMPTS, max_new_tokens=8, ignore_eos=True)


def _routes(outputs: list[GenerationOutput], step: str) -> set[RouteTaken]:
    return {use.taken for output in outputs for use in output.routes if use.taken.step == step}


def _layers_named(route: RouteTaken) -> set[int]:
    return {reason.layer_index for reason in route.reasons if isinstance(reason, LayerReason)}


def test_stack_without_objections_takes_every_wanted_route(deep_llama: Any, expected: Any) -> None:
    """Batched, captured, fused; no reason is given for anything but the step that a fused one has no graph for."""
    engine, outputs = _generate(make_decoder(deep_llama))
    assert [output.token_ids for output in outputs] == expected
    assert engine.counters.fused_steps > 0
    assert engine.counters.graph_replays > 0
    for step in ("decode", "prefill", "fused"):
        routes = _routes(outputs, step)
        assert routes
        assert all(route.reasons == () for route in routes)


class VetoesGraphs(Wrapped):
    """Chooses its keys on the host, so that no step of it can be captured."""

    def decode_graph_unsupported(self) -> bool:
        return True


@_POSITIONS
def test_one_layer_vetoes_graphs_for_the_whole_model(
    deep_llama: Any, expected: Any, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No capture is even tried."""

    def never(*_: object) -> None:
        raise AssertionError("a capture was tried")

    monkeypatch.setattr(decoding, "capture", never)
    engine, outputs = _generate(with_layer(make_decoder(deep_llama), position, VetoesGraphs)[0])
    assert [output.token_ids for output in outputs] == expected
    assert engine.plan.decode_graph_veto
    assert engine.counters.graph_captures == engine.counters.capture_failures == 0
    routes = _routes(outputs, "decode")
    assert routes
    for route in routes:
        assert "eager" in route.route
        assert _layers_named(route) == {position}
        assert "decode_graph_unsupported = True" in str(route)
    assert sum(engine.counters.eager_decode_steps.values()) == engine.counters.decode_steps


class DeclinesBatches(Wrapped):
    """Wants each sequence of a batch alone."""

    def decode_multi_seq_unsupported(self) -> bool:
        return True

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        assert hidden.shape[0] == 1
        return self.inner.decode(hidden, context)

    def decode_multi_seq(self, _hidden: Tensor, _context: DecodeContext, /) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        raise AssertionError("a batch reached a layer that declines them")


@_POSITIONS
def test_one_layer_declines_batches_and_fused_steps(deep_llama: Any, expected: Any, position: int) -> None:
    """At both entries: each sequence decodes alone, in a graph of its own, and a chunk runs beside no decode rows."""
    engine, outputs = _generate(with_layer(make_decoder(deep_llama), position, DeclinesBatches)[0])
    assert [output.token_ids for output in outputs] == expected
    assert engine.plan.hc_perseq
    assert engine.plan.hc_qsa_perseq
    assert engine.counters.fused_steps == 0
    assert _routes(outputs, "fused") == set()
    several = [route for route in _routes(outputs, "decode") if "hc_perseq" in route.route]
    split = [route for route in _routes(outputs, "prefill") if "hc_qsa_perseq" in route.route]
    assert several
    assert split
    for route in (*several, *split):
        assert _layers_named(route) == {position}
        assert "decode_multi_seq_unsupported = True" in str(route)
    assert engine.counters.graph_replays > 0
    assert all(len(key.slots) == 1 for key in engine._runner.decode_steps.graphs.keys)  # pyright: ignore[reportPrivateUsage]


def test_suppressions_are_lifted_one_by_one(deep_llama: Any, expected: Any) -> None:
    """Two reasons hold at once; with the last one gone, and not before, steps are captured."""
    engine = Engine(make_decoder(deep_llama))
    engine.graph_suppressions.add("mine", "I compare with eager steps")
    engine.graph_suppressions.add("yours", "a profiler runs")
    for name, captures in (("mine", 0), ("yours", 0), (None, 1)):
        outputs = engine.generate(_PROMPTS, max_new_tokens=8, ignore_eos=True)
        assert [output.token_ids for output in outputs] == expected
        assert (engine.counters.graph_captures > 0) == bool(captures)
        for route in _routes(outputs, "decode") if not captures else ():
            assert {str(reason) for reason in route.reasons} == set(map(str, engine.graph_suppressions.reasons))
        if name is not None:
            engine.graph_suppressions.lift(name)
