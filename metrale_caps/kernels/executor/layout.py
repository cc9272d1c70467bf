# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which offsets inside a strided view's span are elements of the view."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


class Gaps:
    """The offsets of a view's span that are not elements of the view.

    Views of the usual kind, nested blocks at regular distances, need arithmetic alone; only views whose dimensions
    overlap in memory need a map of their span.

    Attributes:
        run: elements that lie side by side; 1 if none do.
    """

    def __init__(self, dimensions: tuple[tuple[int, int], ...], run: int, member: Array | None) -> None:
        self._dimensions = tuple((np.int64(stride), np.int64(extent)) for stride, extent in dimensions)
        self._member = member
        self.run = run

    def holds(self, offsets: Array) -> Array:
        """Which of `offsets`, all inside the span, are elements: a bool array of the same shape."""
        if self._member is not None:
            return np.asarray(self._member[offsets])
        rest = offsets
        inside: list[Array] = []
        for stride, extent in self._dimensions:
            index, rest = np.divmod(rest, stride)
            inside.append(np.asarray(index < extent))
        inside.append(np.asarray(rest < self.run))
        return np.asarray(np.logical_and.reduce(inside))

    def holds_rows(self, starts: Array, width: int) -> Array:
        """Which of the rows of `width` neighbours from `starts` on are elements throughout."""
        if self._member is not None:
            return np.logical_and.reduce(self._member[starts[..., None] + np.arange(width)], -1)
        return self.holds(starts) & (self._rest(starts) + np.int64(width) <= self.run)

    def _rest(self, offsets: Array) -> Array:
        rest = offsets
        for stride, _ in self._dimensions:
            rest = rest % stride
        return rest


def span_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from a view's first to its last, both included; 0 for an empty view."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


@lru_cache(maxsize=1024)
def gaps_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> Gaps | None:
    """The gaps of a view with these extents and strides, or None where every offset of the span is an element."""
    if 0 in shape:
        return None
    dimensions = [(stride, extent) for extent, stride in zip(shape, strides, strict=True) if extent > 1 and stride > 0]
    dimensions.sort()
    run = 1
    while dimensions and dimensions[0][0] <= run:
        stride, extent = dimensions.pop(0)
        run += stride * (extent - 1)
    if not dimensions:
        return None
    reach = run
    for stride, extent in dimensions:
        if stride < reach:
            return Gaps((), 1, _member_map(shape, strides))
        reach = stride * (extent - 1) + reach
    return Gaps(tuple(reversed(dimensions)), run, None)


def _member_map(shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    member = np.zeros(span_of(shape, strides), np.bool_)
    view = np.lib.stride_tricks.as_strided(member, shape, strides)
    view[...] = True
    return member
