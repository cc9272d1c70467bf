# SPDX-License-Identifier: MIT OR Apache-2.0
"""Steps with their routes and reasons over time, in the trace-event format that Perfetto and chrome://tracing show.

The format is described in "Trace Event Format" (Google, 2016); times are microseconds.
"""

from __future__ import annotations

import json
import time
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from metrale_caps.engine.counters import Counters
    from metrale_caps.routing.taken import RouteTaken

_LANES = {"decode": 1, "prefill": 2, "fused": 3}
_INSTANTS = {
    "preemptions": "sequence preempted",
    "graph_captures": "graph captured",
    "graphs_dropped": "graphs dropped",
    "graph_evictions": "graph evicted",
    "capture_failures": "capture failed",
    "fp8_calibrations_frozen": "FP8 scales final",
}
"""Counters whose moves are marked, and how the mark is called."""


class SequenceStep(NamedTuple):
    """A sequence's part in a step.

    Attributes:
        request: the sequence's position among the requests.
        slot: its slot.
        length: its tokens before the step.
        rows: its hidden rows in the step.
    """

    request: int
    slot: int | None
    length: int
    rows: int


class StepTrace:
    """Collects the steps of one engine; set it as `engine.trace`."""

    def __init__(self, counters: Counters | None = None) -> None:
        """Start a trace.

        Args:
            counters: those of an engine that has run before, so that what it did then is not marked.
        """
        self._began = time.perf_counter_ns()
        self._counted: dict[str, int] = {name: getattr(counters, name, 0) for name in _INSTANTS}
        self._events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "metrale_caps engine"}},
            *(
                {"ph": "M", "pid": 1, "tid": lane, "name": "thread_name", "args": {"name": step}}
                for step, lane in _LANES.items()
            ),
        ]

    @property
    def events(self) -> tuple[dict[str, Any], ...]:
        """The events so far, as they are saved."""
        return tuple(self._events)

    def step(self, routes: Rows[RouteTaken], sequences: Rows[SequenceStep], *, began: int, counters: Counters) -> None:
        """Add a step that has just committed.

        Args:
            routes: routes taken, one for each sequence or one for all.
            sequences: the sequences that took part.
            began: `time.perf_counter_ns()` at its start.
            counters: the engine's; what moved since the last step is marked.
        """
        now = time.perf_counter_ns()
        taken = tuple(dict.fromkeys(routes))
        lane = _LANES[taken[0].step]
        self._events.append(
            {
                "ph": "X",
                "pid": 1,
                "tid": lane,
                "cat": taken[0].step,
                "name": " / ".join(route.route for route in taken),
                "ts": self._microseconds(began),
                "dur": (now - began) / 1000,
                "args": {
                    "rows": sum(one.rows for one in sequences),
                    "requests": [one.request for one in sequences],
                    "slots": [one.slot for one in sequences],
                    "lengths": [one.length for one in sequences],
                    "reasons": list(dict.fromkeys(str(reason) for route in taken for reason in route.reasons)),
                },
            }
        )
        self._mark(counters, lane, now)

    def _mark(self, counters: Counters, lane: int, now: int) -> None:
        for name, mark in _INSTANTS.items():
            count: int = getattr(counters, name)
            moved = count - self._counted[name]
            if moved:
                self._counted[name] = count
                event = {"ph": "i", "s": "p", "pid": 1, "tid": lane, "name": mark, "ts": self._microseconds(now)}
                self._events.append({**event, "args": {"count": moved}})

    def _microseconds(self, at: int) -> float:
        return (at - self._began) / 1000

    def save(self, file: IO[str]) -> None:
        """Write everything as one JSON document."""
        json.dump({"displayTimeUnit": "ms", "traceEvents": self._events}, file)
