# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes latents into pages: `c = w * x / sqrt(mean(x^2) + eps)`, and their positional channels as they are.

The normalised row is rounded to its dtype before it is multiplied by the weight, as in `rms_norm`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.checks import FLOATS, expect_dtype, expect_inner_contiguous, expect_shape
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.tiles import next_power_of_two, whole_row_tile


@triton.jit(do_not_specialize=["rows", "eps"])
def latent_store_kernel(
    latents: tl.tensor,
    weight: tl.tensor,
    cache_slots: tl.tensor,
    pages: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    stride_row: tl.tensor,
    stride_block: tl.tensor,
    stride_token: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    RANK: tl.constexpr,
    ROTARY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROTARY_COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(cache_slots + row, mask=row < rows, other=-1)
    live = (slot >= 0)[:, None]
    source = (latents + row * stride_row)[:, None]
    cell = (pages + slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_token)[:, None]

    column = tl.arange(0, COLUMNS)
    inside = live & (column[None, :] < RANK)
    x = tl.load(source + column[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / RANK + eps)
    normalised = (x * scale[:, None]).to(pages.dtype.element_ty).to(tl.float32)
    factor = tl.load(weight + column, mask=column < RANK, other=0.0).to(tl.float32)
    tl.store(cell + column[None, :], normalised * factor[None, :], mask=inside)
    if ROTARY > 0:
        channel = tl.arange(0, ROTARY_COLUMNS)
        inside = live & (channel[None, :] < ROTARY)
        positional = tl.load(source + RANK + channel[None, :], mask=inside, other=0.0)
        tl.store(cell + RANK + channel[None, :], positional, mask=inside)


def latent_store(
    latents: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    cache_slots: torch.Tensor,
    pages: torch.Tensor,
    *,
    rank: int,
) -> None:
    """Normalise latents and write them into pages, their positional channels beside them.

    Args:
        latents: `[rows, rank + rotary_width]` fp32, fp16 or bf16; the row stride is free. The first `rank` channels
            are normalised, the others, which may be none, are copied.
        weight: `[rank]`, factors of the normalised channels.
        eps: added to the mean of squares.
        cache_slots: `[rows]` int64, block * block_size + offset; -1 writes nothing, and its row may hold anything.
        pages: `[blocks, block_size, rank + rotary_width]` in the dtype of `latents`, written in place; the strides of
            blocks and tokens are free.
        rank: channels of a latent.

    Raises:
        LaunchError: an argument does not fit; it is named.
    """
    expect_shape("latents", latents, rows=None, width=None)
    rows, width = latents.shape
    if not 1 <= rank <= width:
        raise LaunchError(f"rank is {rank}, but latents have {width} channels")
    expect_shape("weight", weight, rank=rank)
    expect_shape("cache_slots", cache_slots, rows=rows)
    expect_shape("pages", pages, blocks=None, block_size=None, width=width)
    expect_dtype("latents", latents, *FLOATS)
    expect_dtype("cache_slots", cache_slots, torch.int64)
    expect_dtype("pages", pages, latents.dtype)
    for name, tensor in (("latents", latents), ("weight", weight), ("cache_slots", cache_slots), ("pages", pages)):
        expect_inner_contiguous(name, tensor)
    tile = whole_row_tile(latents.device, rows, rank)
    launch(
        latent_store_kernel,
        (triton.cdiv(rows, tile.rows),),
        writes=("pages",),
        num_warps=tile.warps,
        latents=latents,
        weight=weight,
        cache_slots=cache_slots,
        pages=pages,
        rows=rows,
        eps=eps,
        stride_row=latents.stride(0),
        stride_block=pages.stride(0),
        stride_token=pages.stride(1),
        BLOCK_SIZE=pages.shape[1],
        RANK=rank,
        ROTARY=width - rank,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        ROTARY_COLUMNS=next_power_of_two(width - rank),
    )
