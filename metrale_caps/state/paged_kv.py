# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pages of a stack: one pair of tensors for each layer that asks for them.

Block `num_blocks`, after the claimable ones, is the dummy that padding rows may name; nobody reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metrale_caps.layer import PagedKv, PagedKvSpec, forward_method

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def kv_specs(layers: Iterable[object]) -> tuple[PagedKvSpec | None, ...]:
    """Return the pages each layer asks for, None for a layer that asks for none."""
    methods = (forward_method(layer, "kv_cache_spec") for layer in layers)
    return tuple(None if method is None else method() for method in methods)


def bytes_per_token(specs: Iterable[PagedKvSpec | None], dtype: torch.dtype) -> int:
    """Return the bytes one token takes over all layers."""
    widths = (spec.key_value_heads * (spec.head_dim + spec.value_head_dim) for spec in specs if spec is not None)
    return sum(widths) * dtype.itemsize


def allocate_pages(
    specs: Sequence[PagedKvSpec | None], num_blocks: int, block_size: int, *, dtype: torch.dtype, device: torch.device
) -> tuple[PagedKv | None, ...]:
    """Allocate the pages of a stack, uninitialised: a cell is written before it is read."""
    return tuple(
        None if spec is None else _pages(spec, num_blocks + 1, block_size, dtype=dtype, device=device) for spec in specs
    )


def _pages(spec: PagedKvSpec, blocks: int, block_size: int, *, dtype: torch.dtype, device: torch.device) -> PagedKv:
    def empty(width: int) -> torch.Tensor:
        return torch.empty(blocks, block_size, spec.key_value_heads, width, dtype=dtype, device=device)

    return PagedKv(empty(spec.head_dim), empty(spec.value_head_dim))
