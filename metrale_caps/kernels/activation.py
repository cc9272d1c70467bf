# SPDX-License-Identifier: MIT OR Apache-2.0
"""The gate of a SwiGLU feed-forward: `silu(gate) * up`, the activation rounded to its dtype before the product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.checks import expect_inner_contiguous, expect_shape
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.tiles import elementwise_tile


@triton.jit(do_not_specialize=["rows"])
def silu_mul_kernel(
    gate_up: tl.tensor,
    y: tl.tensor,
    rows: tl.tensor,
    stride_gate_up: tl.tensor,
    stride_y: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row[:, None] < rows) & (column[None, :] < WIDTH)
    place = gate_up + row[:, None] * stride_gate_up + column[None, :]
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + WIDTH, mask=inside, other=0.0).to(tl.float32)
    activated = (gate / (1.0 + tl.exp(-gate))).to(y.dtype.element_ty).to(tl.float32)
    tl.store(y + row[:, None] * stride_y + column[None, :], activated * up, mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up`.

    Args:
        gate_up: `[rows, 2 * width]`, gate columns first; any row stride.

    Returns:
        `[rows, width]`, new.
    """
    expect_shape("gate_up", gate_up, rows=None, twice_width=None)
    expect_inner_contiguous("gate_up", gate_up)
    rows, both = gate_up.shape
    if both % 2:
        raise LaunchError(f"gate_up must have an even number of columns, gate and up, but has {both}")
    width = both // 2
    y = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    tile = elementwise_tile(gate_up.device, rows, width, gate_up.element_size())
    launch(
        silu_mul_kernel,
        (triton.cdiv(rows, tile.rows), triton.cdiv(width, tile.columns)),
        writes=("y",),
        num_warps=tile.warps,
        gate_up=gate_up,
        y=y,
        rows=rows,
        stride_gate_up=gate_up.stride(0),
        stride_y=y.stride(0),
        WIDTH=width,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
    )
    return y
