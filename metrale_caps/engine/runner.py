# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs steps of a decoder: embedding, the dispatched stack, logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from metrale_caps.engine.decoding import DecodeSteps
from metrale_caps.engine.inputs import prefill_inputs
from metrale_caps.engine.pages import make_pages
from metrale_caps.errors import ConfigurationError
from metrale_caps.routing.decision import EngineReason
from metrale_caps.routing.decode import DecodeDispatcher
from metrale_caps.routing.fused import FusedDispatcher
from metrale_caps.routing.limits import UNAVAILABLE
from metrale_caps.routing.plan import RoutePlan
from metrale_caps.routing.prefill import PrefillDispatcher
from metrale_caps.routing.stack import Stack
from metrale_caps.routing.taken import RouteTaken

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from metrale_caps.engine.counters import Counters
    from metrale_caps.engine.options import EngineOptions
    from metrale_caps.engine.scheduler import Chunk
    from metrale_caps.layer import OwnStateLayer, PagedKv, PrefillContext
    from metrale_caps.models.decoder import Decoder
    from metrale_caps.routing.decision import DecisionName
    from metrale_caps.routing.stack import LayerStates
    from metrale_caps.state.sequence import Sequence


class Runner:
    """A decoder with its plan, pages and dispatchers.

    Attributes:
        decoder: the model.
        plan: its routes.
        pages: each layer's pages.
        decode_steps: its decode steps and their graphs.
    """

    def __init__(self, decoder: Decoder, *, num_blocks: int, options: EngineOptions, counters: Counters) -> None:
        self.decoder = decoder
        self.pages: tuple[PagedKv | None, ...] = make_pages(decoder, num_blocks, options, counters)
        self.plan: RoutePlan = RoutePlan(decoder.layers, unavailable=_unavailable(options))
        _refuse_pool_layers(self.plan)
        self._block_size = options.block_size
        stack = Stack(self.plan, self.pages)
        decode = DecodeDispatcher(stack)
        self._prefill = PrefillDispatcher(stack)
        self._fused = FusedDispatcher(stack, decode, self._prefill)
        self.decode_steps: DecodeSteps = DecodeSteps(
            decoder, stack, decode, num_blocks=num_blocks, options=options, counters=counters
        )

    @property
    def fuses(self) -> bool:
        """Whether decode rows and a chunk may run in one pass."""
        return not self.plan.hc_qsa_perseq

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run decode steps of padding alone."""
        self.decode_steps.warm_up()

    @torch.inference_mode()
    def decode(self, sequences: Rows[Sequence]) -> tuple[torch.Tensor, tuple[RouteTaken, ...]]:
        """Return logits `[sequences, vocabulary]` of the next token of each sequence, and the route each one took."""
        return self.decode_steps.run(sequences)

    @torch.inference_mode()
    def prefill(self, chunk: Chunk, *, split: bool = False) -> tuple[torch.Tensor | None, RouteTaken]:
        """Compute a chunk; logits `[1, vocabulary]` where that completes the sequence's tokens, else None.

        Args:
            chunk: the positions to compute.
            split: the chunk might have run in one pass with the step's decode rows, had no layer declined.
        """
        hidden, context, states = self._chunk_inputs(chunk)
        hidden, route = self._prefill.run(hidden, context, states)
        return self._logits_of(chunk, hidden), self._split_route(route) if split else route

    @torch.inference_mode()
    def fused(self, sequences: Rows[Sequence], chunk: Chunk) -> tuple[torch.Tensor, torch.Tensor | None, RouteTaken]:
        """Decode one token of each sequence and compute a chunk in one pass; logits of both, and the route."""
        step = self.decode_steps.inputs(sequences)
        rows, hidden, route = self._fused.run(
            (self.decoder.embed(step.buffers.tokens), step.context, step.states), self._chunk_inputs(chunk)
        )
        self.decode_steps.count_eager((EngineReason("a fused step has no graph"),))
        return self.decoder.logits(rows[: len(sequences)]), self._logits_of(chunk, hidden), route

    def _chunk_inputs(self, chunk: Chunk) -> tuple[torch.Tensor, PrefillContext, LayerStates]:
        tokens, context = prefill_inputs(chunk.sequence, chunk.end, self._block_size, self.decoder.device)
        return self.decoder.embed(tokens), context, [chunk.sequence.layer_states]

    def _logits_of(self, chunk: Chunk, hidden: torch.Tensor) -> torch.Tensor | None:
        return None if chunk.end < len(chunk.sequence.tokens) else self.decoder.logits(hidden[-1:])

    def _split_route(self, route: RouteTaken) -> RouteTaken:
        fused = self.plan.decision("fused_step")
        return RouteTaken(route.step, f"{route.route}; {fused.route}", (*fused.reasons, *route.reasons))

    @torch.inference_mode()
    def start(self, sequence: Sequence) -> None:
        """Allocate the states of the layers that own theirs."""
        for index in self.plan.own_state_layers:
            layer = cast("OwnStateLayer", self.plan.layers[index])
            sequence.layer_states[index] = layer.alloc_state()

    @torch.inference_mode()
    def release(self, sequence: Sequence, slot: int) -> None:
        """Release those states, each exactly once, and drop what is stale with them.

        All are tried before the first error comes out.
        """
        self.decode_steps.released(slot)
        errors: list[Exception] = []
        while sequence.layer_states:
            index, state = sequence.layer_states.popitem()
            try:
                cast("OwnStateLayer", self.plan.layers[index]).release_state(state)
            except Exception as error:  # noqa: BLE001 - a layer's failure must not leak the states after it
                errors.append(error)
        if errors:
            raise errors[0]


def _unavailable(options: EngineOptions) -> dict[DecisionName, str]:
    if options.decode_graphs:
        return dict(UNAVAILABLE)
    return {**UNAVAILABLE, "decode_graph": "the option decode_graphs is False"}


def _refuse_pool_layers(plan: RoutePlan) -> None:
    for index in plan.split_prefill_layers:
        if index not in plan.own_state_layers:
            raise ConfigurationError(
                f"layer {index} ({plan.capabilities[index].layer_type}) keeps recurrent state in a pool, which "
                "this engine does not have yet; a layer that owns its state answers False to uses_ssm_pool"
            )
