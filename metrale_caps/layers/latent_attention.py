# SPDX-License-Identifier: MIT OR Apache-2.0
"""A decoder block with multi-head latent attention over paged latents (DeepSeek-V2, 2024), as Kimi Linear has it.

A token's cache is one latent that all heads share, and a few channels beside it. Queries are taken into the latent's
space and what is attended is taken out of it (the absorbed form), in decode and in prefill alike: a chunk reads the
latents of its whole history, so that a prefill may start anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from metrale_caps.layer import PagedKvSpec
from metrale_caps.layers.block import AttentionBlock

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.layer import ForwardContext
    from metrale_caps.layers.block import BlockParts
    from metrale_caps.layers.projection import Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionShape:
    """Sizes of the attention half.

    Attributes:
        heads: heads of queries.
        rank: width of a latent.
        nope_dim: channels of a query that meet the latent.
        shared_dim: channels of a query that meet the key that all heads share; this layer does not rotate them.
        value_dim: width of a head's value.
        scale: factor of the scores.
        latent_eps: epsilon of the latent's norm.
    """

    heads: int
    rank: int
    nope_dim: int
    shared_dim: int
    value_dim: int
    scale: float
    latent_eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionWeights:
    """Weights of the attention half.

    Attributes:
        query_latent: queries of all heads, `nope_dim + shared_dim` each, the latent and the shared key in one
            projection.
        latent_norm: `[rank]`.
        key_up: `[heads, nope_dim, rank]`, latents to keys.
        value_up: `[heads, rank, value_dim]`, latents to values.
        output: `[hidden_size, heads * value_dim]`.
    """

    query_latent: Projection
    latent_norm: Tensor
    key_up: Tensor
    value_up: Tensor
    output: Projection


class LatentAttentionLayer(AttentionBlock):
    """Pre-norm decoder block: latent attention, then feed-forward, each added to the residual stream.

    It keeps nothing but pages, reads the cached latents in every step, and lets each row see all before it, so the
    documented default is its answer to every query.
    """

    def __init__(self, *, attention: LatentAttentionWeights, shape: LatentAttentionShape, block: BlockParts) -> None:
        super().__init__(block)
        self._attention = attention
        self._shape = shape

    def kv_cache_spec(self) -> PagedKvSpec:
        """Return the pages this layer needs: a latent and the shared key for each token, and no values."""
        return PagedKvSpec(1, self._shape.rank + self._shape.shared_dim, 0)

    @override
    def attend(self, rows: Tensor, context: ForwardContext) -> Tensor:
        """Return attention's part of the residual stream, over pages to which these rows are written first."""
        shape, weights = self._shape, self._attention
        pages = context.paged_kv().keys[:, :, 0]
        width = shape.nope_dim + shape.shared_dim
        query, latent = torch.split(
            weights.query_latent(rows), [shape.heads * width, shape.rank + shape.shared_dim], dim=-1
        )
        self.operations.latent_store(
            latent, weights.latent_norm, shape.latent_eps, context.cache_slots, pages, rank=shape.rank
        )
        attended = self.operations.latent_attention(
            self._absorbed(query.view(query.shape[0], shape.heads, width)),
            pages,
            context.block_tables,
            context.lengths,
            context.row_starts,
            rank=shape.rank,
            scale=shape.scale,
            max_rows=context.max_rows,
            max_length=context.max_length,
        )
        values = torch.bmm(attended.transpose(0, 1), weights.value_up)
        return weights.output(values.transpose(0, 1).flatten(1))

    def _absorbed(self, query: Tensor) -> Tensor:
        """Take queries into the latent's space, `[rows, heads, rank + shared_dim]`."""
        shape = self._shape
        absorbed = query.new_empty(query.shape[0], shape.heads, shape.rank + shape.shared_dim)
        nope, shared = torch.split(query, [shape.nope_dim, shape.shared_dim], dim=-1)
        absorbed[..., : shape.rank] = torch.bmm(nope.transpose(0, 1), self._attention.key_up).transpose(0, 1)
        absorbed[..., shape.rank :] = shared
        return absorbed
