# SPDX-License-Identifier: MIT OR Apache-2.0
"""A trace shows every step once, with its route and reasons, in the trace-event format."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

from metrale_caps.engine import Engine, EngineOptions, StepTrace
from tests.engine.steps import make_decoder

_PROMPTS = [[5, 17, 99, 42, 8], [33], [74, 19, 50] * 6]


def _trace(model: Any, **options: Any) -> tuple[Engine, list[dict[str, Any]]]:
    engine = Engine(make_decoder(model), options=EngineOptions(prefill_chunk=8, **options))
    engine.trace = StepTrace()
    engine.generate(_PROMPTS, max_new_tokens=8, ignore_eos=True)
    file = io.StringIO()
    engine.trace.save(file)
    document = json.loads(file.getvalue())
    assert document["traceEvents"] == [json.loads(json.dumps(event)) for event in engine.trace.events]
    return engine, document["traceEvents"]


def test_every_step_is_there_once_with_its_rows(tiny_llama: Any) -> None:
    """Rows add up to what was computed; no two steps overlap."""
    engine, events = _trace(tiny_llama)
    steps = [event for event in events if event["ph"] == "X"]
    counters = engine.counters
    assert len(steps) == counters.decode_steps + counters.prefill_chunks - counters.fused_steps
    assert sum(step["args"]["rows"] for step in steps) == counters.decoded_tokens + counters.prefill_tokens
    assert {step["cat"] for step in steps} == {"decode", "prefill", "fused"}
    for before, after in itertools.pairwise(steps):
        assert before["dur"] > 0
        assert before["ts"] + before["dur"] <= after["ts"]
    assert all(slot is not None for step in steps for slot in step["args"]["slots"])
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert all(lanes[step["tid"]] == step["cat"] for step in steps)


def test_marks_add_up_to_the_counters(tiny_llama: Any) -> None:
    """Captures, evictions and the freeze stand where they happened."""
    engine, events = _trace(tiny_llama, kv_dtype="fp8", fp8_calibration_tokens=30, max_decode_graphs=1)
    marks: dict[str, int] = {}
    for event in events:
        if event["ph"] == "i":
            marks[event["name"]] = marks.get(event["name"], 0) + event["args"]["count"]
    counters = engine.counters
    assert marks["graph captured"] == counters.graph_captures > 0
    assert marks["FP8 scales final"] == counters.fp8_calibrations_frozen == 2
    assert marks.get("graph evicted", 0) == counters.graph_evictions


def test_reasons_are_those_of_the_routes(tiny_llama: Any) -> None:
    """An eager step says in the trace why it was."""
    _, events = _trace(tiny_llama, decode_graphs=False)
    decodes = [event for event in events if event.get("cat") == "decode"]
    assert decodes
    assert all(event["args"]["reasons"] == ["the option decode_graphs is False"] for event in decodes)


def test_trace_that_is_not_set_costs_nothing(tiny_llama: Any) -> None:
    """An engine collects nothing of its own accord."""
    engine = Engine(make_decoder(tiny_llama))
    engine.generate([[5]], max_new_tokens=2)
    assert engine.trace is None
