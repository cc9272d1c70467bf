# SPDX-License-Identifier: MIT OR Apache-2.0
"""The memory that a split prefill's layers keep their rows in between the phases; one layer's after the other's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import torch

from metrale_caps.errors import ConfigurationError
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

        Raises:
            ConfigurationError: a layer asks for something that is no row buffer, for two of one name, or for so much
                that not even one row fits.
        """
        self._dtype = dtype
        self._asked: dict[int, tuple[RowBuffer, ...]] = {}
        for index, layer in layers.items():
            self._asked[index] = _asked(index, layer)
        row_bytes = max((self._row_bytes(asked) for asked in self._asked.values()), default=0)
        most_buffers = max(map(len, self._asked.values()), default=0)
        self.tokens: int = most_tokens if layers else 0
        if most_bytes is not None and row_bytes:
            self.tokens = max(0, min(self.tokens, (most_bytes - most_buffers * _ALIGNMENT) // row_bytes))
        if layers and not self.tokens:
            raise ConfigurationError(
                f"the buffers of a split prefill may take {most_bytes} bytes, but one row of the largest takes "
                f"{row_bytes}; ask for less in `split_prefill_buffers`, or set `split_prefill_tokens`"
            )
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
            # a layer that reads what it has not written must not find what was right for another prompt
            views[asked.name] = self._memory[end : end + size].view(dtype).view(rows, *asked.shape).fill_(torch.nan)
            end = -(-(end + size) // _ALIGNMENT) * _ALIGNMENT
        return SplitPrefillBuffers(range_start, views)

    def _type_of(self, asked: RowBuffer) -> torch.dtype:
        return torch.float32 if asked.float32 else self._dtype

    def _row_bytes(self, asked: Sequence[RowBuffer]) -> int:
        return sum(math.prod(one.shape) * self._type_of(one).itemsize for one in asked)


def _asked(index: int, layer: object) -> tuple[RowBuffer, ...]:
    method = forward_method(layer, "split_prefill_buffers")
    asked: object = () if method is None else method()
    where = f"layer {index} ({type(layer).__qualname__}): `split_prefill_buffers` returned"
    if not isinstance(asked, tuple):
        raise ConfigurationError(
            f"{where} {type(asked).__qualname__}; it must return a tuple of `metrale_caps.RowBuffer`"
        )
    buffers = cast("tuple[object, ...]", asked)
    for buffer in buffers:
        if not isinstance(buffer, RowBuffer):
            kind = type(buffer).__qualname__
            raise ConfigurationError(f"{where} a tuple with {kind}; it must return a tuple of `RowBuffer`")
    found = cast("tuple[RowBuffer, ...]", buffers)
    names = [buffer.name for buffer in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"{where} two buffers named {name!r}; each needs a name of its own")
    return found
