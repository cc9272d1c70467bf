# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sizes of the chunked delta rule's tiles; they depend on shapes and the kind of device, never on timings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from metrale_caps.kernels.architecture import architecture_of
from metrale_caps.kernels.tiles import next_power_of_two

if TYPE_CHECKING:
    from metrale_caps.kernels.architecture import Architecture
    from metrale_caps.kernels.delta_arguments import DeltaShape

SUBCHUNK = 16
"""Rows between which decays of channels are computed one pair at a time; a matrix product needs at least as many."""
_CHUNK = 64
_SHORT_CHUNK = 16
_AMPERE = 8
_HOPPER = 9
_WIDEST = 128
_WIDE = 64


@dataclass(frozen=True, slots=True)
class ChunkTile:
    """Tiles of both kernels.

    Attributes:
        chunk: rows that are computed together; a chunk starts at the first row of its sequence in the call.
        prepare_channels: key or value channels of an iteration of the first kernel.
        prepare_warps: warps of its programs on a GPU.
        prepare_stages: depth of its load pipeline on a GPU.
        scan_values: value channels of a program of the second kernel.
        scan_warps: warps of its programs on a GPU.
        scan_stages: depth of its load pipeline on a GPU.
    """

    chunk: int
    prepare_channels: int
    prepare_warps: int
    prepare_stages: int
    scan_values: int
    scan_warps: int
    scan_stages: int


def chunk_tile(device: torch.device, dtype: torch.dtype, shape: DeltaShape) -> ChunkTile | None:
    """Return the tiles for one call; None if the registers of the device hold none."""
    wide = next_power_of_two(max(shape.key_dim, shape.value_dim, SUBCHUNK))
    values = max(SUBCHUNK, next_power_of_two(shape.value_dim))
    if architecture_of(device).is_cpu:
        return ChunkTile(_CHUNK, wide, 1, 1, values, 1, 1)
    if wide > (_WIDE if dtype == torch.float32 else _WIDEST):
        return None
    if dtype == torch.float32:  # operands are taken apart into several of lower precision: that needs registers
        return ChunkTile(_SHORT_CHUNK, min(wide, 32), 4, 1, min(values, 16), 8, 1)
    return _tile_of_16_bits(architecture_of(device), wide, values, per_channel=shape.per_channel)


def _tile_of_16_bits(architecture: Architecture, wide: int, values: int, *, per_channel: bool) -> ChunkTile:
    """Return the largest tiles that an architecture's registers hold with no spill, on Triton 3.6 and 3.9 alike."""
    if architecture.vendor == "amd":
        return ChunkTile(_CHUNK, min(wide, 32), 8, 1, min(values, 16), 4, 1)
    if architecture.generation <= _AMPERE:
        return ChunkTile(_CHUNK, min(wide, 16 if per_channel else 64), 8, 2, min(values, 32), 8, 2)
    channels = min(wide, 32 if per_channel else 64)
    if architecture.generation == _HOPPER:  # a warpgroup multiplies out of shared memory
        return ChunkTile(_CHUNK, channels, 8 if per_channel else 4, 2, min(values, 32), 4, 2)
    return ChunkTile(_CHUNK, channels, 8, 2, min(values, 16), 4 if wide <= _WIDE else 8, 2)
