# SPDX-License-Identifier: MIT OR Apache-2.0
"""L2 norm of heads: `y = x / sqrt(sum(x^2) + eps)`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from metrale_caps.kernels.checks import FLOATS, expect_dtype, expect_inner_contiguous, expect_shape
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.tiles import whole_heads_tile


@triton.jit(do_not_specialize=["count", "eps"])
def l2_norm_kernel(
    x: tl.tensor,
    y: tl.tensor,
    count: tl.tensor,
    eps: tl.tensor,
    stride_row: tl.tensor,
    stride_head: tl.tensor,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    index = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row, head = (index // HEADS).to(tl.int64), (index % HEADS).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = (index[:, None] < count) & (column[None, :] < WIDTH)
    place = x + (row * stride_row + head * stride_head)[:, None] + column[None, :]
    values = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 1) + eps)
    target = y + index.to(tl.int64)[:, None] * WIDTH + column[None, :]
    tl.store(target, values * scale[:, None], mask=inside)


def l2_norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Divide heads by their lengths.

    The sum and the quotient are in fp32, and rounded once.

    Args:
        x: `[rows, heads, width]` fp32, fp16 or bf16; outer strides are free.
        eps: added to the sum of squares.

    Returns:
        `[rows, heads, width]`, new and contiguous, in the dtype of `x`.

    Raises:
        LaunchError: a shape, dtype or stride does not fit; it is named.
    """
    expect_shape("x", x, rows=None, heads=None, width=None)
    expect_dtype("x", x, *FLOATS)
    expect_inner_contiguous("x", x)
    rows, heads, width = x.shape
    y = torch.empty(rows, heads, width, dtype=x.dtype, device=x.device)
    tile = whole_heads_tile(x.device, rows * heads, width, x.element_size())
    launch(
        l2_norm_kernel,
        (triton.cdiv(rows * heads, tile.rows),),
        writes=("y",),
        num_warps=tile.warps,
        x=x,
        y=y,
        count=rows * heads,
        eps=eps,
        stride_row=x.stride(0),
        stride_head=x.stride(1),
        HEADS=heads,
        WIDTH=width,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
    )
    return y
