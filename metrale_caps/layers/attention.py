# SPDX-License-Identifier: MIT OR Apache-2.0
"""A decoder block with grouped-query attention over paged keys and values, as Llama and the Qwen families have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from metrale_caps.errors import ConfigurationError
from metrale_caps.layer import PagedKv, PagedKvSpec
from metrale_caps.layers.block import AttentionBlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from metrale_caps.kernels.rotary import RotaryTable
    from metrale_caps.layer import ForwardContext, KvCalibration
    from metrale_caps.layers.block import BlockParts
    from metrale_caps.layers.projection import Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Weights of the attention half.

    Attributes:
        query_key_value: queries, keys and values in one projection, in that order, and a gate for each query channel
            after them where the output is gated.
        output: `[hidden_size, query_heads * value_head_dim]`.
        query_norm: `[head_dim]`, RMS norm of each query head before the rotation (Qwen3), or None.
        key_norm: likewise for keys.
    """

    query_key_value: Projection
    output: Projection
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Sizes of the attention half.

    Attributes:
        query_heads: heads of queries.
        key_value_heads: heads of keys and values; divides `query_heads`.
        head_dim: width of a head.
        scale: factor of the scores.
        window: keys a row sees, itself included, or None for all before it.
        is_gated: whether what is attended is multiplied by the sigmoid of a gate (Qwen3-Next).
    """

    query_heads: int
    key_value_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    is_gated: bool = False


class GroupedQueryAttentionLayer(AttentionBlock):
    """Pre-norm decoder block: attention, then feed-forward, each added to the residual stream.

    Every step is the same computation over rows that carry their positions, so one method serves decode, verify and
    prefill. It keeps nothing but paged keys and values, so the documented default is its answer to every query, but
    for the calibration of FP8 pages.
    """

    def __init__(
        self, *, attention: AttentionWeights, shape: AttentionShape, rotary: RotaryTable, block: BlockParts
    ) -> None:
        super().__init__(block)
        self._attention = attention
        self._shape = shape
        self._rotary = rotary
        self._calibration: KvCalibration | None = None
        self._uses_fp8 = False

    def kv_cache_spec(self) -> PagedKvSpec:
        """Return the pages this layer needs."""
        shape = self._shape
        return PagedKvSpec(shape.key_value_heads, shape.head_dim, shape.head_dim)

    def use_fp8_kv(self, calibration: KvCalibration | None, /) -> None:
        """Keep pages in FP8; see `Fp8KvLayer`.

        With a calibration the layer has `fp8_calibration_frozen` from now on. Without, it never has, so that a layer
        around it that has no FP8 pages need not answer for it.

        Raises:
            ConfigurationError: they are in FP8 already, for another engine.
        """
        if self._uses_fp8:
            raise ConfigurationError("this layer keeps FP8 pages for an engine already; build the model anew")
        self._uses_fp8, self._calibration = True, calibration
        if calibration is not None:
            self.fp8_calibration_frozen: Callable[[], bool] = lambda: calibration.frozen

    @override
    def attend(self, rows: Tensor, context: ForwardContext) -> Tensor:
        """Return attention's part of the residual stream, over pages to which these rows are written first."""
        shape, weights, kv = self._shape, self._attention, context.paged_kv()
        query_key_value, gate = self._projected(rows)
        if kv.key_scale is None:
            query = self._rotate(query_key_value, context.positions, context.cache_slots, kv)
        else:
            query = self._rotate_to_fp8(query_key_value, context, kv)
        attended = self.operations.paged_attention(
            query,
            kv.keys,
            kv.values,
            context.block_tables,
            context.lengths,
            context.row_starts,
            scale=shape.scale,
            max_rows=context.max_rows,
            max_length=context.max_length,
            window=shape.window,
            key_scale=kv.key_scale,
            value_scale=kv.value_scale,
        )
        attended = attended.flatten(1)
        return weights.output(attended if gate is None else attended.mul_(gate.sigmoid()))

    def _projected(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return queries, keys and values `[rows, heads * head_dim]`, and the gate of what is attended."""
        packed, shape = self._attention.query_key_value(rows), self._shape
        if not shape.is_gated:
            return packed, None
        heads = shape.query_heads + 2 * shape.key_value_heads
        sizes = [heads * shape.head_dim, shape.query_heads * shape.head_dim]
        query_key_value, gate = torch.split(packed, sizes, dim=-1)
        return query_key_value, gate

    def _rotate(self, query_key_value: Tensor, positions: Tensor, cache_slots: Tensor, kv: PagedKv) -> Tensor:
        """Rotate queries and keys, write keys and values to pages of the same type, and return the queries."""
        return self.operations.rope_write_kv(
            query_key_value,
            self._rotary,
            positions,
            cache_slots,
            kv.keys,
            kv.values,
            query_heads=self._shape.query_heads,
            key_value_heads=self._shape.key_value_heads,
            query_norm=self._attention.query_norm,
            key_norm=self._attention.key_norm,
            eps=self.norm_eps,
        )

    def _rotate_to_fp8(self, query_key_value: Tensor, context: ForwardContext, kv: PagedKv) -> Tensor:
        """Do the same over pages of one token for each row, then store these where they belong, as FP8."""
        rows, shape = query_key_value.shape[0], self._shape
        scratch = query_key_value.new_empty(2, rows, 1, shape.key_value_heads, shape.head_dim)
        cells = torch.arange(rows, device=scratch.device)
        query = self._rotate(query_key_value, context.positions, cells, PagedKv(scratch[0], scratch[1]))
        keys, values = scratch[:, :, 0]
        if self._calibration is not None:
            self._calibration.observe(keys, values, context.cache_slots)
        self.operations.store_kv_fp8(keys, values, context.cache_slots, kv.keys, kv.values, *kv.scales())
        return query
