# SPDX-License-Identifier: MIT OR Apache-2.0
"""Absorbed multi-head latent attention over pages of latents: one key-value head, read once as key and as value.

`o_h = softmax(scale * q_h . (c | k)) C` over the latents c of the positions a row may see; k are their positional
channels, which queries meet and outputs do not hold. The query is absorbed: its first channels are `Uk^T q_nope`, so
that nothing is expanded. All heads share the latents, so any rows and heads of a sequence, its lanes, share a tile.

Shapes: R query rows of all sequences, S sequences, H query heads, r rank, w positional channels, P splits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.architecture import architecture_of
from metrale_caps.kernels.checks import FLOATS, expect_dtype, expect_inner_contiguous, expect_shape
from metrale_caps.kernels.combine import combine
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.softmax import key_range, softmax_step
from metrale_caps.kernels.tiles import dot_precision, next_power_of_two, split_count

if TYPE_CHECKING:
    from metrale_caps.kernels.architecture import Architecture

_LEAST = 16
"""Rows, columns and depth of the smallest product of a tensor core."""
_WIDEST_BYTES = 2048
"""Bytes of the longest latent whose sums the registers of a GPU hold."""
_AMPERE, _BLACKWELL = 8, 10


@triton.jit
def _load_columns(place: tl.tensor, live: tl.tensor, first: tl.tensor, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Load `COLUMNS` channels from `first` on, of `WIDTH`, of each live row; zeros stand for the others."""
    channel = first + tl.arange(0, COLUMNS)
    return tl.load(place[:, None] + channel[None, :], mask=live[:, None] & (channel[None, :] < WIDTH), other=0.0)


@triton.jit(do_not_specialize=["scale_log2", "tiles", "stride_table"])
def latent_attention_kernel(
    query: tl.tensor,
    latents: tl.tensor,
    block_tables: tl.tensor,
    lengths: tl.tensor,
    row_starts: tl.tensor,
    output: tl.tensor,
    log_sum_exp: tl.tensor,
    scale_log2: tl.tensor,
    tiles: tl.tensor,
    stride_query_row: tl.tensor,
    stride_query_head: tl.tensor,
    stride_block: tl.tensor,
    stride_token: tl.tensor,
    stride_table: tl.tensor,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    ROTARY: tl.constexpr,
    RANK_BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
    ROTARY_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WIDE_BLOCKS: tl.constexpr,
    LANES: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    HOISTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    sequence = tl.program_id(0) // tiles
    first_lane = (tl.program_id(0) % tiles) * LANES
    split = tl.program_id(1)
    start = tl.load(row_starts + sequence)
    row_count = tl.load(row_starts + sequence + 1) - start
    if first_lane >= row_count * HEADS:
        return
    length = tl.load(lengths + sequence)
    history = length - row_count

    lane = tl.arange(0, LANES)
    row = (first_lane + lane) // HEADS
    head = (first_lane + lane) % HEADS
    live = row < row_count
    own = history + row
    q_place = query + (start + row).to(tl.int64) * stride_query_row + head.to(tl.int64) * stride_query_head
    q = _load_columns(q_place, live, 0, RANK, RANK_BLOCK)
    q_rotary = _load_columns(q_place + RANK, live, 0, ROTARY, ROTARY_BLOCK)

    end = tl.minimum(length, history + (first_lane + LANES - 1) // HEADS + 1)
    _, begin, end = key_range(history, end, 0, split, KEYS, SPLITS, False)
    peak = tl.full((LANES,), float("-inf"), tl.float32)
    total = tl.full((LANES,), 0.0, tl.float32)
    mixed = tl.full((LANES, RANK_BLOCK), 0.0, tl.float32)
    table = block_tables + sequence.to(tl.int64) * stride_table
    for at in tl.range(begin, end, KEYS, disable_licm=not HOISTS):
        key = at + tl.arange(0, KEYS)
        exists = key < end
        block = tl.load(table + key // BLOCK_SIZE, mask=exists, other=0).to(tl.int64)
        offset = key % BLOCK_SIZE
        if WIDE_BLOCKS:
            offset = offset.to(tl.int64)
        place = latents + (block * stride_block + offset * stride_token)
        if DEPTH == RANK_BLOCK:
            latent = _load_columns(place, exists, 0, RANK, RANK_BLOCK)
            scores = tl.dot(q, tl.trans(latent), input_precision=PRECISION)
        else:
            # queries too wide for registers are read again, from the nearest cache
            scores = tl.full((LANES, KEYS), 0.0, tl.float32)
            for channel in range(0, RANK, DEPTH):
                scores = tl.dot(
                    _load_columns(q_place, live, channel, RANK, DEPTH),
                    tl.trans(_load_columns(place, exists, channel, RANK, DEPTH)),
                    scores,
                    input_precision=PRECISION,
                )
            latent = _load_columns(place, exists, 0, RANK, RANK_BLOCK)
        if ROTARY > 0:
            rotary = _load_columns(place + RANK, exists, 0, ROTARY, ROTARY_BLOCK)
            scores = tl.dot(q_rotary, tl.trans(rotary), scores, input_precision=PRECISION)
        # keys that do not exist come after every row's own
        scores = tl.where(key[None, :] <= own[:, None], scores * scale_log2, float("-inf"))
        weights, decay, peak, total = softmax_step(scores, peak, total)
        mixed = tl.dot(weights.to(latent.dtype), latent, mixed * decay[:, None], input_precision=PRECISION)

    # the lanes of a sequence lie one after the other, and 32 bits hold what is inside a tile
    first_cell = (start.to(tl.int64) * HEADS + first_lane) * SPLITS + split
    cell = lane * SPLITS
    live = lane < row_count * HEADS - first_lane
    divisor = tl.where(total > 0.0, total, 1.0)
    channel = tl.arange(0, RANK_BLOCK)
    tl.store(
        output + first_cell * RANK + cell[:, None] * RANK + channel[None, :],
        mixed * (1.0 / divisor)[:, None],
        mask=live[:, None] & (channel[None, :] < RANK),
    )
    if SPLITS > 1:
        logs = tl.where(total > 0.0, peak + tl.log2(divisor), float("-inf"))
        tl.store(log_sum_exp + first_cell + cell, logs, mask=live)


def latent_attention(
    query: torch.Tensor,
    latents: torch.Tensor,
    block_tables: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor,
    *,
    rank: int,
    scale: float,
    max_rows: int,
    max_length: int,
    splits: int | None = None,
) -> torch.Tensor:
    """Attend over pages of latents with absorbed queries.

    Row r of the n rows of a sequence sits at position `length - n + r` and sees the latents up to its own position. A
    row that sees none comes out as zeros. Cells and table entries past a sequence's length are never read.

    Args:
        query: `[rows, heads, rank + rotary_width]` fp32, fp16 or bf16, `Uk^T q_nope` and then the positional part,
            which may have no channels; outer strides are free.
        latents: `[blocks, block_size, rank + rotary_width]`, normalised latents and positional channels, in the dtype
            of `query`; the strides of blocks and tokens are free.
        block_tables: `[sequences, blocks]` int32; the row stride is free.
        lengths: `[sequences]` int32, history and this step's rows.
        row_starts: `[sequences + 1]` int32, the rows of each sequence.
        rank: channels of a latent, which are what the values consist of.
        scale: factor of the scores.
        max_rows: upper bound of the rows of a sequence.
        max_length: upper bound of `lengths`.
        splits: programs the keys of a row are split over; None for a number that suits the device.

    Returns:
        `[rows, heads, rank]`, new, in the dtype of `query`: mixed latents, which `Uv` expands.

    Raises:
        LaunchError: an argument does not fit; it is named.
    """
    check_latents(query, latents, block_tables, lengths, row_starts, rank)
    if max_rows < 1 and query.shape[0]:
        raise LaunchError(f"max_rows is {max_rows}, but query has {query.shape[0]} rows")
    if splits is not None and splits < 1:
        raise LaunchError(f"splits is {splits}; the keys of a row need at least one program")
    rows, heads, width = query.shape
    sequences = lengths.shape[0]
    tile = latent_tile(query.device, query.dtype, rank, max_rows, heads)
    tiles = triton.cdiv(max_rows * heads, tile.lanes)
    if splits is None:
        splits = split_count(query.device, sequences * tiles, max_length) if max_rows == 1 else 1
    output = torch.empty(rows, heads, rank, dtype=query.dtype, device=query.device)
    partial, log_sum_exp = output, None
    if splits > 1:
        partial = torch.empty(rows, heads, splits, rank, dtype=torch.float32, device=query.device)
        log_sum_exp = torch.empty(rows, heads, splits, dtype=torch.float32, device=query.device)
    launch(
        latent_attention_kernel,
        (sequences * tiles, splits),
        writes=("output",) if log_sum_exp is None else ("output", "log_sum_exp"),
        num_warps=tile.warps,
        num_stages=tile.stages,
        query=query,
        latents=latents,
        block_tables=block_tables,
        lengths=lengths,
        row_starts=row_starts,
        output=partial,
        log_sum_exp=log_sum_exp,
        scale_log2=scale * math.log2(math.e),
        tiles=tiles,
        stride_query_row=query.stride(0),
        stride_query_head=query.stride(1),
        stride_block=latents.stride(0),
        stride_token=latents.stride(1),
        stride_table=block_tables.stride(0),
        HEADS=heads,
        RANK=rank,
        ROTARY=width - rank,
        RANK_BLOCK=max(_LEAST, next_power_of_two(rank)),
        DEPTH=tile.depth,
        ROTARY_BLOCK=max(_LEAST, next_power_of_two(width - rank)),
        BLOCK_SIZE=latents.shape[1],
        # offsets inside a block fit 32 bits in every common layout, which saves registers
        WIDE_BLOCKS=latents.shape[1] * latents.stride(1) >= 2**31,
        LANES=tile.lanes,
        KEYS=tile.keys,
        SPLITS=splits,
        HOISTS=tile.hoists,
        PRECISION=dot_precision(query.device, query.dtype),
    )
    return output if log_sum_exp is None else combine(partial, log_sum_exp, output)


@dataclass(frozen=True, slots=True)
class LatentTile:
    """A tile of latent attention.

    Attributes:
        lanes: pairs of a query row and a head, a power of two, at least 16.
        keys: keys of one iteration.
        depth: channels of one product of queries and latents, a power of two; all, or as many as registers hold.
        warps: warps of a program on a GPU.
        stages: depth of the load pipeline on a GPU.
        hoists: whether what is the same in every iteration is kept in registers.
    """

    lanes: int
    keys: int
    depth: int
    warps: int = 1
    stages: int = 1
    hoists: bool = True


def latent_tile(device: torch.device, dtype: torch.dtype, rank: int, rows: int, heads: int) -> LatentTile:
    """Return the tile for latents of `rank` channels and at most `rows` query rows of `heads` heads in a sequence.

    Raises:
        LaunchError: the device is a GPU and cannot hold sums of so many channels.
    """
    architecture = architecture_of(device)
    whole = max(_LEAST, next_power_of_two(rank))
    lanes = max(_LEAST, next_power_of_two(rows * heads))
    if architecture.is_cpu:
        return LatentTile(min(lanes, 256), 128, whole)
    if whole * dtype.itemsize > _WIDEST_BYTES:
        raise LaunchError(f"rank is {rank}, but a GPU holds sums of at most {_WIDEST_BYTES // dtype.itemsize} {dtype}")
    if dtype == torch.float32:
        # taken apart into several operands of lower precision, which need registers
        return LatentTile(_LEAST, 16, min(whole, 64), 8 if whole > 128 else 4)
    if whole > 512:
        return LatentTile(_LEAST, 16, 128, 8, 2)
    if architecture.vendor == "amd":
        lanes = min(lanes, 32 if rows == 1 else 64)
        return LatentTile(lanes, 16 if whole > 256 else 32, whole, 8 if lanes * whole > 8192 else 4, 2)
    lanes = min(lanes, _most_lanes(architecture, rows))
    # heads that fill tiles leave registers for two programs on a multiprocessor, if keys are few
    is_full = architecture.generation < _BLACKWELL and rows == 1 and heads % 32 == 0
    warps = 8 if lanes * whole > 8192 or whole > 256 else 4
    # a warpgroup reads operands through descriptors, and beside its sums there are too few registers for all of them
    return LatentTile(lanes, 16 if is_full and whole > 256 else 32, whole, warps, 2, hoists=lanes < 64)


def _most_lanes(architecture: Architecture, rows: int) -> int:
    """Return the most lanes of a program on an NVIDIA GPU; with 64, groups of warps multiply."""
    if architecture.generation >= _BLACKWELL:
        return 64
    # decoding gains more from programs that run beside each other
    return 64 if architecture.generation > _AMPERE and rows > 1 else 32


def check_latents(
    query: torch.Tensor,
    latents: torch.Tensor,
    block_tables: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor,
    rank: int,
) -> None:
    """Check the tensors of `latent_attention`.

    Raises:
        LaunchError: a shape, dtype or stride does not fit; it is named.
    """
    expect_shape("query", query, rows=None, heads=None, width=None)
    expect_shape("latents", latents, blocks=None, block_size=None, width=query.shape[2])
    expect_shape("lengths", lengths, sequences=None)
    sequences = lengths.shape[0]
    expect_shape("block_tables", block_tables, sequences=sequences, blocks=None)
    expect_shape("row_starts", row_starts, sequences_and_one=sequences + 1)
    for name, tensor in (("block_tables", block_tables), ("lengths", lengths), ("row_starts", row_starts)):
        expect_dtype(name, tensor, torch.int32)
        expect_inner_contiguous(name, tensor)
    expect_dtype("query", query, *FLOATS)
    expect_dtype("latents", latents, query.dtype)
    for name, tensor in (("query", query), ("latents", latents)):
        expect_inner_contiguous(name, tensor)
    if not 1 <= rank <= query.shape[2]:
        raise LaunchError(f"rank is {rank}, but query and latents have {query.shape[2]} channels")
