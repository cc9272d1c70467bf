# SPDX-License-Identifier: MIT OR Apache-2.0
"""Twins of the operations on rows: RMS norm and the SwiGLU gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from metrale_caps.kernels.recording import recordable

if TYPE_CHECKING:
    from torch import Tensor


def _norm_result(x: Tensor, *_: object, out: Tensor | None = None) -> Tensor:
    return torch.empty_like(x) if out is None else out


def _gate_result(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


@recordable(_norm_result)
def rms_norm(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """Normalise the last axis; see the kernel's launcher of the same name."""
    wide = x.float()
    normalised = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))).to(x.dtype)
    if out is None:
        return (normalised * weight).to(x.dtype)
    return torch.mul(normalised, weight, out=out)


@recordable(_norm_result)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` to `residual` in place and return the norm of the sum."""
    return rms_norm(residual.add_(x), weight, eps)


@recordable(_gate_result)
def silu_mul(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up` of `[rows, 2 * width]`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up
