# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs a decode step: one row for each sequence, through the route the plan decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrale_caps.layer import DecodeContext
from metrale_caps.routing.stack import row_by_row
from metrale_caps.routing.taken import RouteTaken

if TYPE_CHECKING:
    import torch

    from metrale_caps.routing.stack import Forward, LayerStates, Stack


class DecodeDispatcher:
    """Composes `decode` and `decode_multi_seq` over a stack.

    Attributes:
        one_by_one: a batch must not be handed to `run`: each of its sequences is a step of its own.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.one_by_one: bool = stack.plan.hc_perseq
        self._decode: tuple[Forward[DecodeContext], ...] = stack.forwards("decode")
        self._decode_multi_seq = stack.forwards("decode_multi_seq", otherwise=row_by_row(DecodeContext.row))
        self._single = RouteTaken("decode", "one sequence")
        self._several = _route_of_several(stack)

    def forwards(self, rows: int) -> tuple[Forward[DecodeContext], ...]:
        """Return each layer's part of a step of `rows` rows."""
        return self._decode if rows == 1 else self._decode_multi_seq

    def route(self, sequences: int) -> RouteTaken:
        """Return the route of a batch of `sequences` sequences."""
        return self._single if sequences == 1 else self._several

    def run(self, hidden: torch.Tensor, context: DecodeContext, states: LayerStates) -> torch.Tensor:
        """Decode one token of each sequence.

        Args:
            hidden: `[sequences, hidden_size]`; may be overwritten.
            context: the step; pages and states are set per layer here.
            states: the states of the layers that own theirs, for each sequence.

        Returns:
            Hidden rows `[sequences, hidden_size]`, in the order given; rows of padding are zeros.
        """
        return self._stack.run(self.forwards(hidden.shape[0]), hidden, context, states)


def _route_of_several(stack: Stack) -> RouteTaken:
    batched = stack.plan.decision("batched_decode")
    lacking = () if stack.plan.hc_perseq else stack.lacking("decode_multi_seq")
    route = f"{batched.route}, row by row on some layers" if lacking else batched.route
    return RouteTaken("decode", route, (*batched.reasons, *lacking))
