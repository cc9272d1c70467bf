# SPDX-License-Identifier: MIT OR Apache-2.0
"""The scales of one layer's FP8 pages, found from what is written to them first.

Invariants: all codes in a layer's pages belong to the scales that lie in memory, before the freeze, after it and while
it happens; so a block may be shared, kept and read again without a note of when it was written. Rows that belong to
nobody (cache slot -1) count for nothing. A scale is finite and above 0 at any time.

The window is counted in tokens over all requests. Inside it a scale follows the largest number so far, and everything
that is written is kept as it was as well; whenever the scales change, and for the last time at the freeze, what was
kept is written again, in order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from metrale_caps.errors import KvScaleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps.kernels.operations import StoreKvFp8
    from metrale_caps.layer import PagedKv

LARGEST = 448.0
"""Largest magnitude of E4M3."""
PROVISIONAL_SCALE = 2.0
"""Scale until there is another number than 0."""
_SMALLEST_SCALE = 1e-12
_LARGEST_SCALE = 1e36
_PATIENCE = 4  # windows


class Fp8Calibration:
    """Calibrates one layer's pages; a `KvCalibration`.

    Attributes:
        frozen: whether the scales are final.
        tokens: tokens observed.
        staged_bytes: bytes of keys and values that are kept for the freeze.
    """

    def __init__(
        self,
        pages: PagedKv,
        store: StoreKvFp8,
        *,
        window: int,
        capturing: Callable[[], bool],
        headroom: float = 1.0,
        on_freeze: Callable[[], None] | None = None,
    ) -> None:
        """Open a window.

        Args:
            pages: the layer's FP8 pages; their scales are changed in place.
            store: writes rows into pages.
            window: tokens until the freeze.
            capturing: whether the current step is being captured, so that its rows hold no numbers yet.
            headroom: how much larger than any number observed one may be that still fits.
            on_freeze: told of the freeze, once.
        """
        self.frozen: bool = False
        self.tokens: int = 0
        self._pages = pages
        self._store = store
        self._window = window
        self._capturing = capturing
        self._headroom = headroom
        self._on_freeze = on_freeze
        self._staged: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._peaks = [0.0, 0.0]
        self._scales = [PROVISIONAL_SCALE, PROVISIONAL_SCALE]
        self._write_all(self._scales)

    @property
    def staged_bytes(self) -> int:
        """Bytes of keys and values that are kept for the freeze."""
        return sum(tensor.nbytes for rows in self._staged for tensor in rows)

    def observe(self, keys: torch.Tensor, values: torch.Tensor, cache_slots: torch.Tensor) -> None:
        """Look at rows that are about to be written; see `KvCalibration`."""
        if self.frozen or self._capturing():
            return
        live = cache_slots >= 0
        tokens = int(live.sum())
        if not tokens:
            return
        rows = (keys[live], values[live], cache_slots[live])
        peaks = [max(peak, _largest(tensor)) for peak, tensor in zip(self._peaks, rows[:2], strict=True)]
        # a tensor of zeros says nothing about its scale, however many rows of it come at once
        counted = self.tokens + (tokens if all(peaks) else min(tokens, self._window))
        final = counted >= self._window * (1 if all(peaks) else _PATIENCE)
        scales = [self._scale(peak, scale, final) for peak, scale in zip(peaks, self._scales, strict=True)]
        self._move_to(scales)
        self.tokens, self._peaks, self.frozen = counted, peaks, final
        if not final:
            self._staged.append(rows)
            return
        self._staged.clear()
        if self._on_freeze is not None:
            self._on_freeze()

    def _scale(self, peak: float, provisional: float, final: bool) -> float:
        """Return the scale of a tensor with this largest number so far."""
        if not peak:
            return provisional
        return min(max(peak * (self._headroom if final else 1.0) / LARGEST, _SMALLEST_SCALE), _LARGEST_SCALE)

    def _move_to(self, scales: list[float]) -> None:
        """Change the scales, and write at them what was written before; if that fails, all is at the old ones again."""
        if scales == self._scales:
            return
        try:
            self._write_all(scales)
        except BaseException:
            self._write_all(self._scales)
            raise
        self._scales = scales

    def _write_all(self, scales: list[float]) -> None:
        pages = self._pages
        for tensor, scale in zip(pages.scales(), scales, strict=True):
            tensor.fill_(scale)
        for keys, values, slots in self._staged:
            self._store(keys, values, slots, pages.keys, pages.values, *pages.scales())


def _largest(tensor: torch.Tensor) -> float:
    """Return the largest finite magnitude."""
    return float(tensor.abs().float().nan_to_num_(nan=0.0, posinf=0.0).max())


def check_scales(scales: tuple[float, float], *, layer_index: int, layer_type: str) -> None:
    """Refuse scales of keys and values that fp32 cannot hold, as it holds them.

    Raises:
        KvScaleError: a scale is not finite, or not above 0.
    """
    for name, scale in zip(("key", "value"), scales, strict=True):
        held = torch.tensor(scale, dtype=torch.float64).float().item()
        if not (math.isfinite(held) and held > 0):
            raise KvScaleError(layer_index, layer_type, name, scale)
