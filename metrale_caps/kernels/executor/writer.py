# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes the Python source of one kernel while the emitters walk over its operations."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from metrale_caps.errors import UnsupportedOperationError
from metrale_caps.kernels.executor.ir import Type
from metrale_caps.kernels.executor.operands import Bound, Level, Operand, Pointer, broadcast_extents, elements

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from metrale_caps.kernels.executor.ir import Block, Module, Operation, Region, Value
    from metrale_caps.kernels.executor.operands import Extent
    from metrale_caps.kernels.executor.operations.control import Carried

INDEX = Type("i64")
TERMINATORS = frozenset(
    {"cf.br", "cf.cond_br", "scf.condition", "scf.yield", "tt.reduce.return", "tt.return", "tt.scan.return"}
)
"""Operations that may end a block."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of source; `defines` is the name that a line without side effects gives a value to."""

    depth: int
    text: str
    defines: str | None = None


class Writer:
    """The state of writing one kernel: what is bound to each value, and the lines so far.

    Attributes:
        kernel: name of the kernel, for errors.
        module: the kernel and its device functions.
        emitted: names of the operations that were written.
        lines: the code of each level.
        stored: Python names of the arguments that the kernel stores to.
        targets: for each block of the function being written, its number and the variables of its arguments.
    """

    def __init__(
        self, kernel: str, module: Module, emitters: Mapping[str, Callable[[Writer, Operation], None]]
    ) -> None:
        self.kernel = kernel
        self.module = module
        self.emitted: set[str] = set()
        self.lines: dict[Level, list[Line]] = {level: [] for level in Level}
        self._emitters = emitters
        self._bound: dict[Value, Bound] = {}
        self._names = 0
        self._depth = 0
        self._sums: dict[str, tuple[Operand, ...]] = {}
        self._products: dict[str, tuple[Operand, ...]] = {}
        self._offset_scopes: list[dict[tuple[str, ...], Operand]] = [{}]
        self._accesses: dict[tuple[str, str], str] = {}
        self.stored: set[str] = set()
        self.targets: dict[str, tuple[int, list[Carried]]] = {}

    # -- names and lines ------------------------------------------------------------------------------------

    def name(self, prefix: str = "v") -> str:
        """A name that was not used before."""
        self._names += 1
        return f"{prefix}{self._names}"

    def statement(self, text: str) -> None:
        """Add a line that runs when control reaches it."""
        self.lines[Level.PROGRAM].append(Line(self._depth, text))

    @contextmanager
    def indented(self) -> Generator[None]:
        """Nest the lines that follow; what is computed here is not at hand outside."""
        self._depth += 1
        self._offset_scopes.append({})
        yield
        self._offset_scopes.pop()
        self._depth -= 1

    @contextmanager
    def captured(self) -> Generator[list[Line]]:
        """Collect the lines that follow, rather than adding them."""
        outer = self.lines[Level.PROGRAM]
        inner: list[Line] = []
        self.lines[Level.PROGRAM] = inner
        yield inner
        self.lines[Level.PROGRAM] = outer

    def mark(self) -> dict[Level, int]:
        """How much code the seldom-computed levels have."""
        return {level: len(self.lines[level]) for level in (Level.KERNEL, Level.LAUNCH)}

    def rewind(self, marks: dict[Level, int]) -> None:
        """Forget the code that those levels got since the mark; accesses stay, for others may refer to them."""
        for level, count in marks.items():
            kept = [line for line in self.lines[level][count:] if line.text.endswith(")") and ".as_type(" in line.text]
            self.lines[level][count:] = kept
        self._offset_scopes = [{} for _ in self._offset_scopes]

    def add_lines(self, lines: list[Line]) -> None:
        """Add lines that were captured."""
        self.lines[Level.PROGRAM] += lines

    def unsupported(self, operation: str, detail: str = "") -> UnsupportedOperationError:
        """The error that names the kernel and the operation."""
        return UnsupportedOperationError(self.kernel, operation, detail)

    # -- values ---------------------------------------------------------------------------------------------

    def bind(self, value: Value, bound: Bound) -> None:
        """Let `value` be something that is already at hand."""
        self._bound[value] = bound

    def bound(self, value: Value) -> Bound:
        """What `value` is."""
        return self._bound[value]

    def operand(self, value: Value) -> Operand:
        """What `value` is, which has to be numbers."""
        bound = self._bound[value]
        if isinstance(bound, Pointer):
            raise self.unsupported("pointer arithmetic", "an address is used as a number")
        return bound

    def pointer(self, value: Value) -> Pointer:
        """What `value` is, which has to be addresses."""
        bound = self._bound[value]
        if isinstance(bound, Operand):
            raise self.unsupported("pointer arithmetic", "a number is used as an address")
        return bound

    def compute(self, expression: str, value_type: Type, extent: Extent, level: Level) -> Operand:
        """Add a line that gives a new name to a pure expression, where it runs as seldom as `level` allows."""
        name = self.name()
        depth = self._depth if level is Level.PROGRAM else 0
        self.lines[level].append(Line(depth, f"{name} = {expression}", name))
        return Operand(name, value_type, extent, level)

    def define(self, value: Value, expression: str, extent: Extent, level: Level) -> Operand:
        """Compute the number or tensor that `value` is."""
        operand = self.compute(expression, value.type, extent, level)
        self._bound[value] = operand
        return operand

    def elementwise(self, operation: Operation, template: str) -> Operand:
        """Define the result by an expression in `{0}`, `{1}`, ... that works on arrays and numpy scalars alike."""
        operands = [self.operand(value) for value in operation.operands]
        expression = template.format(*(operand.code for operand in operands))
        extent = broadcast_extents([operand.extent for operand in operands])
        level = max((operand.level for operand in operands), default=Level.KERNEL)
        return self.define(operation.result, expression, extent, level)

    def full(self, operand: Operand) -> Operand:
        """The operand as an array of its type's whole shape."""
        if operand.extent == operand.type.shape or operand.extent is None:
            return operand
        return self.spread(operand, operand.type.shape)

    def spread(self, operand: Operand, extent: Extent) -> Operand:
        """The operand as an array of the given, not smaller, shape."""
        if operand.extent == extent:
            return operand
        return self.compute(f"np.broadcast_to({operand.code}, {extent})", operand.type, extent, operand.level)

    # -- addresses ------------------------------------------------------------------------------------------

    def note_sum(self, total: Operand, summands: Sequence[Operand]) -> None:
        """Remember that an int64 tensor is a sum, so that an address made of it can keep the smaller parts."""
        self._sums[total.code] = tuple(summands)

    def summands(self, operand: Operand) -> tuple[Operand, ...]:
        """The smaller tensors whose sum `operand` is known to be; itself if none are known."""
        known = self._sums.get(operand.code)
        if known is None:
            return (operand,)
        return tuple(part for summand in known for part in self.summands(summand))

    def note_product(self, total: Operand, factors: Sequence[Operand]) -> None:
        """Remember that a mask is a conjunction, so that an access can keep the smaller masks."""
        self._products[total.code] = tuple(factors)

    def factors(self, mask: Operand) -> tuple[Operand, ...]:
        """The smaller masks whose conjunction `mask` is known to be; itself if none are known."""
        known = self._products.get(mask.code)
        if known is None:
            return (mask,)
        return tuple(part for factor in known for part in self.factors(factor))

    def conjunction(self, masks: Sequence[Operand]) -> Operand | None:
        """All masks at once, smallest first; None for none."""
        total: Operand | None = None
        for mask in sorted(masks, key=lambda one: (elements(one.extent), one.level)):
            if total is None:
                total = mask
                continue
            extent = broadcast_extents([total.extent, mask.extent])
            total = self.compute(f"{total.code} & {mask.code}", mask.type, extent, max(total.level, mask.level))
        return total

    def offsets(self, pointer: Pointer) -> Operand:
        """The sum of a pointer's parts, smallest first so that little is computed at full size."""
        parts = sorted(pointer.parts, key=lambda part: (elements(part.extent), part.level))
        key = tuple(part.code for part in parts)
        for scope in self._offset_scopes:
            if key in scope:
                return scope[key]
        total = parts[0]
        for part in parts[1:]:
            extent = broadcast_extents([total.extent, part.extent])
            level = max(total.level, part.level)
            total = self.compute(f"{total.code} + {part.code}", INDEX, extent, level)
        scope = self._offset_scopes[-1] if total.level is Level.PROGRAM else self._offset_scopes[0]
        scope[key] = total
        return total

    def access(self, argument: str, element: str) -> str:
        """Python name of the argument's memory seen as elements of a type."""
        key = (argument, element)
        if key not in self._accesses:
            name = f"{argument}_{element}"
            self._accesses[key] = name
            self.lines[Level.LAUNCH].append(Line(0, f"{name} = {argument}.as_type({element!r})", name))
        return self._accesses[key]

    # -- walking --------------------------------------------------------------------------------------------

    def emit(self, operation: Operation) -> None:
        """Write one operation."""
        emitter = self._emitters.get(operation.name)
        if emitter is None:
            raise self.unsupported(operation.name)
        self.emitted.add(operation.name)
        emitter(self, operation)

    def block(self, block: Block) -> Operation:
        """Write a block up to its last operation, which is returned for the caller to give it its meaning."""
        for operation in block.operations[:-1]:
            self.emit(operation)
        last = block.operations[-1]
        if last.name not in TERMINATORS:
            raise self.unsupported(last.name, "as the last operation of a block")
        self.emitted.add(last.name)
        return last

    def region(self, region: Region, arguments: list[Bound]) -> Operation:
        """Write a region of one block, with its arguments bound; returns its last operation."""
        if len(region.blocks) != 1:
            raise self.unsupported("cf.br", "a nested region with several blocks")
        for value, bound in zip(region.entry.arguments, arguments, strict=True):
            self.bind(value, retyped(bound, value.type))
        return self.block(region.entry)


def retyped(bound: Bound, new_type: Type) -> Bound:
    """The same value under another type."""
    return replace(bound, type=new_type)
