# SPDX-License-Identifier: MIT OR Apache-2.0
"""The memory of pointer arguments: every access checked against the argument it was derived from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from metrale_caps.kernels.executor.layout import gaps_of
from metrale_caps.kernels.executor.numerics import COMPUTED_AS, PACK, STORED_AS, UNPACK, round_to

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from metrale_caps.kernels.executor.layout import Gaps
    from metrale_caps.kernels.executor.races import AccessLog

    Array = NDArray[Any]


class AccessFault(Exception):  # noqa: N818 - internal; the launch adds kernel and program and raises a public error
    """An access that a kernel must not make.

    Attributes:
        argument: name of the pointer argument.
        offsets: the offending element offsets.
        what: what the program did, as a phrase that the argument's name completes.
        lanes: whether lanes of one store collided, rather than an offset being out of bounds.
    """

    def __init__(self, argument: str, offsets: Array, what: str, *, lanes: bool = False) -> None:
        super().__init__(argument)
        self.argument = argument
        self.offsets: tuple[int, ...] = tuple(np.unique(offsets).tolist())
        self.what = what
        self.lanes = lanes


class Argument:
    """A pointer argument's memory, seen as one row of elements; offset 0 is the view's first element.

    Attributes:
        name: the kernel's name of the argument.
        data: the elements from the view's first to its last, sharing the tensor's storage.
        writable: whether the launch allows stores.
        gaps: offsets inside the span that are not elements of the view.
        log: where touched offsets are noted, if the launch looks for races in this argument.
    """

    __slots__ = ("data", "gaps", "log", "name", "writable")

    def __init__(
        self,
        name: str,
        data: Array,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        *,
        dense: bool,
        writable: bool,
    ) -> None:
        self.name: str = name
        self.data: Array = data
        self.writable: bool = writable
        self.gaps: Gaps | None = None if dense else gaps_of(shape, strides)
        self.log: AccessLog | None = None

    def as_type(self, element: str) -> Access:
        """Access to the memory as elements of a type that has the tensor's width."""
        return Access(self, element)


class Access:
    """Loads, stores and atomic updates of one argument, as elements of one type.

    Offsets are int64, counted in elements; masks are bool; both, and the values, broadcast against each other.
    """

    __slots__ = ("_argument", "_computed", "_data", "_element", "_pack", "_size", "_stored", "_unpack")

    def __init__(self, argument: Argument, element: str) -> None:
        self._argument = argument
        self._element = element
        self._stored = STORED_AS[element]
        self._computed = COMPUTED_AS[element]
        self._data = argument.data.view(self._stored)
        self._size = len(self._data)
        self._pack = PACK.get(element)
        self._unpack = UNPACK.get(element)

    # -- checks ---------------------------------------------------------------------------------------------

    def _check(self, offsets: Array, what: str) -> None:
        # Seen as unsigned, a negative offset is a huge one: one pass finds both.
        if np.maximum.reduce(offsets.view(np.uint64), axis=None) >= self._size:
            outside = (offsets < 0) | (offsets >= self._size)
            raise AccessFault(self._argument.name, offsets[outside], f"{what} outside")
        gaps = self._argument.gaps
        if gaps is not None:
            member = gaps.holds(offsets)
            if not member.all():
                raise AccessFault(self._argument.name, offsets[~member], f"{what} in a gap of")

    def _check_one(self, offset: Any, what: str) -> None:
        gaps = self._argument.gaps
        if not 0 <= offset < self._size:
            raise AccessFault(self._argument.name, np.asarray([offset]), f"{what} outside")
        if gaps is not None and not gaps.holds(np.asarray(offset)):
            raise AccessFault(self._argument.name, np.asarray([offset]), f"{what} in a gap of")

    def _check_rows(self, starts: Array, width: int, what: str) -> None:
        last_start = np.maximum.reduce(starts.view(np.uint64), axis=None)
        gaps = self._argument.gaps
        if last_start + width > self._size or last_start >= self._size:
            self._check(starts[..., None] + np.arange(width), what)
        if gaps is not None and not gaps.holds_rows(starts, width).all():
            self._check(starts[..., None] + np.arange(width), what)

    def _check_writable(self, offsets: Any) -> None:
        if not self._argument.writable:
            raise AccessFault(self._argument.name, np.asarray(offsets), "stores to the read-only")

    # -- loads ----------------------------------------------------------------------------------------------

    def _values(self, raw: Any) -> Any:
        return raw if self._unpack is None else self._unpack(raw)

    def load(self, offsets: Array) -> Any:
        """Elements at `offsets`."""
        self._check(offsets, "reads")
        if self._argument.log is not None:
            self._argument.log.reads.append(offsets)
        return self._values(self._data[offsets])

    def load_one(self, offset: Any) -> Any:
        """The element at one offset, as a numpy scalar."""
        self._check_one(offset, "reads")
        if self._argument.log is not None:
            self._argument.log.reads.append(offset)
        return self._values(self._data[offset])

    def load_masked(self, offsets: Any, mask: Any, other: Any, shape: tuple[int, ...]) -> Any:
        """Elements at `offsets` where `mask` holds, `other` elsewhere; masked-off offsets are not looked at."""
        active = np.count_nonzero(mask)
        if not active:
            return np.broadcast_to(other, shape)
        if active < mask.size:
            if self._argument.log is not None:
                self._argument.log.reads.append(np.broadcast_to(offsets, shape)[np.broadcast_to(mask, shape)])
            # Inactive lanes look at the first element, which there is if any lane is within bounds.
            safe: Array = np.where(mask, offsets, 0)
            self._check(safe, "reads")
            loaded = self._values(self._data[safe])
            return cast("Array", np.where(mask, loaded, other))
        loaded = self.load(np.asarray(offsets))
        return loaded if loaded.shape == shape else np.broadcast_to(loaded, shape)

    def load_rows(self, starts: Any, columns: Any, rows: Any, other: Any, shape: tuple[int, ...]) -> Any:
        """Rows of neighbours, one from each of `starts` on, as an array of `shape`.

        Args:
            starts: offsets of the rows' first elements, of extent 1 along the last axis, or a scalar.
            columns: bool mask along the last axis, or None.
            rows: bool mask of the extent of `starts`, or a scalar, or None.
            other: scalar that lanes masked off give.
            shape: shape of the result.
        """
        width = shape[-1] if columns is None else _prefix(columns)
        if width < 0:
            offsets = starts + np.arange(shape[-1])
            return self.load_masked(offsets, columns if rows is None else columns & rows, other, shape)
        chosen = None if rows is None or np.count_nonzero(rows) == rows.size else rows.ravel()
        starts = _flat(starts)
        active = starts if chosen is None else starts[chosen] if chosen.size == starts.size else starts[:0]
        if not width or not active.size:
            return np.broadcast_to(other, shape)
        self._check_rows(active, width, "reads")
        if self._argument.log is not None:
            self._argument.log.reads.append((active, width))
        loaded = self._values(self._windows(active, width))
        if chosen is None and width == shape[-1]:
            return loaded.reshape(shape)
        found = np.full((starts.size, shape[-1]), other, self._computed)
        if chosen is None:
            found[:, :width] = loaded
        else:
            found[chosen, :width] = loaded
        return found.reshape(shape)

    def _windows(self, starts: Array, width: int) -> Array:
        """A copy of the rows of `width` neighbours that begin at `starts`, all inside."""
        if starts.size == 1:
            first = starts[0]
            return self._data[None, first : first + width].copy()
        return self._overlapping(width)[starts]

    def _overlapping(self, width: int) -> Array:
        """A view whose row `n` is the `width` neighbours from element `n` on."""
        step = self._data.itemsize
        shape = (self._size - width + 1, width)
        return np.ndarray(shape, self._data.dtype, self._data, strides=(step, step))

    # -- stores ---------------------------------------------------------------------------------------------

    def _raw(self, values: Any) -> Array:
        return np.asarray(values, self._stored) if self._pack is None else self._pack(values)

    def store(self, offsets: Any, values: Any) -> None:
        """Store `values` at `offsets`.

        Raises:
            AccessFault: an offset is outside, the argument is read-only, or lanes of this store collide.
        """
        raw = self._raw(values)
        offsets = np.asarray(offsets)
        if offsets.shape != raw.shape:
            shape = np.broadcast_shapes(offsets.shape, raw.shape)
            offsets, raw = np.broadcast_to(offsets, shape), np.broadcast_to(raw, shape)
        self._check_writable(offsets)
        self._check(offsets, "writes")
        if self._argument.log is not None:
            self._argument.log.writes.append(offsets)
        self._data[offsets] = raw
        self._check_lanes(offsets, raw)

    def _check_lanes(self, offsets: Array, raw: Array) -> None:
        """Reading back finds lanes of one store that wrote different bits to one address."""
        lost = self._bits(self._data[offsets]) != self._bits(raw)
        if np.count_nonzero(lost):
            what = "writes different values from two lanes to"
            raise AccessFault(self._argument.name, offsets[lost], what, lanes=True)

    def _bits(self, values: Array) -> Array:
        if values.dtype.kind != "f":
            return values
        return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").reshape(values.shape)

    def store_one(self, offset: Any, value: Any) -> None:
        """Store one value at one offset."""
        self._check_writable([offset])
        self._check_one(offset, "writes")
        if self._argument.log is not None:
            self._argument.log.writes.append(offset)
        self._data[offset] = value if self._pack is None else self._pack(value)

    def store_masked(self, offsets: Any, values: Any, mask: Any) -> None:
        """Store `values` at `offsets` where `mask` holds."""
        active = np.count_nonzero(mask)
        if active == mask.size:
            self.store(offsets, values)
        elif active:
            shape = np.broadcast_shapes(np.shape(offsets), np.shape(values), np.shape(mask))
            mask = np.broadcast_to(mask, shape)
            self.store(np.broadcast_to(offsets, shape)[mask], np.broadcast_to(values, shape)[mask])

    def store_rows(self, starts: Any, columns: Any, rows: Any, values: Any, shape: tuple[int, ...]) -> None:
        """Store rows of neighbours; the arguments are those of `load_rows`, with `values` broadcasting to `shape`."""
        width = shape[-1] if columns is None else _prefix(columns)
        if width < 0:
            offsets = starts + np.arange(shape[-1])
            self.store_masked(offsets, np.broadcast_to(values, shape), columns if rows is None else columns & rows)
            return
        raw = self._raw(values)
        raw = (raw if raw.shape == shape else np.broadcast_to(raw, shape)).reshape(-1, shape[-1])
        starts = _flat(starts)
        if rows is not None and np.count_nonzero(rows) < rows.size:
            chosen = rows.ravel()
            if chosen.size != starts.size:
                return
            starts, raw = starts[chosen], raw[chosen]
        if not width or not starts.size:
            return
        self._check_writable(starts)
        self._check_rows(starts, width, "writes")
        if self._argument.log is not None:
            self._argument.log.writes.append((starts, width))
        if starts.size == 1:
            self._data[starts[0] : starts[0] + width] = raw[0, :width]
            return
        self._overlapping(width)[starts] = raw[:, :width]
        ordered = np.sort(starts)
        if (ordered[1:] - ordered[:-1]).min() < width:
            self._check_lanes(starts[:, None] + np.arange(width), raw[:, :width])

    # -- atomics --------------------------------------------------------------------------------------------

    def _active(self, offsets: Any, mask: Any, shape: tuple[int, ...]) -> tuple[Array, Array]:
        lanes = np.broadcast_to(mask, shape)
        active = np.broadcast_to(np.asarray(offsets, np.int64), shape)[lanes]
        if active.size:
            self._check_writable(active)
            self._check(active, "atomically updates")
            if self._argument.log is not None:
                self._argument.log.atomics.append(active)
        return lanes, active

    def atomic(self, update: Any, offsets: Any, values: Any, mask: Any, shape: tuple[int, ...]) -> Any:
        """Replace elements by `update(old, value)` where `mask` holds, lane by lane; returns the old elements."""
        lanes, active = self._active(offsets, mask, shape)
        given = np.broadcast_to(np.asarray(values, self._computed), shape)[lanes]
        return self._apply(lanes, active, [given], update, shape)

    def compare_and_swap(self, offsets: Any, expected: Any, values: Any, shape: tuple[int, ...]) -> Any:
        """Replace elements equal to `expected` by `values`, lane by lane; returns the old elements."""
        lanes, active = self._active(offsets, True, shape)
        given = [np.broadcast_to(np.asarray(each, self._computed), shape)[lanes] for each in (expected, values)]
        return self._apply(lanes, active, given, _swapped, shape)

    def _apply(self, lanes: Array, active: Array, given: list[Array], update: Any, shape: tuple[int, ...]) -> Any:
        old = np.zeros(shape, self._computed)
        found = np.zeros(active.shape, self._computed)
        # Lanes that share an address take turns: each turn holds every address once.
        _, group = np.unique(active, return_inverse=True)
        order = np.argsort(group, kind="stable")
        ordered = group[order]
        first = np.searchsorted(ordered, ordered)
        turn = np.empty(active.shape, np.int64)
        turn[order] = np.arange(len(active)) - first
        for number in range(int(turn.max()) + 1 if active.size else 0):
            chosen = turn == number
            where = active[chosen]
            raw = self._data[where]
            before = raw if self._unpack is None else self._unpack(raw)
            after = update(before, *(each[chosen] for each in given))
            self._data[where] = self._raw(round_to(after, self._element) if self._pack is not None else after)
            found[chosen] = before
        old[lanes] = found
        return old if shape else old[()]


def _flat(starts: Any) -> Array:
    flat: Array = np.asarray(starts, np.int64).reshape(-1)
    return flat


def _swapped(old: Array, expected: Array, new: Array) -> Array:
    return np.where(old == expected, new, old)


def _prefix(columns: Array) -> int:
    """How many lanes of a mask along the last axis hold, if they are the first ones; else -1."""
    width = int(np.count_nonzero(columns))
    flat = columns.reshape(-1)
    if width in {0, flat.size} or (flat[width - 1] and np.count_nonzero(flat[:width]) == width):
        return width
    return -1
