# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs decode rows and one chunk of a prompt in one pass: layer by layer, the decode rows first.

Each layer's weights are read once for both. The rows never mix: a layer gets them in two calls, each with a context of
its own, so that no layer counts its rows from the wrong place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrale_caps.routing.stack import without_padding
from metrale_caps.routing.taken import RouteTaken

if TYPE_CHECKING:
    import torch

    from metrale_caps.layer import DecodeContext, PrefillContext
    from metrale_caps.routing.decode import DecodeDispatcher
    from metrale_caps.routing.prefill import PrefillDispatcher
    from metrale_caps.routing.stack import LayerStates, Stack


class FusedDispatcher:
    """Composes decode and prefill over a stack in one pass."""

    def __init__(self, stack: Stack, decode: DecodeDispatcher, prefill: PrefillDispatcher) -> None:
        self._stack = stack
        self._decode = decode
        self._prefill = prefill
        reasons = (*stack.lacking("decode_multi_seq"), *stack.lacking("prefill"))
        route = "decode rows and prefill chunk in one pass"
        self._route = RouteTaken("fused", f"{route}, row by row on some layers" if reasons else route, reasons)

    def run(
        self,
        decode: tuple[torch.Tensor, DecodeContext, LayerStates],
        prefill: tuple[torch.Tensor, PrefillContext, LayerStates],
    ) -> tuple[torch.Tensor, torch.Tensor, RouteTaken]:
        """Decode one token of each sequence and compute one chunk of another.

        Args:
            decode: hidden rows, context and states as for `DecodeDispatcher.run`.
            prefill: likewise as for `PrefillDispatcher.run`.

        Returns:
            Hidden rows of both, and the route taken.
        """
        rows, decode_context, decode_states = decode
        chunk, prefill_context, prefill_states = prefill
        rows = without_padding(rows, decode_context)
        forwards = zip(self._decode.forwards(rows.shape[0]), self._prefill.forwards, strict=True)
        for index, (of_rows, of_chunk) in enumerate(forwards):
            rows = self._stack.run_layer(index, of_rows, rows, decode_context, decode_states)
            chunk = self._stack.run_layer(index, of_chunk, chunk, prefill_context, prefill_states)
        return rows, chunk, self._route
