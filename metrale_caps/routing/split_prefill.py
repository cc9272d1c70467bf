# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs a whole prompt layer by layer: recurrent layers in three phases, the others with one `prefill`.

Projections and feed-forwards of a recurrent layer see one chunk at a time, so that their memory is bounded; its
recurrence runs once over the whole range. See SEED_BEHAVIOUR section 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from metrale_caps.layer import PrefillContext, forward_method
from metrale_caps.routing.taken import RouteTaken

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from metrale_caps.layer import SplitPrefillBuffers, SplitPrefillLayer
    from metrale_caps.routing.prefill import PrefillDispatcher
    from metrale_caps.routing.stack import LayerStates, Stack

_PHASES = ("prefill_phase1", "prefill_gdn_full", "prefill_phase3")


@dataclass(frozen=True, slots=True)
class PrefillRange:
    """A prompt as one range and as chunks of it.

    Attributes:
        whole: the range as one chunk.
        chunks: the same rows, chunk by chunk.
    """

    whole: PrefillContext
    chunks: Sequence[PrefillContext]


class SplitPrefillDispatcher:
    """Composes the three phases and `prefill` over a stack."""

    def __init__(self, stack: Stack, prefill: PrefillDispatcher) -> None:
        self._stack = stack
        self._prefill = prefill
        layers, phased = stack.plan.layers, stack.plan.split_prefill_layers
        self._phased = {index: cast("SplitPrefillLayer", layers[index]) for index in phased}
        for index, layer in self._phased.items():
            missing = [name for name in _PHASES if forward_method(layer, name) is None]
            if missing:  # the plan has refused such a stack
                raise LookupError(f"layer {index} has no {', '.join(missing)}")
        decision = stack.plan.decision("long_prefill")
        self._route = RouteTaken("prefill", decision.route, (*decision.reasons, *stack.lacking("prefill")))

    def run(
        self,
        hidden: torch.Tensor,
        prompt: PrefillRange,
        states: LayerStates,
        buffers: Callable[[int, int, int], SplitPrefillBuffers],
    ) -> tuple[torch.Tensor, RouteTaken]:
        """Compute a range of one sequence.

        Args:
            hidden: `[rows, hidden_size]` of the whole range; may be overwritten.
            prompt: the range.
            states: one entry, the sequence's states of the layers that own theirs.
            buffers: gives a layer's buffers, by its index, the range's start and its rows.

        Returns:
            Hidden rows `[rows, hidden_size]`, and the route taken.
        """
        for index, forward in enumerate(self._prefill.forwards):
            if index in self._phased:
                own = buffers(index, prompt.whole.chunk_start, hidden.shape[0])
                hidden = self._run_phases(index, hidden, prompt, states, own)
            else:
                hidden = self._stack.run_layer(index, forward, hidden, prompt.whole, states)
        return hidden, self._route

    def _run_phases(
        self, index: int, hidden: torch.Tensor, prompt: PrefillRange, states: LayerStates, buffers: SplitPrefillBuffers
    ) -> torch.Tensor:
        layer: Any = self._phased[index]
        first = prompt.whole.chunk_start
        chunks = [
            (slice(chunk.chunk_start - first, chunk.chunk_start - first + chunk.max_rows), chunk)
            for chunk in (self._stack.context(index, chunk, states) for chunk in prompt.chunks)
        ]
        for rows, context in chunks:
            layer.prefill_phase1(hidden[rows], context, buffers)
        layer.prefill_gdn_full(self._stack.context(index, prompt.whole, states), buffers)
        for rows, context in chunks:
            added = layer.prefill_phase3(hidden[rows], context, buffers)
            if added.data_ptr() != hidden[rows].data_ptr():
                hidden[rows] = added
        return hidden
