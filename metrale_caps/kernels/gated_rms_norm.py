# SPDX-License-Identifier: MIT OR Apache-2.0
"""RMS norm of heads with a gate: `y = w * x / sqrt(mean(x^2) + eps) * act(gate)`, all in fp32, rounded once."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
import triton
import triton.language as tl

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.checks import FLOATS, expect_dtype, expect_inner_contiguous, expect_shape
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.tiles import whole_heads_tile

GateActivation: TypeAlias = Literal["silu", "sigmoid"]
"""What a gate goes through before it multiplies."""


@triton.jit(do_not_specialize=["count", "eps"])
def gated_rms_norm_kernel(
    x: tl.tensor,
    gate: tl.tensor,
    weight: tl.tensor,
    y: tl.tensor,
    count: tl.tensor,
    eps: tl.tensor,
    stride_row: tl.tensor,
    stride_head: tl.tensor,
    stride_gate_row: tl.tensor,
    stride_gate_head: tl.tensor,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_SILU: tl.constexpr,
):
    index = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row, head = (index // HEADS).to(tl.int64), (index % HEADS).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = (index[:, None] < count) & (column[None, :] < WIDTH)
    place = x + (row * stride_row + head * stride_head)[:, None] + column[None, :]
    gate_place = gate + (row * stride_gate_row + head * stride_gate_head)[:, None] + column[None, :]
    values = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    gates = tl.load(gate_place, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 1) / WIDTH + eps)
    numerator = gates if IS_SILU else tl.full((ROWS, COLUMNS), 1.0, tl.float32)
    opened = numerator / (1.0 + tl.exp(-gates))
    target = y + index.to(tl.int64)[:, None] * WIDTH + column[None, :]
    tl.store(target, values * scale[:, None] * factor[None, :] * opened, mask=inside)


def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, *, activation: GateActivation
) -> torch.Tensor:
    """Normalise heads, and multiply them by the activation of their gates.

    Args:
        x: `[rows, heads, width]` fp32, fp16 or bf16; outer strides are free.
        gate: `[rows, heads, width]` in the dtype of `x`; outer strides are free.
        weight: `[width]` fp32, fp16 or bf16, the same for every head.
        eps: added to the mean of squares.
        activation: "silu" or "sigmoid".

    Returns:
        `[rows, heads, width]`, new and contiguous, in the dtype of `x`.

    Raises:
        LaunchError: a shape, dtype or stride does not fit, or there is no such activation; it is named.
    """
    check_gated_norm(x, gate, weight, activation)
    rows, heads, width = x.shape
    y = torch.empty(rows, heads, width, dtype=x.dtype, device=x.device)
    tile = whole_heads_tile(x.device, rows * heads, width, x.element_size())
    launch(
        gated_rms_norm_kernel,
        (triton.cdiv(rows * heads, tile.rows),),
        writes=("y",),
        num_warps=tile.warps,
        x=x,
        gate=gate,
        weight=weight,
        y=y,
        count=rows * heads,
        eps=eps,
        stride_row=x.stride(0),
        stride_head=x.stride(1),
        stride_gate_row=gate.stride(0),
        stride_gate_head=gate.stride(1),
        HEADS=heads,
        WIDTH=width,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        IS_SILU=activation == "silu",
    )
    return y


def check_gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, activation: str) -> None:
    """Check the arguments of `gated_rms_norm`.

    Raises:
        LaunchError: a shape, dtype or stride does not fit, or there is no such activation; it is named.
    """
    expect_shape("x", x, rows=None, heads=None, width=None)
    rows, heads, width = x.shape
    expect_shape("gate", gate, rows=rows, heads=heads, width=width)
    expect_shape("weight", weight, width=width)
    expect_dtype("x", x, *FLOATS)
    expect_dtype("gate", gate, x.dtype)
    expect_dtype("weight", weight, *FLOATS)
    for name, tensor in (("x", x), ("gate", gate), ("weight", weight)):
        expect_inner_contiguous(name, tensor)
    if activation not in {"silu", "sigmoid"}:
        raise LaunchError(f"activation is {activation!r}; it must be 'silu' or 'sigmoid'")
