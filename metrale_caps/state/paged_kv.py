# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pages of a stack: one pair of tensors for each layer that asks for them.

Block `num_blocks`, after the claimable ones, is the dummy that padding rows may name; nobody reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from metrale_caps.layer import PagedKv, PagedKvSpec, forward_method

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FP8 = torch.float8_e4m3fn
"""Type of quantised pages."""


@dataclass(frozen=True, slots=True)
class PageLayout:
    """What one layer's pages look like.

    Attributes:
        spec: the shape it asked for.
        dtype: type of keys and values.
    """

    spec: PagedKvSpec
    dtype: torch.dtype

    @property
    def is_quantised(self) -> bool:
        """Whether the pages hold FP8 codes."""
        return self.dtype == FP8

    @property
    def bytes_per_token(self) -> int:
        """Bytes one token takes."""
        return self.spec.key_value_heads * (self.spec.head_dim + self.spec.value_head_dim) * self.dtype.itemsize


def page_layouts(layers: Iterable[object], dtype: torch.dtype, *, fp8: bool = False) -> tuple[PageLayout | None, ...]:
    """Return each layer's layout, None for a layer that asks for no pages.

    Args:
        layers: the stack.
        dtype: type of the pages.
        fp8: use FP8 instead wherever a layer has `use_fp8_kv`.
    """
    return tuple(_layout(layer, FP8 if fp8 and forward_method(layer, "use_fp8_kv") else dtype) for layer in layers)


def _layout(layer: object, dtype: torch.dtype) -> PageLayout | None:
    method = forward_method(layer, "kv_cache_spec")
    return None if method is None else PageLayout(method(), dtype)


def bytes_per_token(layouts: Iterable[PageLayout | None]) -> int:
    """Return the bytes one token takes over all layers."""
    return sum(layout.bytes_per_token for layout in layouts if layout is not None)


def allocate_pages(
    layouts: Sequence[PageLayout | None], num_blocks: int, block_size: int, *, device: torch.device
) -> tuple[PagedKv | None, ...]:
    """Allocate the pages of a stack, uninitialised: a cell is written before it is read.

    FP8 pages have scales of 1.
    """
    return tuple(None if layout is None else _pages(layout, num_blocks + 1, block_size, device) for layout in layouts)


def _pages(layout: PageLayout, blocks: int, block_size: int, device: torch.device) -> PagedKv:
    spec = layout.spec

    def empty(width: int) -> torch.Tensor:
        return torch.empty(blocks, block_size, spec.key_value_heads, width, dtype=layout.dtype, device=device)

    keys, values = empty(spec.head_dim), empty(spec.value_head_dim)
    if not layout.is_quantised:
        return PagedKv(keys, values)
    return PagedKv(keys, values, torch.ones(1, device=device), torch.ones(1, device=device))
