# SPDX-License-Identifier: MIT OR Apache-2.0
"""Twin of the rotation that writes keys and values into pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from metrale_caps.kernels.naive.rows import rms_norm
from metrale_caps.kernels.recording import recordable

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.kernels.rotary import RotaryTable


def _query_result(
    qkv: Tensor, _rotary: object, _positions: object, _slots: object, key_cache: Tensor, *_: object, **options: Any
) -> Tensor:
    return qkv.new_empty(qkv.shape[0], options["query_heads"], key_cache.shape[3])


@recordable(_query_result)
def rope_write_kv(
    qkv: Tensor,
    rotary: RotaryTable,
    positions: Tensor,
    cache_slots: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    query_heads: int,
    key_value_heads: int,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Rotate, write pages in place, return the queries; see the kernel's launcher of the same name."""
    heads = qkv.view(qkv.shape[0], query_heads + 2 * key_value_heads, key_cache.shape[3])
    rotated, value = heads[:, :-key_value_heads], heads[:, -key_value_heads:]
    if query_norm is not None and key_norm is not None:
        query, key = rotated[:, :query_heads], rotated[:, query_heads:]
        rotated = torch.cat([rms_norm(query, query_norm, eps), rms_norm(key, key_norm, eps)], dim=1)
    turned = _rotate(rotated, rotary, positions)
    block_size = key_cache.shape[1]
    kept = cache_slots >= 0
    slots = cache_slots[kept]
    cell = (slots // block_size, slots % block_size)
    key_cache[cell] = turned[kept, query_heads:]
    value_cache[cell] = value[kept]
    return turned[:, :query_heads]


def _rotate(heads: Tensor, rotary: RotaryTable, positions: Tensor) -> Tensor:
    half = rotary.cos.shape[1]
    cos = rotary.cos.index_select(0, positions)[:, None]
    sin = rotary.sin.index_select(0, positions)[:, None]
    wide = heads.float()
    first, second, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1).to(heads.dtype)
