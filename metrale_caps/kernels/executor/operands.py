# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the generator knows of a value while it writes the code that computes it.

A tensor is computed no larger than it has to be. Its *extent* is the shape of the array at hand: that of its type
with 1 wherever the tensor does not vary, or `()` if it does not vary at all; numpy broadcasts where two meet. A
pointer is the argument it was derived from and a sum of int64 offsets, which are added up only when it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from metrale_caps.kernels.executor.ir import Type

Extent: TypeAlias = "tuple[int, ...] | None"


class Level(IntEnum):
    """How often a value has to be computed."""

    KERNEL = 0
    """Once for each specialisation: it depends on constants alone."""

    LAUNCH = 1
    """Once for each launch: it depends on arguments, but not on the program."""

    PROGRAM = 2
    """Each time control reaches it."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A number or a tensor of numbers.

    Attributes:
        code: Python expression that gives it; a name, or a literal.
        type: its type.
        extent: shape of what `code` gives, or None where only the running code knows.
        level: how often it is computed.
        literal: its number, if it is the same known one in every element.
        ramp: whether it counts 0, 1, ... along its last axis and does not vary along others.
    """

    code: str
    type: Type
    extent: Extent
    level: Level
    literal: int | float | bool | None = None
    ramp: bool = False

    def as_type(self, new_type: Type) -> Operand:
        """The same array under another type."""
        return replace(self, type=new_type)


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address, or a tensor of addresses.

    Attributes:
        argument: Python name of the argument's memory.
        type: its type.
        parts: offsets whose sum is the address.
    """

    argument: str
    type: Type
    parts: tuple[Operand, ...]


Bound: TypeAlias = Operand | Pointer


def broadcast_extents(extents: list[Extent]) -> Extent:
    """The shape of what numpy makes of arrays with these shapes; those that are not `()` have one rank."""
    found: tuple[int, ...] = ()
    for extent in extents:
        if extent is None:
            return None
        if not found or not extent:
            found = found or extent
        else:
            found = tuple(max(pair) for pair in zip(found, extent, strict=True))
    return found


def elements(extent: Extent) -> int:
    """How many numbers an array of this shape holds."""
    count = 1
    for size in extent or ():
        count *= size
    return count
