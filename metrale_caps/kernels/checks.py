# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of launchers: an error names the tensor, the axis, what came and what was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metrale_caps.errors import LaunchError

if TYPE_CHECKING:
    from torch import Tensor


FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes that kernels compute with."""


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


def expect_dtype(name: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    """Require a tensor to have one of these dtypes.

    Raises:
        LaunchError: it has another.
    """
    if tensor.dtype not in dtypes:
        raise LaunchError(f"{name} must be {' or '.join(map(str, dtypes))}, but is {tensor.dtype}")


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


def expect_scale(name: str, tensor: Tensor) -> None:
    """Require a scale of FP8 pages, which a kernel reads when it runs: one fp32 number.

    Raises:
        LaunchError: shape or dtype differs.
    """
    expect_shape(name, tensor, numbers=1)
    expect_dtype(name, tensor, torch.float32)


def expect_scales(pages: Tensor, key_scale: Tensor | None, value_scale: Tensor | None) -> None:
    """Require both scales of pages that hold FP8, and none of pages that hold another dtype.

    Raises:
        LaunchError: a scale is missing, is not needed, or has another shape or dtype.
    """
    is_scaled = pages.dtype == torch.float8_e4m3fn
    for name, scale in (("key_scale", key_scale), ("value_scale", value_scale)):
        if scale is None:
            if is_scaled:
                raise LaunchError(f"{name} is missing: pages of {pages.dtype} hold numbers over a scale")
        elif is_scaled:
            expect_scale(name, scale)
        else:
            raise LaunchError(f"{name} is given, but pages of {pages.dtype} hold the numbers themselves")
