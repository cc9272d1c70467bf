# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rotates queries and keys by their positions and writes keys and values into pages.

`(a, b) -> (a cos - b sin, b cos + a sin)` for the pairs of a head, optionally after an RMS norm of each head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.checks import expect_contiguous, expect_dtype, expect_inner_contiguous, expect_shape
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.tiles import head_tile, next_power_of_two

if TYPE_CHECKING:
    from metrale_caps.kernels.rotary import RotaryTable


@triton.jit
def _store_part(
    part: tl.tensor,
    offset: tl.tensor,
    inside: tl.tensor,
    query_place: tl.tensor,
    key_place: tl.tensor,
    value_place: tl.tensor,
    is_query: tl.tensor,
    is_key: tl.tensor,
    is_value: tl.tensor,
):
    tl.store(query_place + offset, part, mask=inside & is_query)
    tl.store(key_place + offset, part, mask=inside & is_key)
    tl.store(value_place + offset, part, mask=inside & is_value)


@triton.jit
def _normalised(
    part: tl.tensor,
    scale: tl.tensor,
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    offset: tl.tensor,
    inside: tl.tensor,
    is_query: tl.tensor,
    rotates: tl.tensor,
    dtype: tl.constexpr,
) -> tl.tensor:
    factor = tl.where(
        is_query,
        tl.load(query_norm + offset, mask=inside, other=0.0).to(tl.float32),
        tl.load(key_norm + offset, mask=inside, other=0.0).to(tl.float32),
    )
    return tl.where(rotates, ((part * scale).to(dtype).to(tl.float32) * factor).to(dtype).to(tl.float32), part)


@triton.jit(do_not_specialize=["rows", "eps"])
def rope_write_kv_kernel(
    qkv: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    positions: tl.tensor,
    cache_slots: tl.tensor,
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    stride_qkv: tl.tensor,
    stride_key_block: tl.tensor,
    stride_key_token: tl.tensor,
    stride_key_head: tl.tensor,
    stride_value_block: tl.tensor,
    stride_value_token: tl.tensor,
    stride_value_head: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    QUERY_HEADS: tl.constexpr,
    KEY_VALUE_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    HAS_NORM: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
):
    dtype = query.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1).to(tl.int64) * HEADS + tl.arange(0, HEADS)
    live_row = row < rows
    slot = tl.load(cache_slots + row, mask=live_row, other=-1)
    position = tl.load(positions + row, mask=live_row, other=0)

    head_ = head[None, :, None]
    live = live_row[:, None, None] & (head_ < QUERY_HEADS + 2 * KEY_VALUE_HEADS)
    is_query = live & (head_ < QUERY_HEADS)
    rotates = head_ < QUERY_HEADS + KEY_VALUE_HEADS
    kept = live & (slot[:, None, None] >= 0)
    is_key = kept & (head_ >= QUERY_HEADS) & rotates
    is_value = kept & (head_ >= QUERY_HEADS + KEY_VALUE_HEADS)

    channel = tl.arange(0, HALF_BLOCK)[None, None, :]
    in_half = channel < HALF
    source = qkv + row[:, None, None] * stride_qkv + head_ * HEAD_DIM
    first = tl.load(source + channel, mask=live & in_half, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + channel, mask=live & in_half, other=0.0).to(tl.float32)

    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    query_place = query + (row[:, None, None] * QUERY_HEADS + head_) * HEAD_DIM
    key_place = (
        key_cache
        + (block * stride_key_block + offset * stride_key_token)[:, None, None]
        + (head_ - QUERY_HEADS) * stride_key_head
    )
    value_place = (
        value_cache
        + (block * stride_value_block + offset * stride_value_token)[:, None, None]
        + (head_ - QUERY_HEADS - KEY_VALUE_HEADS) * stride_value_head
    )

    scale = tl.full((ROWS, HEADS, 1), 1.0, tl.float32)
    if HAS_NORM:
        squares = tl.sum(first * first, 2) + tl.sum(second * second, 2)
        if REST_BLOCK > 0:
            rest_channel = 2 * HALF + tl.arange(0, REST_BLOCK)[None, None, :]
            in_rest = rest_channel < HEAD_DIM
            rest = tl.load(source + rest_channel, mask=live & in_rest, other=0.0).to(tl.float32)
            squares += tl.sum(rest * rest, 2)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, :, None]
        first = _normalised(first, scale, query_norm, key_norm, channel, in_half, is_query, rotates, dtype)
        second = _normalised(second, scale, query_norm, key_norm, HALF + channel, in_half, is_query, rotates, dtype)

    angle = position[:, None, None] * HALF + channel
    cosine = tl.load(cos + angle, mask=live_row[:, None, None] & in_half, other=0.0)
    sine = tl.load(sin + angle, mask=live_row[:, None, None] & in_half, other=0.0)
    turned_first = tl.where(rotates, first * cosine - second * sine, first)
    turned_second = tl.where(rotates, second * cosine + first * sine, second)
    _store_part(turned_first, channel, in_half, query_place, key_place, value_place, is_query, is_key, is_value)
    _store_part(turned_second, HALF + channel, in_half, query_place, key_place, value_place, is_query, is_key, is_value)
    if REST_BLOCK > 0:
        rest_channel = 2 * HALF + tl.arange(0, REST_BLOCK)[None, None, :]
        in_rest = rest_channel < HEAD_DIM
        rest = tl.load(source + rest_channel, mask=live & in_rest, other=0.0).to(tl.float32)
        if HAS_NORM:
            rest = _normalised(rest, scale, query_norm, key_norm, rest_channel, in_rest, is_query, rotates, dtype)
        _store_part(rest, rest_channel, in_rest, query_place, key_place, value_place, is_query, is_key, is_value)


def rope_write_kv(
    qkv: torch.Tensor,
    rotary: RotaryTable,
    positions: torch.Tensor,
    cache_slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    query_heads: int,
    key_value_heads: int,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Rotate queries and keys, write keys and values into their pages, and return the queries.

    Args:
        qkv: `[rows, (query_heads + 2 * key_value_heads) * head_dim]`, packed; any row stride.
        rotary: rotations of all positions.
        positions: `[rows]` int64.
        cache_slots: `[rows]` int64, block * block_size + offset; -1 writes nothing.
        key_cache: `[blocks, block_size, key_value_heads, head_dim]`, written in place; outer strides are free.
        value_cache: likewise; values are not rotated.
        query_heads: heads of queries.
        key_value_heads: heads of keys and of values.
        query_norm: `[head_dim]`, weight of an RMS norm of each query head before the rotation, or None.
        key_norm: likewise for keys; both or neither.
        eps: epsilon of that norm.

    Returns:
        `[rows, query_heads, head_dim]`, new.
    """
    check_rope(qkv, rotary, positions, cache_slots, key_cache, value_cache, query_heads, key_value_heads)
    check_head_norms(query_norm, key_norm, key_cache.shape[3])
    rows, block_size, head_dim = qkv.shape[0], key_cache.shape[1], key_cache.shape[3]
    query = torch.empty(rows, query_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    half = rotary.cos.shape[1]
    rest = head_dim - 2 * half
    packed_heads = query_heads + 2 * key_value_heads
    tile_rows, tile_heads, warps = head_tile(qkv.device, rows, packed_heads, half, qkv.element_size())
    launch(
        rope_write_kv_kernel,
        (triton.cdiv(rows, tile_rows), triton.cdiv(packed_heads, tile_heads)),
        writes=("query", "key_cache", "value_cache"),
        num_warps=warps,
        qkv=qkv,
        cos=rotary.cos,
        sin=rotary.sin,
        positions=positions,
        cache_slots=cache_slots,
        query_norm=query_norm,
        key_norm=key_norm,
        query=query,
        key_cache=key_cache,
        value_cache=value_cache,
        rows=rows,
        eps=eps,
        stride_qkv=qkv.stride(0),
        stride_key_block=key_cache.stride(0),
        stride_key_token=key_cache.stride(1),
        stride_key_head=key_cache.stride(2),
        stride_value_block=value_cache.stride(0),
        stride_value_token=value_cache.stride(1),
        stride_value_head=value_cache.stride(2),
        BLOCK_SIZE=block_size,
        QUERY_HEADS=query_heads,
        KEY_VALUE_HEADS=key_value_heads,
        HEAD_DIM=head_dim,
        HALF=half,
        HALF_BLOCK=next_power_of_two(half),
        REST_BLOCK=next_power_of_two(rest) if rest else 0,
        HAS_NORM=query_norm is not None,
        ROWS=tile_rows,
        HEADS=tile_heads,
    )
    return query


def check_rope(
    qkv: torch.Tensor,
    rotary: RotaryTable,
    positions: torch.Tensor,
    cache_slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_heads: int,
    key_value_heads: int,
) -> None:
    """Check the tensors of `rope_write_kv`.

    Raises:
        LaunchError: a shape, dtype or stride does not fit; it is named.
    """
    expect_shape("key_cache", key_cache, blocks=None, block_size=None, heads=key_value_heads, head_dim=None)
    _, block_size, _, head_dim = key_cache.shape
    expect_shape(
        "value_cache", value_cache, blocks=None, block_size=block_size, heads=key_value_heads, head_dim=head_dim
    )
    expect_shape("qkv", qkv, rows=None, packed_heads=(query_heads + 2 * key_value_heads) * head_dim)
    rows = qkv.shape[0]
    for name, tensor in (("positions", positions), ("cache_slots", cache_slots)):
        expect_shape(name, tensor, rows=rows)
        expect_dtype(name, tensor, torch.int64)
        expect_inner_contiguous(name, tensor)
    for name, tensor in (("qkv", qkv), ("key_cache", key_cache), ("value_cache", value_cache)):
        expect_inner_contiguous(name, tensor)
        expect_dtype(name, tensor, qkv.dtype)
    expect_shape("rotary.cos", rotary.cos, positions=None, half=None)
    expect_shape("rotary.sin", rotary.sin, positions=rotary.cos.shape[0], half=rotary.cos.shape[1])
    for name, tensor in (("rotary.cos", rotary.cos), ("rotary.sin", rotary.sin)):
        expect_dtype(name, tensor, torch.float32)
        expect_contiguous(name, tensor)
    if rotary.rotary_dim > head_dim:
        raise LaunchError(f"the rotation has {rotary.rotary_dim} channels, but a head has {head_dim}")


def check_head_norms(query_norm: torch.Tensor | None, key_norm: torch.Tensor | None, head_dim: int) -> None:
    """Check that both norms of heads, or neither, are given.

    Raises:
        LaunchError: only one is, or a shape does not fit.
    """
    if (query_norm is None) != (key_norm is None):
        raise LaunchError("query_norm and key_norm must be given together")
    for name, norm in (("query_norm", query_norm), ("key_norm", key_norm)):
        if norm is not None:
            expect_shape(name, norm, head_dim=head_dim)
            expect_inner_contiguous(name, norm)
