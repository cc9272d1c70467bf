# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes keys and values into FP8 pages: the stored byte is the E4M3FN code of `x * (1 / scale)`.

The reciprocal is rounded to fp32 once and the product once more, which moves a quotient by one unit in the last place
of fp32 at most. With a scale that is a power of two it is exact.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from metrale_caps.kernels.checks import FLOATS, expect_dtype, expect_inner_contiguous, expect_scale, expect_shape
from metrale_caps.kernels.fp8 import encode_e4m3
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.tiles import head_tile, next_power_of_two


@triton.jit
def _store_heads(
    source: tl.tensor,
    cache: tl.tensor,
    scale: tl.tensor,
    row: tl.tensor,
    head: tl.tensor,
    block: tl.tensor,
    offset: tl.tensor,
    live: tl.tensor,
    stride_row: tl.tensor,
    stride_head: tl.tensor,
    stride_block: tl.tensor,
    stride_token: tl.tensor,
    stride_cache_head: tl.tensor,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    channel = tl.arange(0, COLUMNS)[None, None, :]
    inside = live & (channel < WIDTH)
    from_place = source + (row * stride_row)[:, None, None] + (head * stride_head)[None, :, None]
    to_place = (
        cache
        + (block * stride_block + offset * stride_token)[:, None, None]
        + (head * stride_cache_head)[None, :, None]
    )
    x = tl.load(from_place + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(to_place + channel, encode_e4m3(x * tl.div_rn(1.0, tl.load(scale))), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def store_kv_fp8_kernel(
    keys: tl.tensor,
    values: tl.tensor,
    cache_slots: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    key_scale: tl.tensor,
    value_scale: tl.tensor,
    rows: tl.tensor,
    stride_key_row: tl.tensor,
    stride_key_source_head: tl.tensor,
    stride_value_row: tl.tensor,
    stride_value_source_head: tl.tensor,
    stride_key_block: tl.tensor,
    stride_key_token: tl.tensor,
    stride_key_head: tl.tensor,
    stride_value_block: tl.tensor,
    stride_value_token: tl.tensor,
    stride_value_head: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    KEY_VALUE_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1).to(tl.int64) * HEADS + tl.arange(0, HEADS)
    slot = tl.load(cache_slots + row, mask=row < rows, other=-1)
    live = (slot >= 0)[:, None, None] & (head < KEY_VALUE_HEADS)[None, :, None]
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    _store_heads(
        keys,
        key_cache,
        key_scale,
        row,
        head,
        block,
        offset,
        live,
        stride_key_row,
        stride_key_source_head,
        stride_key_block,
        stride_key_token,
        stride_key_head,
        HEAD_DIM,
        HEAD_BLOCK,
    )
    _store_heads(
        values,
        value_cache,
        value_scale,
        row,
        head,
        block,
        offset,
        live,
        stride_value_row,
        stride_value_source_head,
        stride_value_block,
        stride_value_token,
        stride_value_head,
        VALUE_DIM,
        VALUE_BLOCK,
    )


def store_kv_fp8(
    keys: torch.Tensor,
    values: torch.Tensor,
    cache_slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key_scale: torch.Tensor,
    value_scale: torch.Tensor,
) -> None:
    """Write keys and values into FP8 pages.

    A stored number is that code times the scale. Codes are rounded to nearest even, subnormals included. Infinities
    and what lies beyond the largest code become +-448 times the scale; a NaN becomes the code 0x7F, without its sign.
    The scales are read when the kernel runs, so a captured step sees what was written to them since.

    Args:
        keys: `[rows, key_value_heads, head_dim]` fp32, fp16 or bf16; outer strides are free.
        values: `[rows, key_value_heads, value_dim]`, likewise, of the same dtype.
        cache_slots: `[rows]` int64, block * block_size + offset; -1 writes nothing, and its row may hold anything.
        key_cache: `[blocks, block_size, key_value_heads, head_dim]` float8_e4m3fn, written in place; outer strides
            are free.
        value_cache: `[blocks, block_size, key_value_heads, value_dim]`, likewise.
        key_scale: `[1]` fp32, a positive normal number.
        value_scale: likewise.

    Raises:
        LaunchError: a shape, dtype or stride does not fit; it is named.
    """
    check_store(keys, values, cache_slots, key_cache, value_cache)
    expect_scale("key_scale", key_scale)
    expect_scale("value_scale", value_scale)
    rows, heads, head_dim = keys.shape
    value_dim = values.shape[2]
    widest = max(head_dim, value_dim)
    tile_rows, tile_heads, warps = head_tile(keys.device, rows, heads, widest, keys.element_size())
    launch(
        store_kv_fp8_kernel,
        (triton.cdiv(rows, tile_rows), triton.cdiv(heads, tile_heads)),
        writes=("key_cache", "value_cache"),
        num_warps=warps,
        keys=keys,
        values=values,
        cache_slots=cache_slots,
        # as bytes, since not every target has the type
        key_cache=key_cache.view(torch.uint8),
        value_cache=value_cache.view(torch.uint8),
        key_scale=key_scale,
        value_scale=value_scale,
        rows=rows,
        stride_key_row=keys.stride(0),
        stride_key_source_head=keys.stride(1),
        stride_value_row=values.stride(0),
        stride_value_source_head=values.stride(1),
        stride_key_block=key_cache.stride(0),
        stride_key_token=key_cache.stride(1),
        stride_key_head=key_cache.stride(2),
        stride_value_block=value_cache.stride(0),
        stride_value_token=value_cache.stride(1),
        stride_value_head=value_cache.stride(2),
        BLOCK_SIZE=key_cache.shape[1],
        KEY_VALUE_HEADS=heads,
        HEAD_DIM=head_dim,
        VALUE_DIM=value_dim,
        HEAD_BLOCK=next_power_of_two(head_dim),
        VALUE_BLOCK=next_power_of_two(value_dim),
        ROWS=tile_rows,
        HEADS=tile_heads,
    )


def check_store(
    keys: torch.Tensor,
    values: torch.Tensor,
    cache_slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
) -> None:
    """Check the tensors of `store_kv_fp8`, scales apart.

    Raises:
        LaunchError: a shape, dtype or stride does not fit; it is named.
    """
    expect_shape("keys", keys, rows=None, heads=None, head_dim=None)
    rows, heads, head_dim = keys.shape
    expect_shape("values", values, rows=rows, heads=heads, value_dim=None)
    expect_shape("cache_slots", cache_slots, rows=rows)
    expect_shape("key_cache", key_cache, blocks=None, block_size=None, heads=heads, head_dim=head_dim)
    block_size, value_dim = key_cache.shape[1], values.shape[2]
    expect_shape("value_cache", value_cache, blocks=None, block_size=block_size, heads=heads, value_dim=value_dim)
    expect_dtype("keys", keys, *FLOATS)
    expect_dtype("values", values, keys.dtype)
    expect_dtype("cache_slots", cache_slots, torch.int64)
    for name, tensor in (("key_cache", key_cache), ("value_cache", value_cache)):
        expect_dtype(name, tensor, torch.float8_e4m3fn)
        expect_inner_contiguous(name, tensor)
    for name, tensor in (("keys", keys), ("values", values), ("cache_slots", cache_slots)):
        expect_inner_contiguous(name, tensor)
