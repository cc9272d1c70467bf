# SPDX-License-Identifier: MIT OR Apache-2.0
"""RMS norm over rows, with and without a residual: `y = w * x / sqrt(mean(x^2) + eps)`.

The normalised row is rounded to its dtype before it is multiplied by the weight, as the Llama family does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from metrale_caps.kernels.checks import expect_dtype, expect_inner_contiguous, expect_shape
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.tiles import whole_row_tile


@triton.jit(do_not_specialize=["rows", "eps"])
def rms_norm_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    y: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    stride_x: tl.tensor,
    stride_residual: tl.tensor,
    stride_y: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row[:, None] < rows) & (column[None, :] < WIDTH)
    values = tl.load(x + row[:, None] * stride_x + column[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        place = residual + row[:, None] * stride_residual + column[None, :]
        added = values + tl.load(place, mask=inside, other=0.0).to(tl.float32)
        rounded = added.to(y.dtype.element_ty)
        tl.store(place, rounded, mask=inside)
        values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 1) / WIDTH + eps)
    normalised = (values * scale[:, None]).to(y.dtype.element_ty).to(tl.float32)
    factor = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    tl.store(y + row[:, None] * stride_y + column[None, :], normalised * factor[None, :], mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Normalise rows.

    Args:
        x: `[rows, width]`, any row stride.
        weight: `[width]`.
        eps: added to the mean of squares.
        out: `[rows, width]` to write to; new by default.

    Returns:
        `[rows, width]` in the dtype of `x`.
    """
    return _launch(x, None, weight, eps, torch.empty_like(x) if out is None else out)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Add `x` to `residual` in place and return the norm of the sum; shapes as for `rms_norm`."""
    expect_shape("x", x, rows=None, width=None)
    expect_shape("residual", residual, rows=x.shape[0], width=x.shape[1])
    expect_dtype("residual", residual, x.dtype)
    expect_inner_contiguous("residual", residual)
    return _launch(x, residual, weight, eps, torch.empty_like(x))


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, y: torch.Tensor
) -> torch.Tensor:
    expect_shape("x", x, rows=None, width=None)
    rows, width = x.shape
    expect_shape("weight", weight, width=width)
    expect_shape("out", y, rows=rows, width=width)
    expect_dtype("out", y, x.dtype)
    for name, tensor in (("x", x), ("weight", weight), ("out", y)):
        expect_inner_contiguous(name, tensor)
    tile = whole_row_tile(x.device, rows, width)
    launch(
        rms_norm_kernel,
        (triton.cdiv(rows, tile.rows),),
        writes=("y",) if residual is None else ("y", "residual"),
        num_warps=tile.warps,
        x=x,
        residual=residual,
        weight=weight,
        y=y,
        rows=rows,
        eps=eps,
        stride_x=x.stride(0),
        stride_residual=0 if residual is None else residual.stride(0),
        stride_y=y.stride(0),
        WIDTH=width,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        HAS_RESIDUAL=residual is not None,
    )
    return y
