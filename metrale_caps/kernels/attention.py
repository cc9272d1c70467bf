# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention over paged keys and values, for any number of query rows of each sequence.

`o = softmax(scale * q K^T) V` over the keys a row may see, with the running softmax of Milakov and Gimelshein (2018)
over tiles of keys. The query heads that share a key-value head are packed into one tile. Where there are few rows,
the keys are split over programs and the parts are combined by their log-sum-exp.

Shapes: R query rows of all sequences, S sequences, H query heads, P splits, V value width.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.checks import FLOATS, expect_dtype, expect_inner_contiguous, expect_scales, expect_shape
from metrale_caps.kernels.combine import combine
from metrale_caps.kernels.fp8 import decode_e4m3, load_scale
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.softmax import key_range, softmax_step
from metrale_caps.kernels.tiles import attention_tile, dot_precision, next_power_of_two, split_count


@triton.jit
def _load_page(place: tl.tensor, mask: tl.tensor, dtype: tl.constexpr, IS_FP8: tl.constexpr) -> tl.tensor:
    """Load a tile of a page; of FP8 pages, 2^-8 of its numbers."""
    tile = tl.load(place, mask=mask, other=0.0)
    if IS_FP8:
        tile = decode_e4m3(tile, dtype)
    return tile


@triton.jit(do_not_specialize=["scale_log2", "window", "tiles", "stride_table"])
def paged_attention_kernel(
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    block_tables: tl.tensor,
    lengths: tl.tensor,
    row_starts: tl.tensor,
    key_scale: tl.tensor,
    value_scale: tl.tensor,
    output: tl.tensor,
    log_sum_exp: tl.tensor,
    scale_log2: tl.tensor,
    window: tl.tensor,
    tiles: tl.tensor,
    stride_query_row: tl.tensor,
    stride_query_head: tl.tensor,
    stride_key_block: tl.tensor,
    stride_key_token: tl.tensor,
    stride_key_head: tl.tensor,
    stride_value_block: tl.tensor,
    stride_value_token: tl.tensor,
    stride_value_head: tl.tensor,
    stride_table: tl.tensor,
    QUERY_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WIDE_BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_FP8: tl.constexpr,
    PRECISION: tl.constexpr,
):
    rows_per_tile: tl.constexpr = ROWS // GROUP
    sequence = tl.program_id(0) // tiles
    first_row = (tl.program_id(0) % tiles) * rows_per_tile
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    start = tl.load(row_starts + sequence)
    row_count = tl.load(row_starts + sequence + 1) - start
    if first_row >= row_count:
        return
    length = tl.load(lengths + sequence)
    history = length - row_count

    lane = tl.arange(0, ROWS)
    row = first_row + lane // GROUP
    head = kv_head * GROUP + lane % GROUP
    live = (lane < rows_per_tile * GROUP) & (row < row_count)
    own = history + row
    channel = tl.arange(0, HEAD_BLOCK)
    value_channel = tl.arange(0, VALUE_BLOCK)
    global_row = (start + row).to(tl.int64)
    q = tl.load(
        query
        + global_row[:, None] * stride_query_row
        + head[:, None].to(tl.int64) * stride_query_head
        + channel[None, :],
        mask=live[:, None] & (channel[None, :] < HEAD_DIM),
        other=0.0,
    )

    # what left the window of every row may be gone from the pool
    end = tl.minimum(length, history + first_row + rows_per_tile)
    oldest, begin, end = key_range(history + first_row, end, window, split, KEYS, SPLITS, HAS_WINDOW)

    value_factor = 1.0
    if IS_FP8:
        scale_log2 = scale_log2 * load_scale(key_scale)
        value_factor = load_scale(value_scale)
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.full((ROWS,), 0.0, tl.float32)
    mixed = tl.full((ROWS, VALUE_BLOCK), 0.0, tl.float32)
    table = block_tables + sequence.to(tl.int64) * stride_table
    keys_of_head = key_cache + kv_head.to(tl.int64) * stride_key_head
    values_of_head = value_cache + kv_head.to(tl.int64) * stride_value_head
    for at in range(begin, end, KEYS):
        key = at + tl.arange(0, KEYS)
        exists = key < end
        if HAS_WINDOW:
            exists = exists & (key >= oldest)
        block = tl.load(table + key // BLOCK_SIZE, mask=exists, other=0).to(tl.int64)
        offset = key % BLOCK_SIZE
        if WIDE_BLOCKS:
            offset = offset.to(tl.int64)
        k = _load_page(
            keys_of_head + (block * stride_key_block + offset * stride_key_token)[:, None] + channel[None, :],
            exists[:, None] & (channel[None, :] < HEAD_DIM),
            q.dtype,
            IS_FP8,
        )
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
        seen = exists[None, :] & (key[None, :] <= own[:, None])
        if HAS_WINDOW:
            seen = seen & (key[None, :] > own[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        weights, decay, peak, total = softmax_step(scores, peak, total)
        v = _load_page(
            values_of_head
            + (block * stride_value_block + offset * stride_value_token)[:, None]
            + value_channel[None, :],
            exists[:, None] & (value_channel[None, :] < VALUE_DIM),
            q.dtype,
            IS_FP8,
        )
        mixed = tl.dot(weights.to(v.dtype), v, mixed * decay[:, None], input_precision=PRECISION)

    if IS_FP8:
        mixed = mixed * value_factor
    divisor = tl.where(total > 0.0, total, 1.0)
    cell = (global_row * QUERY_HEADS + head) * SPLITS + split
    tl.store(
        output + cell[:, None] * VALUE_DIM + value_channel[None, :],
        mixed / divisor[:, None],
        mask=live[:, None] & (value_channel[None, :] < VALUE_DIM),
    )
    if SPLITS > 1:
        logs = tl.where(total > 0.0, peak + tl.log2(divisor), float("-inf"))
        tl.store(log_sum_exp + cell, logs, mask=live)


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor,
    *,
    scale: float,
    max_rows: int,
    max_length: int,
    window: int | None = None,
    splits: int | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend over pages.

    Row r of the n rows of a sequence sits at position `length - n + r` and sees the keys up to its own position; with
    a window, only the last `window` of them. A row that sees no key comes out as zeros. Cells and table entries past
    a sequence's length, or before the windows of all its rows, are never read.

    Args:
        query: `[rows, query_heads, head_dim]` fp32, fp16 or bf16; outer strides are free.
        key_cache: `[blocks, block_size, key_value_heads, head_dim]` in the dtype of `query` or float8_e4m3fn; outer
            strides are free.
        value_cache: `[blocks, block_size, key_value_heads, value_dim]`, likewise, in the dtype of `key_cache`.
        block_tables: `[sequences, blocks]` int32; the row stride is free.
        lengths: `[sequences]` int32, history and this step's rows.
        row_starts: `[sequences + 1]` int32, the rows of each sequence.
        scale: factor of the scores.
        max_rows: upper bound of the rows of a sequence.
        max_length: upper bound of `lengths`.
        window: keys a row sees, itself included; None for all.
        splits: programs the keys of a row are split over; None for a number that suits the device.
        key_scale: `[1]` fp32, factor of FP8 keys, read when the kernel runs; None for pages of another dtype.
        value_scale: likewise for values.

    Returns:
        `[rows, query_heads, value_dim]`, new, in the dtype of `query`.

    Raises:
        LaunchError: an argument does not fit, or FP8 pages lack a scale, or other pages have one; it is named.
    """
    check_attention(query, key_cache, value_cache, block_tables, lengths, row_starts)
    expect_scales(key_cache, key_scale, value_scale)
    check_bounds(query, max_rows, window, splits)
    is_fp8 = key_cache.dtype == torch.float8_e4m3fn
    if is_fp8:  # as bytes, since not every target has the type
        key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    rows, query_heads, head_dim = query.shape
    _, block_size, kv_heads, value_dim = value_cache.shape
    sequences, group = lengths.shape[0], query_heads // kv_heads
    tile = attention_tile(query.device, query.dtype, max(head_dim, value_dim), max_rows, group, is_fp8=is_fp8)
    tiles = -(-max_rows // (tile.rows // group))
    if splits is None:
        splits = split_count(query.device, sequences * kv_heads, max_length) if max_rows == 1 else 1
    output = torch.empty(rows, query_heads, value_dim, dtype=query.dtype, device=query.device)
    partial, log_sum_exp = output, None
    if splits > 1:
        partial = torch.empty(rows, query_heads, splits, value_dim, dtype=torch.float32, device=query.device)
        log_sum_exp = torch.empty(rows, query_heads, splits, dtype=torch.float32, device=query.device)
    launch(
        paged_attention_kernel,
        (sequences * tiles, kv_heads, splits),
        writes=("output",) if log_sum_exp is None else ("output", "log_sum_exp"),
        num_warps=tile.warps,
        num_stages=tile.stages,
        query=query,
        key_cache=key_cache,
        value_cache=value_cache,
        block_tables=block_tables,
        lengths=lengths,
        row_starts=row_starts,
        key_scale=key_scale,
        value_scale=value_scale,
        output=partial,
        log_sum_exp=log_sum_exp,
        scale_log2=scale * math.log2(math.e),
        window=0 if window is None else window,
        tiles=tiles,
        stride_query_row=query.stride(0),
        stride_query_head=query.stride(1),
        stride_key_block=key_cache.stride(0),
        stride_key_token=key_cache.stride(1),
        stride_key_head=key_cache.stride(2),
        stride_value_block=value_cache.stride(0),
        stride_value_token=value_cache.stride(1),
        stride_value_head=value_cache.stride(2),
        stride_table=block_tables.stride(0),
        QUERY_HEADS=query_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        VALUE_DIM=value_dim,
        HEAD_BLOCK=next_power_of_two(head_dim),
        VALUE_BLOCK=next_power_of_two(value_dim),
        BLOCK_SIZE=block_size,
        # offsets inside a block fit 32 bits in every common layout, which saves registers
        WIDE_BLOCKS=block_size * max(key_cache.stride(1), value_cache.stride(1)) >= 2**31,
        ROWS=tile.rows,
        KEYS=tile.keys,
        SPLITS=splits,
        HAS_WINDOW=window is not None,
        IS_FP8=is_fp8,
        PRECISION=dot_precision(query.device, query.dtype),
    )
    return output if log_sum_exp is None else combine(partial, log_sum_exp, output)


def check_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor,
) -> None:
    """Check the tensors of `paged_attention`.

    Raises:
        LaunchError: a shape, dtype or stride does not fit; it is named.
    """
    expect_shape("query", query, rows=None, heads=None, head_dim=None)
    expect_shape("key_cache", key_cache, blocks=None, block_size=None, heads=None, head_dim=query.shape[2])
    _, block_size, kv_heads, _ = key_cache.shape
    expect_shape("value_cache", value_cache, blocks=None, block_size=block_size, heads=kv_heads, value_dim=None)
    expect_shape("lengths", lengths, sequences=None)
    sequences = lengths.shape[0]
    expect_shape("block_tables", block_tables, sequences=sequences, blocks=None)
    expect_shape("row_starts", row_starts, sequences_and_one=sequences + 1)
    for name, tensor in (("block_tables", block_tables), ("lengths", lengths), ("row_starts", row_starts)):
        expect_dtype(name, tensor, torch.int32)
        expect_inner_contiguous(name, tensor)
    is_fp8 = key_cache.dtype == torch.float8_e4m3fn
    if is_fp8:
        expect_dtype("query", query, *FLOATS)
    expect_inner_contiguous("query", query)
    for name, tensor in (("key_cache", key_cache), ("value_cache", value_cache)):
        expect_inner_contiguous(name, tensor)
        expect_dtype(name, tensor, key_cache.dtype if is_fp8 else query.dtype)
    if query.shape[1] % kv_heads:
        raise LaunchError(f"{query.shape[1]} query heads cannot share {kv_heads} key-value heads evenly")


def check_bounds(query: torch.Tensor, max_rows: int, window: int | None, splits: int | None) -> None:
    """Check the numbers of `paged_attention`.

    Raises:
        LaunchError: a number has no meaning; it is named.
    """
    if max_rows < 1 and query.shape[0]:
        raise LaunchError(f"max_rows is {max_rows}, but query has {query.shape[0]} rows")
    if splits is not None and splits < 1:
        raise LaunchError(f"splits is {splits}; the keys of a row need at least one program")
    if window is not None and window < 1:
        raise LaunchError(f"the window is {window}; it must be at least 1, since a row sees itself")
