# SPDX-License-Identifier: MIT OR Apache-2.0
"""A layer of your own in a running model, and what its answers do to the routes.

The layer wraps the model's third one. It counts the tokens of each sequence in a state that it owns, and it can decode
only one sequence at a time and take no token back; it says so, and the engine takes the routes that follow. Run it with

    python examples/own_layer.py

Expected output: the decisions that the layer changed, each naming layer 2, and two answers.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from metrale_caps.engine import Engine
from metrale_caps.kernels.operations import operations
from metrale_caps.models.checkpoint import find_checkpoint
from metrale_caps.models.loading import load_pretrained
from metrale_caps.models.registry import build_decoder

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps import DecodeContext, PagedKvSpec, PrefillContext


class CountingLayer:
    """Counts what passes through an inner layer, for each sequence on its own."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def decode_multi_seq_unsupported(self) -> bool:
        """The count below is for one sequence."""
        return True

    def decode_verify_multi_unsupported(self) -> bool:
        """Likewise for drafts."""
        return True

    def decode_rollback_unsupported(self) -> bool:
        """Tokens that were taken back would still be counted."""
        return True

    def uses_ssm_pool(self) -> bool:
        """The count lives in a state of the layer's own."""
        return False

    def alloc_state(self) -> dict[str, int]:
        """Start a sequence."""
        return {"tokens": 0}

    def release_state(self, state: dict[str, int], /) -> None:
        """End a sequence."""
        print(f"layer 2 saw {state['tokens']} tokens of a sequence")  # noqa: T201

    def kv_cache_spec(self) -> PagedKvSpec:
        """The inner layer's pages."""
        return self._inner.kv_cache_spec()

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:
        """Count one token."""
        self._count(context, 1)
        return self._inner.decode(hidden, context)

    def prefill(self, hidden: Tensor, context: PrefillContext, /) -> Tensor:
        """Count a chunk."""
        self._count(context, hidden.shape[0])
        return self._inner.prefill(hidden, context)

    def _count(self, context: DecodeContext | PrefillContext, tokens: int) -> None:
        state: Any = context.states[0]
        state["tokens"] += tokens


def main() -> None:
    """Put the layer into the default model and generate."""
    import torch

    loaded = load_pretrained(find_checkpoint(None), dtype=None, device=torch.device("cpu"))
    decoder = build_decoder(loaded.model, operations("naive"), consume=True)
    layers = (*decoder.layers[:2], CountingLayer(decoder.layers[2]), *decoder.layers[3:])
    engine = Engine(dataclasses.replace(decoder, layers=layers), tokenizer=loaded.tokenizer)
    for name in ("batched_decode", "recurrent_state"):
        print(engine.plan.decision(name))  # noqa: T201
    questions = ["What is the capital of France?", "Write one sentence about the sea."]
    for output in engine.generate(questions, max_new_tokens=16, chat=True):
        print(output.text)  # noqa: T201


if __name__ == "__main__":
    main()
