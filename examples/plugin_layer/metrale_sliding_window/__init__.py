# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sliding-window attention as a plugin for `metrale-caps`.

Importing this is light: whoever only lists plugins waits neither for torch nor for Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metrale_caps.plugins import BlockSource, LayerRegistrar
    from metrale_sliding_window.layer import SlidingWindowLayer

__all__ = ["DEFAULT_WINDOW", "build", "example", "register"]

DEFAULT_WINDOW = 1024
"""The window of a model whose configuration names none."""


def register(registrar: LayerRegistrar) -> None:
    """Register the layer; the entry point names this function."""
    registrar.add("sliding_window", build, example=example)


def build(source: BlockSource) -> SlidingWindowLayer | None:
    """Make the layer of a block, or return None for a block that attends to everything by its model's design."""
    from metrale_sliding_window.layer import SlidingWindowLayer

    window: int | None = getattr(source.config, "sliding_window", None)
    kinds: list[str] | None = getattr(source.config, "layer_types", None)
    if window is not None and kinds is not None and kinds[source.index] == "full_attention":
        return None
    return SlidingWindowLayer(source, DEFAULT_WINDOW if window is None else window)


def example() -> SlidingWindowLayer:
    """Make a small layer with random weights."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    from metrale_caps.plugins import BlockSource
    from metrale_sliding_window.layer import SlidingWindowLayer

    config = LlamaConfig(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2)
    block = LlamaDecoderLayer(config, layer_idx=0).eval()
    return SlidingWindowLayer(BlockSource(block=block, config=config, index=0, context_tokens=64), window=16)
