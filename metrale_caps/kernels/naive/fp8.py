# SPDX-License-Identifier: MIT OR Apache-2.0
"""Twin of the store into FP8 pages, and the conversions between numbers and codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metrale_caps.kernels.recording import recordable_in_place

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = 448.0
_NAN = 0x7F


def encode_e4m3(x: Tensor, scale: Tensor) -> Tensor:
    """Return the uint8 codes of `x` times the reciprocal of `scale`; saturating, and without the sign of a NaN."""
    scaled = x.float() * scale.reciprocal()
    codes = scaled.clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.masked_fill_(scaled.isnan(), _NAN)


def decode_e4m3(codes: Tensor, scale: Tensor) -> Tensor:
    """Return the fp32 numbers of uint8 codes, times `scale`."""
    return codes.view(torch.float8_e4m3fn).float() * scale


@recordable_in_place
def store_kv_fp8(
    keys: Tensor,
    values: Tensor,
    cache_slots: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    key_scale: Tensor,
    value_scale: Tensor,
) -> None:
    """Write codes into pages; see the kernel's launcher of the same name."""
    block_size = key_cache.shape[1]
    kept = cache_slots >= 0
    slots = cache_slots[kept]
    cell = (slots // block_size, slots % block_size)
    for rows, cache, scale in ((keys, key_cache, key_scale), (values, value_cache, value_scale)):
        cache.view(torch.uint8)[cell] = encode_e4m3(rows[kept], scale)
