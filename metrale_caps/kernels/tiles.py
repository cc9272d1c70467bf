# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sizes of tiles, from one place.

They depend on shapes and the kind of device, never on timings: a kernel that is tuned while it runs would advance
state more than once and give other bits on another day. On a GPU tiles fit registers and tensor cores. On a CPU the
executor pays per operation and per program and hardly per element, so tiles are as large as is useful.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from metrale_caps.kernels.architecture import architecture_of

if TYPE_CHECKING:
    from metrale_caps.kernels.architecture import Architecture

_EXECUTOR_ELEMENTS = 16384
_GPU_ROW_BYTES = 4096
_LANE_BYTES = 16
_LARGEST_WARP = 64
_DECODE_ROWS = 16
_BYTES_OF_64 = 128
"""Bytes of a head of 64 channels of 16 bits."""
_BYTES_OF_128 = 256
_AMPERE = 8
_BLACKWELL = 10
_WARP_BYTES = 2048
"""What a warp of a GPU moves of a tensor: four vectors of 16 bytes for each of 32 lanes, two for each of 64."""
_MAX_SPLITS = 32
_KEYS_WORTH_A_SPLIT = 256


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
    if architecture_of(device).is_cpu:
        return RowTile(min(next_power_of_two(rows), max(1, _EXECUTOR_ELEMENTS // columns)), columns, 1)
    return RowTile(1, columns, min(16, max(1, columns // 512)))


def whole_heads_tile(device: torch.device, count: int, width: int, itemsize: int) -> RowTile:
    """Return a tile that holds whole heads, several of narrow ones, so that a program moves enough bytes on a GPU."""
    tile = whole_row_tile(device, count, width)
    if architecture_of(device).is_cpu:
        return tile
    head_bytes = tile.columns * itemsize
    return RowTile(max(1, _WARP_BYTES // head_bytes), tile.columns, min(16, max(1, head_bytes // _WARP_BYTES)))


def elementwise_tile(device: torch.device, rows: int, width: int, itemsize: int) -> RowTile:
    """Return a tile for operations on single elements."""
    if architecture_of(device).is_cpu:
        return whole_row_tile(device, rows, width)
    # four warps of the widest kind then move 16 bytes a lane
    return RowTile(1, min(next_power_of_two(width), _GPU_ROW_BYTES // itemsize), 4)


def head_tile(device: torch.device, rows: int, heads: int, half: int, itemsize: int) -> tuple[int, int, int]:
    """Return rows, heads (a power of two) and warps of a tile over whole heads, two halves of `half` channels each."""
    heads, half = next_power_of_two(heads), next_power_of_two(half)
    if architecture_of(device).is_cpu:
        return min(next_power_of_two(rows), max(1, _EXECUTOR_ELEMENTS // (2 * heads * half))), heads, 1
    heads = min(heads, max(1, _GPU_ROW_BYTES // (half * itemsize)))
    return 1, heads, max(1, heads * half * itemsize // (_LANE_BYTES * _LARGEST_WARP))


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


def attention_tile(
    device: torch.device, dtype: torch.dtype, head_dim: int, rows: int, group: int, *, is_fp8: bool = False
) -> AttentionTile:
    """Return the tile for `rows` query rows of one sequence and `group` query heads of one key-value head.

    Pages of FP8 are decoded to `dtype`, the dtype of the queries, in registers.
    """
    architecture = architecture_of(device)
    decode = rows * group <= _DECODE_ROWS or rows == 1
    least = max(_DECODE_ROWS, next_power_of_two(group))
    if architecture.is_cpu:
        return AttentionTile(least if decode else max(least, 256), 128, 1, 1)
    head_bytes = next_power_of_two(head_dim) * dtype.itemsize
    if dtype == torch.float32 and (not decode or head_bytes > _BYTES_OF_128):
        return _split_product_tile(architecture, head_bytes, least)
    if decode:
        # few registers, so that many programs keep enough bytes in flight between them
        keys, stages = (64, 3) if head_bytes <= _BYTES_OF_64 else (16, 3 if head_bytes <= _BYTES_OF_128 else 2)
        return AttentionTile(least, keys, 8 if is_fp8 and head_bytes > _BYTES_OF_128 else 4, stages)
    if head_bytes > _BYTES_OF_128:
        keys = 16 if is_fp8 and architecture.vendor == "nvidia" and architecture.generation <= _AMPERE else 32
        return AttentionTile(max(least, 64), keys, 8, 2)
    return AttentionTile(max(least, 128), _prefill_keys(architecture, head_bytes), 8, 2)


def _prefill_keys(architecture: Architecture, head_bytes: int) -> int:
    """Return the most keys of a tile with 128 rows that the registers of the architecture hold."""
    if head_bytes <= _BYTES_OF_64:
        return 32 if architecture.generation >= _BLACKWELL else 64
    # here a warp multiplies alone, and holds operands and accumulators in registers
    return 32 if architecture.vendor == "amd" or architecture.generation <= _AMPERE else 64


def _split_product_tile(architecture: Architecture, head_bytes: int, least: int) -> AttentionTile:
    """Return a tile for fp32 operands, which are taken apart into several of lower precision: that needs registers."""
    if head_bytes <= _BYTES_OF_128:
        return AttentionTile(max(least, 64), 32, 8, 1)
    if head_bytes <= 2 * _BYTES_OF_128:
        return AttentionTile(max(least, 32), 16, 8, 1)
    return AttentionTile(least, 16, 4 if architecture.vendor == "amd" else 8, 1)


def split_count(device: torch.device, programs: int, max_length: int) -> int:
    """Return over how many programs the keys of a decode row are split: a power of two.

    It depends on upper bounds known to the host alone, so that one captured graph serves all lengths below them.
    """
    architecture = architecture_of(device)
    if architecture.is_cpu:
        return 1
    wanted = 2 * architecture.multiprocessors // max(1, programs)
    wanted = min(wanted, max_length // _KEYS_WORTH_A_SPLIT, _MAX_SPLITS)
    return 1 << max(0, wanted.bit_length() - 1) if wanted > 0 else 1


def dot_precision(device: torch.device, dtype: torch.dtype) -> str:
    """Return how fp32 operands are multiplied: exactly on a CPU, as split products on tensor cores."""
    vendor = architecture_of(device).vendor
    if dtype != torch.float32 or vendor == "cpu":
        return "ieee"
    return "tf32x3" if vendor == "nvidia" else "bf16x6"
