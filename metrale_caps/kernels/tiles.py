# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sizes of tiles, from one place.

They depend on shapes and the kind of device, never on timings: a kernel that is tuned while it runs would advance
state more than once and give other bits on another day. On a GPU tiles fit registers and tensor cores. On a CPU the
executor pays per operation and per program and hardly per element, so tiles are as large as is useful.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from metrale_caps.kernels.host import multiprocessors

_EXECUTOR_ELEMENTS = 16384
_GPU_ROW_ELEMENTS = 4096
_DECODE_ROWS = 16
_MAX_SPLITS = 32
_KEYS_WORTH_A_SPLIT = 256
_ASSUMED_MULTIPROCESSORS = 132
"""Multiprocessors where none can be asked: those of an H100."""


def next_power_of_two(value: int) -> int:
    """Return the smallest power of two that is at least `value`, and at least 1."""
    return 1 << max(0, value - 1).bit_length()


@dataclass(frozen=True, slots=True)
class RowTile:
    """A tile of an operation on rows.

    Attributes:
        rows: rows of a program.
        columns: columns of a program, a power of two.
        warps: warps of a program on a GPU.
    """

    rows: int
    columns: int
    warps: int


def whole_row_tile(device: torch.device, rows: int, width: int) -> RowTile:
    """Return a tile that holds whole rows, for operations that reduce over them."""
    columns = next_power_of_two(width)
    if device.type == "cpu":
        return RowTile(min(next_power_of_two(rows), max(1, _EXECUTOR_ELEMENTS // columns)), columns, 1)
    return RowTile(1, columns, min(16, max(1, columns // 512)))


def elementwise_tile(device: torch.device, rows: int, width: int) -> RowTile:
    """Return a tile for operations on single elements."""
    if device.type == "cpu":
        return whole_row_tile(device, rows, width)
    columns = min(next_power_of_two(width), 1024)
    return RowTile(1, columns, 4)


def head_tile(device: torch.device, rows: int, heads: int, width: int) -> tuple[int, int, int]:
    """Return rows, heads (a power of two) and warps of a tile over whole heads."""
    heads = next_power_of_two(heads)
    elements = next_power_of_two(width)
    if device.type == "cpu":
        return min(next_power_of_two(rows), max(1, _EXECUTOR_ELEMENTS // (heads * elements))), heads, 1
    return 1, min(heads, max(1, _GPU_ROW_ELEMENTS // elements)), 4


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """A tile of attention.

    Attributes:
        rows: query rows times heads of a group, a power of two, at least 16.
        keys: keys of one iteration.
        warps: warps of a program on a GPU.
        stages: depth of the load pipeline on a GPU.
    """

    rows: int
    keys: int
    warps: int
    stages: int


def attention_tile(device: torch.device, dtype: torch.dtype, head_dim: int, rows: int, group: int) -> AttentionTile:
    """Return the tile for `rows` query rows of one sequence and `group` query heads of one key-value head."""
    decode = rows * group <= _DECODE_ROWS or rows == 1
    least = max(_DECODE_ROWS, next_power_of_two(group))
    if device.type == "cpu":
        return AttentionTile(least if decode else max(least, 256), 128, 1, 1)
    wide = head_dim > 128
    narrow_keys = 32 if wide or dtype.itemsize > 2 else 64
    if decode:
        return AttentionTile(least, narrow_keys, 4, 2 if wide else 3)
    if dtype.itemsize > 2:
        return AttentionTile(max(least, 64), 32, 4, 1)
    return AttentionTile(max(least, 64 if wide else 128), narrow_keys, 8, 2)


def split_count(device: torch.device, programs: int, max_length: int) -> int:
    """Return over how many programs the keys of a decode row are split: a power of two.

    It depends on upper bounds known to the host alone, so that one captured graph serves all lengths below them.
    """
    if device.type == "cpu":
        return 1
    wanted = min(2 * _multiprocessors(device) // max(1, programs), max_length // _KEYS_WORTH_A_SPLIT, _MAX_SPLITS)
    return 1 << max(0, wanted.bit_length() - 1) if wanted > 0 else 1


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return _ASSUMED_MULTIPROCESSORS
    return multiprocessors(device)


def dot_precision(device: torch.device, dtype: torch.dtype) -> str:
    """Return how fp32 operands are multiplied: exactly on a CPU, by split products on tensor cores."""
    if dtype != torch.float32 or device.type == "cpu":
        return "ieee"
    return HIP_DOT_PRECISION if torch.version.hip else CUDA_DOT_PRECISION


CUDA_DOT_PRECISION = "tf32x3"
HIP_DOT_PRECISION = "bf16x6"
