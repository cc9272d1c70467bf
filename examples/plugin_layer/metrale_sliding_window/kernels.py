# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sliding-window attention over paged keys and values, and the writing of the pages.

`o = softmax(scale * q K^T) V` over the last `window` keys up to a row's own, with the running softmax of Milakov and
Gimelshein (2018) over tiles of keys. The query heads that share a key-value head are packed with the rows into one
tile. What lies outside the windows of all rows of a tile is not read, and may be anything.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from metrale_caps.kernels.launch import launch

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps import ForwardContext, PagedKv

_DOT_SIZE = 16
"""The fewest rows and channels that tensor cores multiply."""


@triton.jit
def write_pages_kernel(
    new_keys: tl.tensor,
    new_values: tl.tensor,
    cache_slots: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    stride_block: tl.tensor,
    stride_token: tl.tensor,
    stride_head: tl.tensor,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(cache_slots + row)
    if slot < 0:
        return
    column = tl.arange(0, WIDTH)
    inside = column < HEADS * HEAD_DIM
    source = row * (HEADS * HEAD_DIM) + column
    cell = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_token
    target = cell + column // HEAD_DIM * stride_head + column % HEAD_DIM
    tl.store(keys + target, tl.load(new_keys + source, mask=inside), mask=inside)
    tl.store(values + target, tl.load(new_values + source, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["scale_log2", "window", "tiles", "stride_table"])
def sliding_window_kernel(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    block_tables: tl.tensor,
    lengths: tl.tensor,
    row_starts: tl.tensor,
    output: tl.tensor,
    scale_log2: tl.tensor,
    window: tl.tensor,
    tiles: tl.tensor,
    stride_block: tl.tensor,
    stride_token: tl.tensor,
    stride_head: tl.tensor,
    stride_table: tl.tensor,
    QUERY_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    LANES: tl.constexpr,
    KEYS: tl.constexpr,
):
    rows_of_tile: tl.constexpr = LANES // GROUP
    sequence = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * rows_of_tile
    kv_head = tl.program_id(1).to(tl.int64)
    start = tl.load(row_starts + sequence)
    row_count = tl.load(row_starts + sequence + 1) - start
    if first >= row_count:
        return
    length = tl.load(lengths + sequence)
    history = length - row_count

    lane = tl.arange(0, LANES)
    row = first + lane // GROUP
    own = history + row
    live = (lane < rows_of_tile * GROUP) & (row < row_count)
    channel = tl.arange(0, CHANNELS)
    inside = channel < HEAD_DIM
    head_row = (start + row).to(tl.int64) * QUERY_HEADS + kv_head * GROUP + lane % GROUP
    cells = head_row[:, None] * HEAD_DIM + channel[None, :]
    q = tl.load(query + cells, mask=live[:, None] & inside[None, :], other=0.0)

    peak = tl.full((LANES,), float("-inf"), tl.float32)
    total = tl.full((LANES,), 0.0, tl.float32)
    mixed = tl.full((LANES, CHANNELS), 0.0, tl.float32)
    oldest = tl.maximum(history + first - window + 1, 0)
    end = tl.minimum(length, history + first + rows_of_tile)
    for at in range(oldest, end, KEYS):
        key = at + tl.arange(0, KEYS)
        exists = key < end
        block = tl.load(block_tables + sequence * stride_table + key // BLOCK_SIZE, mask=exists, other=0).to(tl.int64)
        offset = (key % BLOCK_SIZE).to(tl.int64)
        cell = block * stride_block + offset * stride_token + kv_head * stride_head
        target = cell[:, None] + channel[None, :]
        k = tl.load(keys + target, mask=exists[:, None] & inside[None, :], other=0.0)
        v = tl.load(values + target, mask=exists[:, None] & inside[None, :], other=0.0)

        seen = exists[None, :] & (key[None, :] <= own[:, None]) & (key[None, :] > own[:, None] - window)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        # a row that has seen no key yet must not turn -inf - -inf into NaN
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(scores - base[:, None])
        decay = tl.exp2(peak - base)
        total = total * decay + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v, mixed * decay[:, None], input_precision="ieee")
        peak = new_peak

    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(output + cells, mixed, mask=live[:, None] & inside[None, :])


def write_pages(keys: Tensor, values: Tensor, cache_slots: Tensor, pages: PagedKv) -> None:
    """Put each row's keys and values into their cell of `pages`, in place.

    Args:
        keys: `[rows, heads, head_dim]`.
        values: likewise.
        cache_slots: `[rows]` int64; a negative one writes nothing.
        pages: the layer's pages.

    Raises:
        ValueError: keys and values lie differently in the pages.
    """
    rows, heads, head_dim = keys.shape
    stride_block, stride_token, stride_head = _strides(pages)
    launch(
        write_pages_kernel,
        (rows,),
        writes=("keys", "values"),
        new_keys=keys.contiguous(),
        new_values=values.contiguous(),
        cache_slots=cache_slots,
        keys=pages.keys,
        values=pages.values,
        stride_block=stride_block,
        stride_token=stride_token,
        stride_head=stride_head,
        HEADS=heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=pages.block_size,
        WIDTH=triton.next_power_of_2(heads * head_dim),
    )


def attend(query: Tensor, pages: PagedKv, context: ForwardContext, *, window: int, scale: float) -> Tensor:
    """Attend over the last `window` keys of each row, its own included, whatever rows the step's sequences have.

    Args:
        query: `[rows, query_heads, head_dim]`.
        pages: keys and values, this step's rows among them.
        context: the step; its sequences say which rows are theirs and where their keys lie.
        window: keys a row sees at most.
        scale: factor of the scores.

    Returns:
        Rows like `query`, new. A row that sees no key is zero.

    Raises:
        ValueError: keys and values lie differently in the pages.
    """
    _, query_heads, head_dim = query.shape
    kv_heads = pages.keys.shape[2]
    group = query_heads // kv_heads
    # the sizes at which no target runs out of registers; `tests/test_compiled.py` holds that
    lanes, warps = (_DOT_SIZE, 4) if context.max_rows == 1 else (128, 8)
    lanes = max(lanes, triton.next_power_of_2(group))
    tiles = triton.cdiv(context.max_rows, lanes // group)
    stride_block, stride_token, stride_head = _strides(pages)
    query = query.contiguous()
    output = query.new_zeros(query.shape)
    launch(
        sliding_window_kernel,
        (context.lengths.shape[0] * tiles, kv_heads),
        writes=("output",),
        num_warps=warps,
        query=query,
        keys=pages.keys,
        values=pages.values,
        block_tables=context.block_tables,
        lengths=context.lengths,
        row_starts=context.row_starts,
        output=output,
        scale_log2=scale * math.log2(math.e),
        window=window,
        tiles=tiles,
        stride_block=stride_block,
        stride_token=stride_token,
        stride_head=stride_head,
        stride_table=context.block_tables.stride(0),
        QUERY_HEADS=query_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        CHANNELS=max(_DOT_SIZE, triton.next_power_of_2(head_dim)),
        BLOCK_SIZE=pages.block_size,
        LANES=lanes,
        KEYS=32,
    )
    return output


def _strides(pages: PagedKv) -> tuple[int, int, int]:
    """Return the strides of block, token and head that keys and values share."""
    keys, values = pages.keys.stride(), pages.values.stride()
    if keys != values or keys[3] != 1:
        raise ValueError(f"pages with strides {keys} and {values}; expected equal ones, and contiguous channels")
    return keys[0], keys[1], keys[2]
