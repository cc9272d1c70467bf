# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs steps of a decoder: embedding, the dispatched stack, logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from metrale_caps.engine.inputs import decode_inputs, prefill_inputs
from metrale_caps.errors import ConfigurationError
from metrale_caps.routing.decode import DecodeDispatcher
from metrale_caps.routing.limits import UNAVAILABLE
from metrale_caps.routing.plan import RoutePlan
from metrale_caps.routing.prefill import PrefillDispatcher
from metrale_caps.routing.stack import Stack
from metrale_caps.state.paged_kv import allocate_pages, kv_specs

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from metrale_caps.layer import OwnStateLayer, PagedKv
    from metrale_caps.models.decoder import Decoder
    from metrale_caps.routing.taken import RouteTaken
    from metrale_caps.state.sequence import Sequence


class Runner:
    """A decoder with its plan, pages and dispatchers.

    Attributes:
        decoder: the model.
        plan: its routes.
        block_size: tokens a block holds.
        pages: each layer's pages.
    """

    def __init__(self, decoder: Decoder, *, num_blocks: int, block_size: int) -> None:
        self.decoder = decoder
        self.block_size = block_size
        self.plan: RoutePlan = RoutePlan(decoder.layers, unavailable=UNAVAILABLE)
        _refuse_pool_layers(self.plan)
        self.pages: tuple[PagedKv | None, ...] = allocate_pages(
            kv_specs(decoder.layers), num_blocks, block_size, dtype=decoder.dtype, device=decoder.device
        )
        stack = Stack(self.plan, self.pages)
        self._decode = DecodeDispatcher(stack)
        self._prefill = PrefillDispatcher(stack)

    @torch.inference_mode()
    def decode(self, sequences: Rows[Sequence]) -> tuple[torch.Tensor, RouteTaken]:
        """Return logits `[sequences, vocabulary]` of the next token of each sequence, and the route taken."""
        tokens, context = decode_inputs(sequences, self.block_size, self.decoder.device)
        states = [sequence.layer_states for sequence in sequences]
        hidden, route = self._decode.run(self.decoder.embed(tokens), context, states)
        return self.decoder.logits(hidden), route

    @torch.inference_mode()
    def prefill(self, sequence: Sequence, end: int) -> tuple[torch.Tensor | None, RouteTaken]:
        """Compute positions `[cursor, end)`; logits `[1, vocabulary]` where that completes the tokens, else None."""
        tokens, context = prefill_inputs(sequence, end, self.block_size, self.decoder.device)
        hidden, route = self._prefill.run(self.decoder.embed(tokens), context, [sequence.layer_states])
        if end < len(sequence.tokens):
            return None, route
        return self.decoder.logits(hidden[-1:]), route

    def start(self, sequence: Sequence) -> None:
        """Allocate the states of the layers that own theirs."""
        for index in self.plan.own_state_layers:
            layer = cast("OwnStateLayer", self.plan.layers[index])
            sequence.layer_states[index] = layer.alloc_state()

    def release(self, sequence: Sequence) -> None:
        """Release those states, each exactly once; all are tried before the first error comes out."""
        errors: list[Exception] = []
        while sequence.layer_states:
            index, state = sequence.layer_states.popitem()
            try:
                cast("OwnStateLayer", self.plan.layers[index]).release_state(state)
            except Exception as error:  # noqa: BLE001 - a layer's failure must not leak the states after it
                errors.append(error)
        if errors:
            raise errors[0]


def _refuse_pool_layers(plan: RoutePlan) -> None:
    for index in plan.split_prefill_layers:
        if index not in plan.own_state_layers:
            raise ConfigurationError(
                f"layer {index} ({plan.capabilities[index].layer_type}) keeps recurrent state in a pool, which "
                "this engine does not have yet; a layer that owns its state answers False to uses_ssm_pool"
            )
