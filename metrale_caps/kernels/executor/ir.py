# SPDX-License-Identifier: MIT OR Apache-2.0
"""The intermediate representation of a kernel, as plain data: types, values, operations, blocks, regions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Attribute: TypeAlias = "bool | int | float | str | tuple[int | float | bool, ...]"


@dataclass(frozen=True, slots=True)
class Type:
    """A scalar or a tensor of numbers or pointers.

    Attributes:
        element: name of the number's type (`i32`, `bf16`, `f8E4M3FN`), of the pointee where `pointer` holds.
        shape: extents of a tensor; empty for a scalar.
        pointer: whether the elements are addresses.
    """

    element: str
    shape: tuple[int, ...] = ()
    pointer: bool = False

    def of(self, element: str) -> Type:
        """A type of the same shape that holds other numbers."""
        return Type(element, self.shape)


@dataclass(eq=False, slots=True)
class Value:
    """What one operation, or one block's entry, defines; compared by identity."""

    index: int
    type: Type


@dataclass(eq=False, slots=True)
class Successor:
    """A branch's target and the values handed to the target's arguments."""

    label: str
    arguments: tuple[Value, ...]


@dataclass(eq=False, slots=True)
class Operation:
    """One operation.

    Attributes:
        name: dialect and name, as in `arith.addi`.
        operands: values read, in the order of the text.
        results: values defined.
        attributes: named constants of the operation.
        keywords: bare words of the operation's own syntax, such as a comparison's predicate.
        regions: nested code.
        successors: targets of a branch.
    """

    name: str
    operands: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    attributes: dict[str, Attribute] = field(default_factory=dict[str, Attribute])
    keywords: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    successors: tuple[Successor, ...] = ()

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value


@dataclass(eq=False, slots=True)
class Block:
    """A straight run of operations; `arguments` are set by whoever enters it."""

    label: str
    arguments: tuple[Value, ...] = ()
    operations: list[Operation] = field(default_factory=list[Operation])


@dataclass(eq=False, slots=True)
class Region:
    """Blocks of one nested scope; the first is the entry."""

    blocks: list[Block]

    @property
    def entry(self) -> Block:
        """The block that control enters first."""
        return self.blocks[0]


@dataclass(eq=False, slots=True)
class Function:
    """A kernel, or a device function that was not inlined."""

    name: str
    body: Region
    public: bool

    @property
    def arguments(self) -> tuple[Value, ...]:
        """Values bound by the caller."""
        return self.body.entry.arguments


@dataclass(eq=False, slots=True)
class Module:
    """All functions of one kernel's text, by name."""

    functions: dict[str, Function]

    @property
    def kernel(self) -> Function:
        """The function that is launched."""
        return next(function for function in self.functions.values() if function.public)
