# SPDX-License-Identifier: MIT OR Apache-2.0
"""The gates of the delta rule: `g = -exp(a) * softplus(x + bias)`, the log decay, and `beta = sigmoid(b)`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from metrale_caps.kernels.architecture import architecture_of
from metrale_caps.kernels.delta_arguments import check_gates
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.tiles import next_power_of_two

_EXECUTOR_ELEMENTS = 16384
_GPU_ELEMENTS = 1024


@triton.jit
def _softplus(x: tl.tensor) -> tl.tensor:
    """Return log(1 + exp(x)) without an exponential that overflows, and without losing it beside the 1."""
    small = tl.exp(-tl.abs(x))
    # log(1 + s) = 2 artanh(s / (2 + s)); the series is exact to fp32 where log(1 + s) would lose digits
    ratio = small / (2.0 + small)
    square = ratio * ratio
    series = 2.0 * ratio * (1.0 + square * (1.0 / 3.0 + square * (1.0 / 5.0 + square * (1.0 / 7.0))))
    return tl.maximum(x, 0.0) + tl.where(small < 0.25, series, tl.log(1.0 + small))


@triton.jit(do_not_specialize=["rows"])
def delta_gates_kernel(
    decay_input: tl.tensor,
    beta_input: tl.tensor,
    a_log: tl.tensor,
    dt_bias: tl.tensor,
    log_decay: tl.tensor,
    beta: tl.tensor,
    rows: tl.tensor,
    stride_decay: tl.tensor,
    stride_beta: tl.tensor,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row[:, None] < rows) & (column[None, :] < HEADS * WIDTH)
    exists = column < HEADS * WIDTH
    x = tl.load(decay_input + row[:, None] * stride_decay + column[None, :], mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(dt_bias + column, mask=exists, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(a_log + column // WIDTH, mask=exists, other=0.0).to(tl.float32))
    decay = -rate[None, :] * _softplus(x + bias[None, :])
    tl.store(log_decay + row[:, None] * (HEADS * WIDTH) + column[None, :], decay, mask=inside)
    if tl.program_id(1) == 0:
        head = tl.arange(0, HEAD_BLOCK)
        of_heads = (row[:, None] < rows) & (head[None, :] < HEADS)
        b = tl.load(beta_input + row[:, None] * stride_beta + head[None, :], mask=of_heads, other=0.0).to(tl.float32)
        tl.store(beta + row[:, None] * HEADS + head[None, :], 1.0 / (1.0 + tl.exp(-b)), mask=of_heads)


def delta_gates(
    decay_input: torch.Tensor, beta_input: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log decay and the strength of each row's correction.

    Args:
        decay_input: `[rows, heads]`, or `[rows, heads, key_dim]` for a decay of each key channel; any row stride.
        beta_input: `[rows, heads]`; any row stride.
        a_log: `[heads]`, logarithm of the decay's rate.
        dt_bias: `[heads]`, or `[heads, key_dim]`, as `decay_input` has it.

    Returns:
        `g = -exp(a_log) * softplus(decay_input + dt_bias)` in the shape of `decay_input`, and
        `beta = sigmoid(beta_input)`, `[rows, heads]`; both new, fp32, contiguous.

    Raises:
        LaunchError: an argument does not fit; it is named.
    """
    check_gates(decay_input, beta_input, a_log, dt_bias)
    rows, heads = beta_input.shape
    width = decay_input.shape[2] if decay_input.dim() > beta_input.dim() else 1
    log_decay = torch.empty(decay_input.shape, dtype=torch.float32, device=decay_input.device)
    beta = torch.empty(rows, heads, dtype=torch.float32, device=decay_input.device)
    columns = next_power_of_two(heads * width)
    tile_rows, warps = max(1, min(next_power_of_two(rows), _EXECUTOR_ELEMENTS // columns)), 1
    if not architecture_of(decay_input.device).is_cpu:
        columns = min(columns, _GPU_ELEMENTS)
        tile_rows, warps = max(1, _GPU_ELEMENTS // columns), 4
    launch(
        delta_gates_kernel,
        (triton.cdiv(rows, tile_rows), triton.cdiv(heads * width, columns)),
        writes=("log_decay", "beta"),
        num_warps=warps,
        decay_input=decay_input,
        beta_input=beta_input,
        a_log=a_log,
        dt_bias=dt_bias,
        log_decay=log_decay,
        beta=beta,
        rows=rows,
        stride_decay=decay_input.stride(0),
        stride_beta=beta_input.stride(0),
        HEADS=heads,
        WIDTH=width,
        ROWS=tile_rows,
        HEAD_BLOCK=next_power_of_two(heads),
        COLUMNS=columns,
    )
    return log_decay, beta
