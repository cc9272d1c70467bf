# SPDX-License-Identifier: MIT OR Apache-2.0
"""Drives a runner step by step: sequences that come and go in slots and blocks which others had before them."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import torch

from metrale_caps.engine.counters import Counters
from metrale_caps.engine.options import EngineOptions
from metrale_caps.engine.runner import Runner
from metrale_caps.engine.scheduler import Chunk
from metrale_caps.kernels.operations import Operations, operations
from metrale_caps.models.registry import build_decoder
from metrale_caps.state.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps.models.decoder import Decoder
    from metrale_caps.routing.taken import RouteTaken

BLOCKS_EACH = 6
TEXT = [(7 * index * index + 3 * index + 5) % 126 + 2 for index in range(400)]


def make_decoder(model: Any, kernels: Any = "naive", **attention: Any) -> Decoder:
    """Build a decoder; `attention` overrides arguments of its attention, such as a window or a number of splits."""
    chosen: Operations = operations(kernels)
    if attention:
        chosen = dataclasses.replace(
            chosen, paged_attention=functools.partial(_overridden, chosen.paged_attention, attention)
        )
    return build_decoder(model, chosen, consume=False)


def _overridden(operation: Callable[..., Any], overrides: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    return operation(*args, **{**kwargs, **overrides})


def with_layer(decoder: Decoder, position: int, wrap: Callable[[Any], Any]) -> tuple[Decoder, Any]:
    """Put a layer made from the one at a position in its place; return both."""
    layer = wrap(decoder.layers[position])
    layers = (*decoder.layers[:position], layer, *decoder.layers[position + 1 :])
    return dataclasses.replace(decoder, layers=layers), layer


class Steps:
    """A runner whose unwritten pages hold NaN, with its sequences by slot; slot s has blocks of its own."""

    def __init__(self, decoder: Decoder, **options: Any) -> None:
        """Make the runner."""
        self.counters = Counters()
        self.options = EngineOptions(**options)
        self.runner = Runner(decoder, num_blocks=8 * BLOCKS_EACH, options=self.options, counters=self.counters)
        self.sequences: dict[int, Sequence] = {}
        for pages in self.runner.pages:
            if pages is not None and pages.key_scale is None:
                pages.keys.fill_(torch.nan)
                pages.values.fill_(torch.nan)

    def start(self, slot: int, tokens: list[int]) -> Sequence:
        """Start a sequence in a slot and compute its prompt."""
        sequence = self.begin(slot, tokens)
        self.prefill(sequence)
        return sequence

    def begin(self, slot: int, tokens: list[int]) -> Sequence:
        """Start a sequence in a slot."""
        blocks = list(range(BLOCKS_EACH * slot, BLOCKS_EACH * (slot + 1)))
        sequence = Sequence(slot, list(tokens), len(tokens), max_new_tokens=300, slot=slot, blocks=blocks)
        self.sequences[slot] = sequence
        self.runner.start(sequence)
        return sequence

    def prefill(self, sequence: Sequence, chunk: int = 64) -> torch.Tensor | None:
        """Compute a sequence up to its last token; return the logits of its next one."""
        logits = None
        while sequence.cursor < len(sequence.tokens):
            end = min(sequence.cursor + chunk, len(sequence.tokens))
            logits, _ = self.runner.prefill(Chunk(sequence, end))
            sequence.cursor = end
        return logits

    def finish(self, slot: int) -> None:
        """End a slot's sequence."""
        self.runner.release(self.sequences.pop(slot), slot)

    def decode(self, slots: list[int], tokens: list[int]) -> tuple[torch.Tensor, tuple[RouteTaken, ...]]:
        """Decode one token of each slot's sequence, in the order given; return logits and routes."""
        sequences = [self.sequences[slot] for slot in slots]
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.tokens.append(token)
        logits, routes = self.runner.decode(sequences)
        for sequence in sequences:
            sequence.cursor += 1
        return logits, routes

    def pages(self) -> list[torch.Tensor]:
        """Return copies of all pages that a sequence may hold."""
        return [tensor[:-1].clone() for kv in self.runner.pages if kv is not None for tensor in (kv.keys, kv.values)]
