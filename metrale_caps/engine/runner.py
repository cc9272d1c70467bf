# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs steps of a decoder: embedding, the dispatched stack, logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from metrale_caps.engine.decoding import DecodeSteps
from metrale_caps.engine.inputs import prefill_context, prompt_tokens
from metrale_caps.engine.pages import make_pages
from metrale_caps.routing.decision import EngineReason
from metrale_caps.routing.decode import DecodeDispatcher
from metrale_caps.routing.fused import FusedDispatcher
from metrale_caps.routing.limits import UNAVAILABLE
from metrale_caps.routing.plan import RoutePlan
from metrale_caps.routing.prefill import PrefillDispatcher
from metrale_caps.routing.split_prefill import PrefillRange, SplitPrefillDispatcher
from metrale_caps.routing.stack import Stack
from metrale_caps.routing.taken import RouteTaken
from metrale_caps.state.split_prefill_arena import DEFAULT_BYTES, SplitPrefillArena
from metrale_caps.state.ssm_pool import SsmPool, ssm_specs

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
    """A decoder with its plan, what its layers keep, and its dispatchers.

    Attributes:
        decoder: the model.
        plan: its routes.
        pages: each layer's pages.
        pool: the recurrent state of the layers that keep theirs in the pool.
        arena: what layers keep between the phases of a split prefill.
        decode_steps: its decode steps and their graphs.
    """

    def __init__(self, decoder: Decoder, *, num_blocks: int, options: EngineOptions, counters: Counters) -> None:
        self.decoder = decoder
        self.pages: tuple[PagedKv | None, ...] = make_pages(decoder, num_blocks, options, counters)
        self.plan: RoutePlan = RoutePlan(decoder.layers, unavailable=_unavailable(options, decoder))
        specs = ssm_specs(decoder.layers, self.plan.own_state_layers)
        self.pool: SsmPool = SsmPool(specs, options.max_slots, dtype=decoder.dtype, device=decoder.device)
        self.arena: SplitPrefillArena = _arena(decoder, self.plan, options)
        self._block_size = options.block_size
        self._prefill_chunk = options.prefill_chunk
        stack = Stack(self.plan, self.pages, self.pool.layers)
        decode = DecodeDispatcher(stack)
        self._prefill = PrefillDispatcher(stack)
        self._split_prefill = SplitPrefillDispatcher(stack, self._prefill)
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
    def prefill(self, chunk: Chunk, *, unfused: bool = False) -> tuple[torch.Tensor | None, RouteTaken]:
        """Compute a chunk; logits `[1, vocabulary]` where that completes the sequence's tokens, else None.

        Args:
            chunk: the positions to compute.
            unfused: the chunk might have run in one pass with the step's decode rows, had no layer declined.
        """
        hidden, context, states = self._chunk_inputs(chunk)
        if chunk.split:
            hidden, route = self._split_prefill.run(
                hidden, PrefillRange(context, self._parts(chunk)), states, self.arena.buffers
            )
        else:
            hidden, route = self._prefill.run(hidden, context, states)
            reasons = self._unsplit(chunk)
            route = RouteTaken(route.step, route.route, (*reasons, *route.reasons)) if reasons else route
        return self._logits_of(chunk, hidden), self._unfused_route(route) if unfused else route

    def _unsplit(self, chunk: Chunk) -> tuple[EngineReason, ...]:
        """Return why a long prompt is not computed in phases."""
        if not self.arena.tokens or len(chunk.sequence.tokens) <= self._prefill_chunk:
            return ()
        if len(chunk.sequence.tokens) > self.arena.tokens:
            return (
                EngineReason(
                    f"the buffers of a split prefill hold {self.arena.tokens} tokens, and the prompt has more"
                ),
            )
        return (EngineReason("a split prefill would keep other sequences waiting"),)

    def _parts(self, chunk: Chunk) -> list[PrefillContext]:
        size, end = self._prefill_chunk, chunk.end
        return [self._context(chunk, at, min(at + size, end)) for at in range(chunk.sequence.cursor, end, size)]

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
        tokens = prompt_tokens(chunk.sequence, chunk.end, self.decoder.device)
        context = self._context(chunk, chunk.sequence.cursor, chunk.end)
        return self.decoder.embed(tokens), context, [chunk.sequence.layer_states]

    def _context(self, chunk: Chunk, start: int, end: int) -> PrefillContext:
        return prefill_context(chunk.sequence, start, end, block_size=self._block_size, device=self.decoder.device)

    def _logits_of(self, chunk: Chunk, hidden: torch.Tensor) -> torch.Tensor | None:
        return None if chunk.end < len(chunk.sequence.tokens) else self.decoder.logits(hidden[-1:])

    def _unfused_route(self, route: RouteTaken) -> RouteTaken:
        fused = self.plan.decision("fused_step")
        return RouteTaken(route.step, f"{route.route}; {fused.route}", (*fused.reasons, *route.reasons))

    @torch.inference_mode()
    def start(self, sequence: Sequence) -> None:
        """Give a sequence its part of the pool, and allocate the states of the layers that own theirs."""
        if sequence.slot is not None:
            self.pool.claim(sequence.slot)
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
        try:
            self.pool.release(slot)
        except Exception as error:  # noqa: BLE001 - as above
            errors.append(error)
        if errors:
            raise errors[0]


def _unavailable(options: EngineOptions, decoder: Decoder) -> dict[DecisionName, str]:
    unavailable = dict(UNAVAILABLE)
    if not options.decode_graphs:
        unavailable["decode_graph"] = "the option decode_graphs is False"
    if not options.split_prefill:
        unavailable["long_prefill"] = "the option split_prefill is False"
    elif _most_split_tokens(options, decoder) <= options.prefill_chunk:
        unavailable["long_prefill"] = f"no prompt can be longer than a chunk, {options.prefill_chunk} tokens"
    return unavailable


def _most_split_tokens(options: EngineOptions, decoder: Decoder) -> int:
    return min(options.split_prefill_tokens or decoder.context_tokens, decoder.context_tokens)


def _arena(decoder: Decoder, plan: RoutePlan, options: EngineOptions) -> SplitPrefillArena:
    most_tokens = _most_split_tokens(options, decoder)
    can_split = options.split_prefill and most_tokens > options.prefill_chunk
    return SplitPrefillArena(
        {index: decoder.layers[index] for index in (plan.split_prefill_layers if can_split else ())},
        most_tokens=most_tokens,
        most_bytes=None if options.split_prefill_tokens else DEFAULT_BYTES,
        dtype=decoder.dtype,
        device=decoder.device,
    )
