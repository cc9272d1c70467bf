# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of launchers: an error names the tensor, the axis, what came and what was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrale_caps.errors import LaunchError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def expect_shape(name: str, tensor: Tensor, **axes: int | None) -> None:
    """Require a tensor's axes, in order, to have these sizes; None stands for any size.

    Raises:
        LaunchError: the number of axes or a size differs.
    """
    wanted = ", ".join(f"{axis}" if size is None else f"{axis}={size}" for axis, size in axes.items())
    if tensor.dim() != len(axes):
        raise LaunchError(f"{name} must be [{wanted}], but has the shape {list(tensor.shape)}")
    for index, (axis, size) in enumerate(axes.items()):
        if size is not None and tensor.shape[index] != size:
            raise LaunchError(
                f"{name} must be [{wanted}], but has the shape {list(tensor.shape)}: {axis} is {tensor.shape[index]} "
                f"rather than {size}"
            )


def expect_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Require a tensor's dtype.

    Raises:
        LaunchError: it has another.
    """
    if tensor.dtype != dtype:
        raise LaunchError(f"{name} must be {dtype}, but is {tensor.dtype}")


def expect_inner_contiguous(name: str, tensor: Tensor) -> None:
    """Require the elements of a tensor's last axis to be neighbours; outer axes may have any stride.

    Raises:
        LaunchError: they are not.
    """
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise LaunchError(
            f"the last axis of {name} must be contiguous, but its stride is {tensor.stride(-1)}; call `.contiguous()`"
        )


def expect_contiguous(name: str, tensor: Tensor) -> None:
    """Require a tensor to be contiguous as a whole.

    Raises:
        LaunchError: it is not.
    """
    if not tensor.is_contiguous():
        raise LaunchError(f"{name} must be contiguous, but its strides are {tensor.stride()}; call `.contiguous()`")
