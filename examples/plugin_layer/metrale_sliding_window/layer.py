# SPDX-License-Identifier: MIT OR Apache-2.0
"""A Llama-like decoder block in which each token sees only the last few before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from metrale_caps import PagedKvSpec, declares
from metrale_sliding_window.kernels import attend, write_pages

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps import ForwardContext
    from metrale_caps.plugins import BlockSource

_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds whose frequencies do not change with the length of the prompt."""


@declares("decode_rollback_unsupported")
@declares("decode_verify_multi_unsupported")
@declares("supports_replay_tail_split")
class SlidingWindowLayer:
    """A block of Llama or Qwen3 with sliding-window attention.

    It computes with the block's own modules, so that it shares their weights, and keeps nothing but keys and values in
    the engine's pages.
    """

    def __init__(self, source: BlockSource, window: int) -> None:
        """Take over a block.

        Raises:
            ValueError: the window is empty, or positions are rotated in a way that depends on the prompt's length.
        """
        if window < 1:
            raise ValueError(f"the window is {window}; it must be at least 1, since a token sees itself")
        self._block = source.block
        self._attention: Any = source.block.self_attn
        self._head_dim = int(self._attention.head_dim)
        self._window = window
        self._frequencies, self._rotation_scale = _rotation(source)

    def decode_rollback_unsupported(self) -> bool:
        """A ring of the last keys could not be rewound; these keys stay in the engine's pages, which can."""
        return False

    def decode_verify_multi_unsupported(self) -> bool:
        """The kernel takes any number of rows from any number of sequences."""
        return False

    def supports_replay_tail_split(self) -> bool:
        """The projections are ordinary matrix products: a row's last bits depend on how many others there are."""
        return False

    def kv_cache_spec(self) -> PagedKvSpec:
        """Ask for pages; see `PagedKvLayer`."""
        return PagedKvSpec(self._attention.k_proj.out_features // self._head_dim, self._head_dim, self._head_dim)

    def decode(self, hidden: Tensor, context: ForwardContext, /) -> Tensor:
        """Compute any rows of any sequences, each after the history that its pages hold."""
        block = self._block
        hidden = hidden + self._attend(block.input_layernorm(hidden), context)
        return hidden + block.mlp(block.post_attention_layernorm(hidden))

    # rows carry their positions, so that every kind of step is the same computation
    decode_multi_seq = decode_verify = decode_verify_multi = prefill = decode

    def _attend(self, rows: Tensor, context: ForwardContext) -> Tensor:
        attention, pages = self._attention, context.paged_kv()
        angles = (context.positions[:, None].float() * self._frequencies)[:, None]
        cos, sin = angles.cos() * self._rotation_scale, angles.sin() * self._rotation_scale
        query = _rotate(self._heads(attention.q_proj(rows), "q_norm"), cos, sin)
        key = _rotate(self._heads(attention.k_proj(rows), "k_norm"), cos, sin)
        write_pages(key, self._heads(attention.v_proj(rows)), context.cache_slots, pages)
        mixed = attend(query, pages, context, window=self._window, scale=attention.scaling)
        return attention.o_proj(mixed.flatten(1))

    def _heads(self, projected: Tensor, norm: str | None = None) -> Tensor:
        """Return `[rows, heads, head_dim]`, each head normalised where the block has such a norm, as Qwen3 does."""
        heads = projected.view(projected.shape[0], -1, self._head_dim)
        normalise = None if norm is None else getattr(self._attention, norm, None)
        return heads if normalise is None else normalise(heads)


def _rotation(source: BlockSource) -> tuple[Tensor, float]:
    """Return what a position adds to the angle of each pair of channels, `[head_dim / 2]` fp32, and a scale."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    kind = source.config.rope_parameters["rope_type"]
    if kind not in _ROTATIONS:
        raise ValueError(f"positions are rotated by {kind!r}; known are {', '.join(_ROTATIONS)}")
    rotary: Any = LlamaRotaryEmbedding(source.config)
    return rotary.inv_freq.to(source.block.self_attn.q_proj.weight.device), float(rotary.attention_scaling)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs of channels `i` and `i + head_dim / 2`, computed in fp32."""
    first, second = heads.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(heads.dtype)
