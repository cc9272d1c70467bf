# SPDX-License-Identifier: MIT OR Apache-2.0
"""Whole-tensor functions that generated code calls and numpy does not have."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metrale_caps.errors import KernelError
from metrale_caps.kernels.executor.numerics import unsigned

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Combination = Callable[..., tuple[Any, ...]]


def fold(tensors: tuple[Array, ...], axis: int, combine: Combination) -> tuple[Any, ...]:
    """Combine all elements along an axis, neighbours first, keeping their order."""
    rows = tuple(np.moveaxis(tensor, axis, 0) for tensor in tensors)
    while len(rows[0]) > 1:
        even = len(rows[0]) // 2 * 2
        combined = combine(*(row[0:even:2] for row in rows), *(row[1:even:2] for row in rows))
        rest = tuple(row[even:] for row in rows)
        rows = tuple(np.concatenate(pair) if len(pair[1]) else pair[0] for pair in zip(combined, rest, strict=True))
    return tuple(row[0] for row in rows)


def prefixes(tensors: tuple[Array, ...], axis: int, reverse: bool, combine: Combination) -> tuple[Array, ...]:
    """Combine the elements along an axis up to each; with `reverse`, from the end."""
    rows = tuple(np.moveaxis(tensor, axis, 0) for tensor in tensors)
    if reverse:
        rows = tuple(row[::-1] for row in rows)
    distance = 1
    while distance < len(rows[0]):
        combined = combine(*(row[:-distance] for row in rows), *(row[distance:] for row in rows))
        rows = tuple(np.concatenate((row[:distance], new)) for row, new in zip(rows, combined, strict=True))
        distance *= 2
    if reverse:
        rows = tuple(row[::-1] for row in rows)
    return tuple(np.moveaxis(row, 0, axis) for row in rows)


def accumulate(ufunc: np.ufunc, tensor: Array, axis: int, reverse: bool, dtype: Any) -> Array:
    """`prefixes` for a numpy function."""
    if not reverse:
        return ufunc.accumulate(tensor, axis, dtype)
    return np.flip(ufunc.accumulate(np.flip(tensor, axis), axis, dtype), axis)


def integer_matmul(left: Array, right: Array) -> Array:
    """Product of integer matrices, wrapping around at 32 bits.

    Products of 8-bit numbers add up exactly in float64, whose matrix product is far faster than numpy's for integers.
    """
    return np.matmul(left.astype(np.float64), right.astype(np.float64)).astype(np.int64).astype(np.int32)


def gather(source: Array, indices: Array, axis: int, kernel: str) -> Array:
    """Elements of `source` by an index along `axis` for each element of the result."""
    if indices.size and not 0 <= indices.min() <= indices.max() < source.shape[axis]:
        raise KernelError(f"{kernel}: tl.gather was given an index outside the axis of {source.shape[axis]} elements")
    return np.take_along_axis(source, indices, axis)


def histogram(values: Array, mask: Array | None, bins: int) -> Array:
    """How often each of `range(bins)` occurs where `mask` holds."""
    counted = values if mask is None else values[mask]
    counted = counted[(counted >= 0) & (counted < bins)]
    return np.bincount(counted, minlength=bins)


def reciprocal_sqrt(values: Any) -> Any:
    """1 / sqrt, in the type of the values."""
    return values.dtype.type(1) / np.sqrt(values)


def multiply_add(first: Any, second: Any, third: Any) -> Any:
    """`first * second + third` rounded once: the product of narrower floats is exact in float64."""
    if first.dtype == np.float64:
        return first * second + third
    return (first.astype(np.float64) * second + third).astype(first.dtype)


def error_function(values: Any) -> Any:
    """The Gauss error function."""
    return torch.erf(torch.tensor(values)).numpy()[()]


def maximum_unsigned(old: Array, new: Array) -> Array:
    """Larger of integers seen as unsigned."""
    return np.maximum(unsigned(old), unsigned(new)).view(old.dtype)


def minimum_unsigned(old: Array, new: Array) -> Array:
    """Smaller of integers seen as unsigned."""
    return np.minimum(unsigned(old), unsigned(new)).view(old.dtype)


def exchange(old: Array, new: Array) -> Array:
    """The new one."""
    del old
    return new


def check_assertion(holds: Any, message: str, kernel: str) -> None:
    """Raise KernelError unless all lanes hold."""
    if not np.all(holds):
        raise KernelError(f"{kernel}: device assertion failed: {message}")


def print_values(program: tuple[int, int, int], prefix: str, *values: Any) -> None:
    """Write one line for each value to the standard output, as `tl.device_print` does."""
    for value in values or ("",):
        sys.stdout.write(f"pid {program}{prefix}{value}\n")
