# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs a decode step: one row for each sequence, through the route the plan decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metrale_caps.layer import DecodeContext
from metrale_caps.routing.stack import row_by_row
from metrale_caps.routing.taken import RouteTaken

if TYPE_CHECKING:
    from metrale_caps.routing.stack import Forward, LayerStates, Stack


class DecodeDispatcher:
    """Composes `decode` and `decode_multi_seq` over a stack."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._decode: tuple[Forward[DecodeContext], ...] = stack.forwards("decode")
        self._decode_multi_seq = stack.forwards("decode_multi_seq", otherwise=row_by_row(DecodeContext.row))
        self._single = RouteTaken("decode", "one sequence")
        self._several = _route_of_several(stack)

    def run(self, hidden: torch.Tensor, context: DecodeContext, states: LayerStates) -> tuple[torch.Tensor, RouteTaken]:
        """Decode one token of each sequence.

        Args:
            hidden: `[sequences, hidden_size]`; may be overwritten.
            context: the step; pages and states are set per layer here.
            states: the states of the layers that own theirs, for each sequence.

        Returns:
            Hidden rows `[sequences, hidden_size]`, in the order given, and the route taken.
        """
        if hidden.shape[0] == 1:
            return self._stack.run(self._decode, hidden, context, states), self._single
        if self._stack.plan.hc_perseq:
            return self._run_per_sequence(hidden, context, states), self._several
        return self._stack.run(self._decode_multi_seq, hidden, context, states), self._several

    def _run_per_sequence(self, hidden: torch.Tensor, context: DecodeContext, states: LayerStates) -> torch.Tensor:
        rows = [
            self._stack.run(self._decode, hidden[row : row + 1], context.row(row), states[row : row + 1])
            for row in range(hidden.shape[0])
        ]
        return torch.cat(rows)


def _route_of_several(stack: Stack) -> RouteTaken:
    batched = stack.plan.decision("batched_decode")
    lacking = () if stack.plan.hc_perseq else stack.lacking("decode_multi_seq")
    route = f"{batched.route}, row by row on some layers" if lacking else batched.route
    return RouteTaken("decode", route, (*batched.reasons, *lacking))
