# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds two programs of one launch that touch the same address, at least one of them writing it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]

Program: TypeAlias = tuple[int, int, int]
Access: TypeAlias = "Array | np.int64 | tuple[Array, int]"
"""Element offsets; or the first offsets of rows of neighbours, and how many these are."""


class Race(NamedTuple):
    """Programs that collide, and at which element offsets of which argument."""

    argument: str
    offsets: tuple[int, ...]
    programs: tuple[Program, ...]
    what: str


@dataclass(slots=True)
class AccessLog:
    """What the running program has touched in one argument."""

    reads: list[Access] = field(default_factory=list[Any])
    writes: list[Access] = field(default_factory=list[Any])
    atomics: list[Access] = field(default_factory=list[Any])


class Touched(NamedTuple):
    """Addresses that one program touched in one way in one argument, with their bounds."""

    program: int
    argument: int
    accesses: tuple[Access, ...]
    first: int
    last: int


_KINDS = ("reads", "writes", "atomics")


class RaceMonitor:
    """Collects what each program of a launch touches, in the arguments that share one storage.

    Args:
        names: names of the arguments.
        starts: byte position of each argument's first element in the storage.
        item_sizes: bytes of each argument's elements.
    """

    def __init__(self, names: Sequence[str], starts: Sequence[int], item_sizes: Sequence[int]) -> None:
        self._names = tuple(names)
        self._starts = tuple(starts)
        self._item_sizes = tuple(item_sizes)
        self._unit = int(np.gcd.reduce([*starts, *item_sizes]))
        self._programs: list[Program] = []
        self._touched: dict[str, list[Touched]] = {kind: [] for kind in _KINDS}
        self.logs: tuple[AccessLog, ...] = tuple(AccessLog() for _ in names)

    def end_program(self, program: Program) -> None:
        """Take over what the program that has ended touched."""
        number = len(self._programs)
        self._programs.append(program)
        for argument, log in enumerate(self.logs):
            for kind, offsets in (("reads", log.reads), ("writes", log.writes), ("atomics", log.atomics)):
                if offsets:
                    self._add(kind, number, argument, offsets)
                    offsets.clear()

    def _add(self, kind: str, program: int, argument: int, accesses: list[Access]) -> None:
        """Note the bounds of what was accessed; the single addresses are only worked out if bounds overlap."""
        first, last = None, -1
        for access in accesses:
            offsets, width = access if isinstance(access, tuple) else (access, 1)
            low, high = int(np.min(offsets)), int(np.max(offsets)) + width - 1
            first, last = (low if first is None else min(first, low)), max(last, high)
        if first is None:
            return
        start, size, unit = self._starts[argument], self._item_sizes[argument], self._unit
        bounds = (first * size + start) // unit, (last * size + size + start) // unit - 1
        self._touched[kind].append(Touched(program, argument, tuple(accesses), *bounds))

    def _addresses(self, touched: Touched) -> Array:
        start, size, unit = self._starts[touched.argument], self._item_sizes[touched.argument], self._unit
        offsets = [
            (access[0][..., None] + np.arange(access[1])).ravel()
            if isinstance(access, tuple)
            else np.asarray(access, np.int64).ravel()
            for access in touched.accesses
        ]
        addresses = np.concatenate(offsets) * (size // unit) + start // unit
        return (addresses[:, None] + np.arange(size // unit)).ravel()

    def _joined(self, touched: list[Touched]) -> tuple[Array, Array]:
        """Every (address, program) pair once, ordered by address, then program."""
        each = [self._addresses(one) for one in touched]
        addresses = np.concatenate(each)
        programs = np.concatenate(
            [np.full(len(found), one.program, np.int64) for found, one in zip(each, touched, strict=True)]
        )
        order = np.lexsort((programs, addresses))
        addresses, programs = addresses[order], programs[order]
        kept = np.ones(len(addresses), np.bool_)
        kept[1:] = (addresses[1:] != addresses[:-1]) | (programs[1:] != programs[:-1])
        return addresses[kept], programs[kept]

    def race(self) -> Race | None:
        """The first race found, or None; to be asked when the launch has ended."""
        writes, reads, atomics = (self._touched[kind] for kind in ("writes", "reads", "atomics"))
        return (
            self._collision(writes, writes, "both write")
            or self._collision(writes, reads, "write and read")
            or self._collision(writes, atomics, "write and atomically update")
            or self._collision(atomics, reads, "atomically update and read")
        )

    def _collision(self, first: list[Touched], second: list[Touched], what: str) -> Race | None:
        if not first or not second or not _may_collide(first, second):
            return None
        addresses, programs = self._joined(first)
        if first is second:
            clash = np.flatnonzero((addresses[1:] == addresses[:-1]) & (programs[1:] != programs[:-1]))
            if not clash.size:
                return None
            pair = {int(programs[clash[0]]), int(programs[clash[0] + 1])}
            return self._race(first, addresses[clash], pair, what)
        others, other_programs = self._joined(second)
        # An address may be in the first list for several programs: the first and the last of them are looked at,
        # for if one program of the second list differs from neither, it is the only one of the first.
        earliest = np.searchsorted(addresses, others, side="left")
        latest = np.searchsorted(addresses, others, side="right") - 1
        for found in (earliest, latest):
            positions = np.clip(found, 0, len(addresses) - 1)
            clash = np.flatnonzero((addresses[positions] == others) & (programs[positions] != other_programs))
            if clash.size:
                pair = {int(programs[positions[clash[0]]]), int(other_programs[clash[0]])}
                return self._race(first, others[clash], pair, what)
        return None

    def _race(self, touched: list[Touched], addresses: Array, pair: set[int], what: str) -> Race:
        address = int(addresses[0])
        argument = next(
            one.argument
            for one in touched
            if one.program in pair and one.first <= address <= one.last and address in self._addresses(one)
        )
        start, size = self._starts[argument], self._item_sizes[argument]
        offsets = sorted({(int(one) * self._unit - start) // size for one in addresses.tolist()})
        return Race(self._names[argument], tuple(offsets), tuple(self._programs[one] for one in sorted(pair)), what)


def _may_collide(first: list[Touched], second: list[Touched]) -> bool:
    """Whether intervals of different programs overlap; when none do, no address needs to be looked at.

    Walking the intervals by their starts, the furthest end so far and the furthest of any other program suffice.
    """
    furthest, holder, runner_up = -1, -1, -1
    both = first if first is second else [*first, *second]
    for one in sorted(both, key=lambda touched: touched.first):
        reach = runner_up if one.program == holder else furthest
        if reach >= one.first:
            return True
        if one.program == holder:
            furthest = max(furthest, one.last)
        elif one.last > furthest:
            furthest, holder, runner_up = one.last, one.program, furthest
        else:
            runner_up = max(runner_up, one.last)
    return False
