# SPDX-License-Identifier: MIT OR Apache-2.0
"""What happened so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(slots=True)
class Counters:
    """Counts since the engine was built.

    Those of steps and tokens move when a step commits, preemptions when a step is planned, those of graphs when it
    happens.

    Attributes:
        decode_steps: decode passes.
        decoded_tokens: tokens that decode passes produced.
        prefill_chunks: prefill passes.
        prefill_tokens: prompt tokens computed, those of resumed sequences counted again.
        split_prefills: prefill passes that computed a whole prompt in phases.
        fused_steps: passes that decoded rows and computed a chunk; they count as a decode and as a prefill pass too.
        preemptions: sequences that gave their blocks back and were computed again.
        fp8_calibrations_frozen: layers whose FP8 scales were found.
        graph_captures: decode steps captured in a graph.
        graph_replays: decode steps that ran from a graph captured before.
        graphs_dropped: graphs dropped because their slot changed hands, or by `Engine.drop_graphs`.
        graph_evictions: graphs that gave way to newer ones.
        capture_failures: captures that failed; their steps ran eagerly.
        eager_decode_steps: decode steps that ran without a graph, by reason; a step counts under each of its reasons.
    """

    decode_steps: int = 0
    decoded_tokens: int = 0
    prefill_chunks: int = 0
    prefill_tokens: int = 0
    split_prefills: int = 0
    fused_steps: int = 0
    preemptions: int = 0
    fp8_calibrations_frozen: int = 0
    graph_captures: int = 0
    graph_replays: int = 0
    graphs_dropped: int = 0
    graph_evictions: int = 0
    capture_failures: int = 0
    eager_decode_steps: Counter[str] = field(default_factory=Counter[str])

    def as_json(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {one.name: getattr(self, one.name) for one in fields(self)}
