# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs one chunk of a prompt through the route the plan decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrale_caps.layer import PrefillContext
from metrale_caps.routing.stack import row_by_row
from metrale_caps.routing.taken import RouteTaken

if TYPE_CHECKING:
    import torch

    from metrale_caps.routing.stack import Forward, LayerStates, Stack


class PrefillDispatcher:
    """Composes `prefill` over a stack; a layer without it computes its rows one `decode` at a time.

    Attributes:
        forwards: each layer's part of a chunk.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.forwards: tuple[Forward[PrefillContext], ...] = stack.forwards(
            "prefill", otherwise=row_by_row(PrefillContext.decode_row)
        )
        lacking = stack.lacking("prefill")
        route = "`prefill` per chunk, row by row on some layers" if lacking else "`prefill` per chunk"
        self._route = RouteTaken("prefill", route, lacking)

    def run(
        self, hidden: torch.Tensor, context: PrefillContext, states: LayerStates
    ) -> tuple[torch.Tensor, RouteTaken]:
        """Compute one chunk of one sequence.

        Args:
            hidden: `[rows, hidden_size]`; may be overwritten.
            context: the chunk; pages and state are set per layer here.
            states: one entry, the sequence's states of the layers that own theirs.

        Returns:
            Hidden rows `[rows, hidden_size]`, and the route taken.
        """
        return self._stack.run(self.forwards, hidden, context, states), self._route
