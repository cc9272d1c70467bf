# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs a whole prompt layer by layer: recurrent layers in three phases, the others with `prefill` chunk by chunk.

Everything sees one chunk at a time, so that memory is bounded, but for a recurrent layer's recurrence, which runs once
over the whole range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from metrale_caps.errors import LayerResultError
from metrale_caps.routing.taken import RouteTaken

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metrale_caps.layer import PrefillContext, SplitPrefillBuffers, SplitPrefillLayer
    from metrale_caps.routing.prefill import PrefillDispatcher
    from metrale_caps.routing.stack import LayerStates, Stack


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
        # the plan has refused a stack in which one of them lacks a phase
        self._phased = {index: cast("SplitPrefillLayer", layers[index]) for index in phased}
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
        first = prompt.whole.chunk_start
        chunks = [
            (slice(chunk.chunk_start - first, chunk.chunk_start - first + chunk.max_rows), chunk)
            for chunk in prompt.chunks
        ]
        for index, forward in enumerate(self._prefill.forwards):
            if index in self._phased:
                own = buffers(index, first, hidden.shape[0])
                self._run_phases(index, hidden, prompt.whole, chunks, states, own)
                continue
            for rows, context in chunks:
                hidden[rows] = self._stack.run_layer(index, forward, hidden[rows], context, states)
        return hidden, self._route

    def _run_phases(
        self,
        index: int,
        hidden: torch.Tensor,
        whole: PrefillContext,
        chunks: Sequence[tuple[slice, PrefillContext]],
        states: LayerStates,
        buffers: SplitPrefillBuffers,
    ) -> None:
        """Run one layer's phases over hidden rows, in place."""
        stack, layer = self._stack, self._phased[index]
        own = [(rows, stack.context(index, context, states)) for rows, context in chunks]
        for rows, context in own:
            # on a GPU looking at the rows would wait for it
            before = hidden[rows].clone() if hidden.device.type == "cpu" else None
            stack.call(index, layer.prefill_phase1, hidden[rows], context, buffers)
            if before is not None and not torch.equal(before.nan_to_num(), hidden[rows].nan_to_num()):
                detail = "changed the hidden rows that it was given; the third phase adds to them"
                raise LayerResultError(index, stack.layer_type(index), "prefill_phase1", detail)
        stack.call(index, layer.prefill_gdn_full, stack.context(index, whole, states), buffers)
        for rows, context in own:
            result = stack.call(index, layer.prefill_phase3, hidden[rows], context, buffers)
            hidden[rows] = stack.checked(index, layer.prefill_phase3, result, hidden[rows])
