# SPDX-License-Identifier: MIT OR Apache-2.0
"""The memory that a split prefill's layers keep their rows in between the phases; one layer's after the other's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from metrale_caps.layer import RowBuffer, SplitPrefillBuffers, forward_method

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ALIGNMENT = 256
DEFAULT_BYTES = 256 << 20


class SplitPrefillArena:
    """Buffers for ranges of up to `tokens` rows.

    Attributes:
        tokens: rows of a range at most; 0 where no layer runs in phases.
        num_bytes: bytes that are allocated.
    """

    def __init__(
        self,
        layers: Mapping[int, object],
        *,
        most_tokens: int,
        most_bytes: int | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate it.

        Args:
            layers: the layers that run in phases, by index.
            most_tokens: rows of a range that can be used at all.
            most_bytes: bytes to allocate at most, or None for what `most_tokens` rows need.
            dtype: type of the weights.
            device: where the weights are.
        """
        self._dtype = dtype
        self._asked: dict[int, tuple[RowBuffer, ...]] = {}
        for index, layer in layers.items():
            method = forward_method(layer, "split_prefill_buffers")
            self._asked[index] = () if method is None else tuple(method())
        row_bytes = max((self._row_bytes(asked) for asked in self._asked.values()), default=0)
        most_buffers = max(map(len, self._asked.values()), default=0)
        self.tokens: int = most_tokens if layers else 0
        if most_bytes is not None and row_bytes:
            self.tokens = max(0, min(self.tokens, (most_bytes - most_buffers * _ALIGNMENT) // row_bytes))
        size = row_bytes * self.tokens + most_buffers * _ALIGNMENT if self.tokens else 0
        self._memory = torch.empty(size, dtype=torch.uint8, device=device)

    @property
    def num_bytes(self) -> int:
        """Bytes that are allocated."""
        return self._memory.numel()

    def buffers(self, layer: int, range_start: int, rows: int) -> SplitPrefillBuffers:
        """Return what a layer asked for, over a range of `rows` rows from position `range_start` on."""
        views: dict[str, torch.Tensor] = {}
        end = 0
        for asked in self._asked[layer]:
            dtype = self._type_of(asked)
            size = rows * math.prod(asked.shape) * dtype.itemsize
            views[asked.name] = self._memory[end : end + size].view(dtype).view(rows, *asked.shape)
            end = -(-(end + size) // _ALIGNMENT) * _ALIGNMENT
        return SplitPrefillBuffers(range_start, views)

    def _type_of(self, asked: RowBuffer) -> torch.dtype:
        return torch.float32 if asked.float32 else self._dtype

    def _row_bytes(self, asked: Sequence[RowBuffer]) -> int:
        return sum(math.prod(one.shape) * self._type_of(one).itemsize for one in asked)
