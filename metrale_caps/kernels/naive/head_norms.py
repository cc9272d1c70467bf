# SPDX-License-Identifier: MIT OR Apache-2.0
"""Twins of the norms of heads: L2 norm, and RMS norm with a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.recording import recordable

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.kernels.gated_rms_norm import GateActivation


def _norm_result(x: Tensor, *_: object, **_options: object) -> Tensor:
    return x.new_empty(x.shape)


@recordable(_norm_result)
def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide the last axis by its length; see the kernel's launcher of the same name."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().sum(-1, keepdim=True).add_(eps))
    return _rounded(wide * scale, x)


@recordable(_norm_result)
def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, activation: GateActivation) -> Tensor:
    """Normalise the last axis and gate it; see the kernel's launcher of the same name."""
    if activation not in {"silu", "sigmoid"}:
        raise LaunchError(f"activation is {activation!r}; it must be 'silu' or 'sigmoid'")
    wide, gates = x.float(), gate.float()
    # torch's own SiLU and sigmoid have other bits at the end of a tensor than inside
    opened = (gates if activation == "silu" else 1.0) / gates.neg().exp_().add_(1.0)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    return _rounded((wide * scale).mul_(weight).mul_(opened), x)


def _rounded(wide: Tensor, x: Tensor) -> Tensor:
    return wide.to(x.dtype).contiguous()
