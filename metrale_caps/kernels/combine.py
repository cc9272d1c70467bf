# SPDX-License-Identifier: MIT OR Apache-2.0
"""Combines parts of attention that saw different keys: `o = sum_p 2^(l_p - l) o_p`, `l = log2 sum_p 2^l_p`.

A part that saw no key has `l_p = -inf` and any content; if all parts are empty the result is zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from metrale_caps.kernels.checks import expect_contiguous, expect_shape
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.tiles import next_power_of_two, whole_row_tile

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit(do_not_specialize=["rows"])
def combine_kernel(
    partial: tl.tensor,
    log_sum_exp: tl.tensor,
    output: tl.tensor,
    rows: tl.tensor,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLIT_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    part = tl.arange(0, SPLIT_BLOCK)
    column = tl.arange(0, COLUMNS)
    cell = row[:, None] * SPLITS + part[None, :]
    exists = (row[:, None] < rows) & (part[None, :] < SPLITS)
    logs = tl.load(log_sum_exp + cell, mask=exists, other=float("-inf"))
    peak = tl.max(logs, 1)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp2(logs - base[:, None])
    total = tl.sum(weights, 1)
    filled = exists & (weights > 0.0)
    values = tl.load(
        partial + cell[:, :, None] * WIDTH + column[None, None, :],
        mask=filled[:, :, None] & (column[None, None, :] < WIDTH),
        other=0.0,
    )
    mixed = tl.sum(values * weights[:, :, None], 1) / tl.where(total > 0.0, total, 1.0)[:, None]
    inside = (row[:, None] < rows) & (column[None, :] < WIDTH)
    tl.store(output + row[:, None] * WIDTH + column[None, :], mixed, mask=inside)


def combine(partial: Tensor, log_sum_exp: Tensor, output: Tensor) -> Tensor:
    """Combine parts into `output`, in place, and return it.

    Args:
        partial: `[rows, heads, splits, width]` fp32, contiguous.
        log_sum_exp: `[rows, heads, splits]` fp32, base 2; -inf for a part that saw no key.
        output: `[rows, heads, width]`, contiguous.
    """
    expect_shape("partial", partial, rows=None, heads=None, splits=None, width=None)
    rows, heads, splits, width = partial.shape
    expect_shape("log_sum_exp", log_sum_exp, rows=rows, heads=heads, splits=splits)
    expect_shape("output", output, rows=rows, heads=heads, width=width)
    for name, tensor in (("partial", partial), ("log_sum_exp", log_sum_exp), ("output", output)):
        expect_contiguous(name, tensor)
    split_block = next_power_of_two(splits)
    tile = whole_row_tile(partial.device, rows * heads, split_block * next_power_of_two(width))
    launch(
        combine_kernel,
        (triton.cdiv(rows * heads, tile.rows),),
        writes=("output",),
        num_warps=min(tile.warps, 4),
        partial=partial,
        log_sum_exp=log_sum_exp,
        output=output,
        rows=rows * heads,
        SPLITS=splits,
        WIDTH=width,
        SPLIT_BLOCK=split_block,
        ROWS=tile.rows,
        COLUMNS=next_power_of_two(width),
    )
    return output
