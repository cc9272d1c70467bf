# SPDX-License-Identifier: MIT OR Apache-2.0
"""Entries for structured control flow, branches, calls, the launch grid, assertions and prints.

What is carried around a loop or out of a branch has one extent for all ways in which control arrives. A `for` loop
is written with the extents of its first values and written again with larger ones if the body turns out to need
them; elsewhere whole shapes are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from metrale_caps.kernels.executor.ir import Type
from metrale_caps.kernels.executor.numerics import COMPUTED_AS
from metrale_caps.kernels.executor.operands import Bound, Level, Operand, Pointer, broadcast_extents
from metrale_caps.kernels.executor.writer import INDEX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metrale_caps.kernels.executor.ir import Function, Operation, Value
    from metrale_caps.kernels.executor.operands import Extent
    from metrale_caps.kernels.executor.writer import Line, Writer

    Emitter = Callable[[Writer, Operation], None]


class Carried:
    """A variable of the generated code that holds a value on every way into a block.

    Attributes:
        name: Python name.
        extent: shape of the array it holds.
    """

    def __init__(self, writer: Writer, value_type: Type, extent: Extent, argument: str | None) -> None:
        self.name: str = writer.name()
        self.extent = extent
        self._type = value_type
        self._argument = argument

    @classmethod
    def like(cls, writer: Writer, bound: Bound, *, whole: bool) -> Carried:
        """A variable that can hold `bound`; with `whole`, at its type's full shape."""
        argument = bound.argument if isinstance(bound, Pointer) else None
        extent = bound.type.shape if whole else _number(writer, bound).extent
        return cls(writer, bound.type, extent, argument)

    def grown(self, writer: Writer, bound: Bound) -> bool:
        """Make room for another value; returns whether the extent changed."""
        joined = broadcast_extents([self.extent, _number(writer, bound).extent])
        changed = joined != self.extent
        self.extent = joined
        return changed

    def bound(self) -> Bound:
        """What a value that this variable holds is bound to."""
        if self._argument is None:
            return Operand(self.name, self._type, self.extent, Level.PROGRAM)
        offset = Operand(self.name, Type(INDEX.element, self._type.shape), self.extent, Level.PROGRAM)
        return Pointer(self._argument, self._type, (offset,))

    def code_of(self, writer: Writer, bound: Bound) -> str:
        """An expression that gives `bound` with this variable's extent."""
        if isinstance(bound, Pointer) and bound.argument != self._argument:
            raise writer.unsupported("control flow", "an address may belong to one of several arguments")
        return writer.spread(_number(writer, bound), self.extent).code


def _number(writer: Writer, bound: Bound) -> Operand:
    return writer.offsets(bound) if isinstance(bound, Pointer) else bound


def _assign(writer: Writer, carried: Sequence[Carried], bounds: Sequence[Bound]) -> None:
    """Set all variables at once."""
    if carried:
        names = ", ".join(one.name for one in carried)
        codes = [one.code_of(writer, bound) for one, bound in zip(carried, bounds, strict=True)]
        writer.statement(f"{names} = {', '.join(codes)}")


def _bound_all(writer: Writer, values: Sequence[Value]) -> list[Bound]:
    return [writer.bound(value) for value in values]


def for_loop(writer: Writer, operation: Operation) -> None:
    """`scf.for`: written again as long as a pass over the body makes a carried extent grow."""
    initial = _bound_all(writer, operation.operands[3:])
    carried = [Carried.like(writer, bound, whole=False) for bound in initial]
    while True:
        marks = writer.mark()
        with writer.captured() as lines:
            settled = _for_once(writer, operation, initial, carried)
        if settled:
            writer.add_lines(lines)
            break
        writer.rewind(marks)
    for result, variable in zip(operation.results, carried, strict=True):
        writer.bind(result, variable.bound())


def _for_once(writer: Writer, operation: Operation, initial: Sequence[Bound], carried: Sequence[Carried]) -> bool:
    """Write the loop; returns whether the carried extents were large enough for what the body yields."""
    region = operation.regions[0]
    lower, upper, step = (writer.operand(value).code for value in operation.operands[:3])
    convert = "unsigned" if "unsigned" in operation.keywords else ""
    counter_type = region.entry.arguments[0].type
    counter = writer.name()
    _assign(writer, carried, initial)
    bounds = ", ".join(f"int({convert}({code}))" for code in (lower, upper, step))
    writer.statement(f"for {counter} in range({bounds}):")
    with writer.indented():
        dtype = np.dtype(COMPUTED_AS[counter_type.element]).name
        writer.statement(f"{counter} = np.{dtype}({counter})")
        arguments: list[Bound] = [Operand(counter, counter_type, (), Level.PROGRAM)]
        last = writer.region(region, arguments + [variable.bound() for variable in carried])
        yielded = _bound_all(writer, last.operands)
        grew = [variable.grown(writer, bound) for variable, bound in zip(carried, yielded, strict=True)]
        if any(grew):
            return False
        _assign(writer, carried, yielded)
    return True


def condition(writer: Writer, operation: Operation) -> None:
    """`scf.if`."""
    chosen = writer.operand(operation.operands[0])
    if chosen.extent != ():
        raise writer.unsupported("scf.if", "inside a combining function")
    branches: list[list[Line]] = []
    yielded: list[list[Bound]] = []
    carried: list[Carried] = []
    for region in operation.regions:
        with writer.captured() as lines, writer.indented():
            yielded.append(_bound_all(writer, writer.region(region, []).operands))
            if not carried:
                carried = [Carried.like(writer, bound, whole=True) for bound in yielded[0]]
            _assign(writer, carried, yielded[-1])
        branches.append(lines)
    for keyword, lines in zip((f"if {chosen.code}:", "else:"), branches, strict=False):
        writer.statement(keyword)
        with writer.indented():
            writer.statement("pass")
        writer.add_lines(lines)
    for result, variable in zip(operation.results, carried, strict=True):
        writer.bind(result, variable.bound())


def while_loop(writer: Writer, operation: Operation) -> None:
    """`scf.while`: a first region that decides, and a second that goes on."""
    initial = _bound_all(writer, operation.operands)
    carried = [Carried.like(writer, bound, whole=True) for bound in initial]
    before, after = operation.regions
    _assign(writer, carried, initial)
    writer.statement("while True:")
    with writer.indented():
        decision = writer.region(before, [variable.bound() for variable in carried])
        forwarded = _bound_all(writer, decision.operands[1:])
        results = [Carried.like(writer, bound, whole=True) for bound in forwarded]
        _assign(writer, results, forwarded)
        writer.statement(f"if not {writer.operand(decision.operands[0]).code}: break")
        last = writer.region(after, [variable.bound() for variable in results])
        _assign(writer, carried, _bound_all(writer, last.operands))
    for result, variable in zip(operation.results, results, strict=True):
        writer.bind(result, variable.bound())


def write_function(writer: Writer, function: Function, arguments: Sequence[Bound]) -> None:
    """Write a function's blocks; several of them become a loop over the number of the next one."""
    blocks = function.body.blocks
    for value, bound in zip(function.arguments, arguments, strict=True):
        writer.bind(value, bound)
    if len(blocks) == 1:
        writer.emit(writer.block(blocks[0]))
        return
    outer, writer.targets = writer.targets, {}
    for number, block in enumerate(blocks):
        held = [Carried(writer, value.type, value.type.shape, None) for value in block.arguments if number]
        writer.targets[block.label] = (number, held)
        for value, variable in zip(block.arguments, held, strict=False):
            if value.type.pointer:
                raise writer.unsupported("cf.br", "hands an address to a block")
            writer.bind(value, variable.bound())
    writer.statement("block = 0")
    writer.statement("while True:")
    with writer.indented():
        for number, block in enumerate(blocks):
            writer.statement(f"{'el' if number else ''}if block == {number}:")
            with writer.indented():
                writer.emit(writer.block(block))
    writer.targets = outer


def branch(writer: Writer, operation: Operation) -> None:
    """`cf.br`: sets the target's arguments and makes the target the next block."""
    (successor,) = operation.successors
    number, carried = writer.targets[successor.label]
    _assign(writer, carried, _bound_all(writer, successor.arguments))
    writer.statement(f"block = {number}")
    writer.statement("continue")


def conditional_branch(writer: Writer, operation: Operation) -> None:
    """`cf.cond_br`."""
    for keyword, successor in zip(
        (f"if {writer.operand(operation.operands[0]).code}:", "else:"), operation.successors, strict=True
    ):
        writer.statement(keyword)
        with writer.indented():
            number, carried = writer.targets[successor.label]
            _assign(writer, carried, _bound_all(writer, successor.arguments))
            writer.statement(f"block = {number}")
    writer.statement("continue")


def returns(writer: Writer, operation: Operation) -> None:
    """`tt.return`."""
    operands = [writer.full(writer.operand(value)).code for value in operation.operands]
    writer.statement(f"return ({', '.join(operands)},)" if operands else "return None")


def call(writer: Writer, operation: Operation) -> None:
    """`tt.call`: the callee is written anew for each call, so that it knows which arguments its addresses are in."""
    callee = writer.module.functions[str(operation.attributes["symbol"])]
    name = writer.name("function")
    writer.statement(f"def {name}():")
    with writer.indented():
        write_function(writer, callee, _bound_all(writer, operation.operands))
    together = writer.name()
    writer.statement(f"{together} = {name}()")
    for position, result in enumerate(operation.results):
        writer.define(result, f"{together}[{position}]", result.type.shape, Level.PROGRAM)


def grid_entry(stem: str) -> Emitter:
    """An entry for a program's position in the grid, or the grid's extents."""

    def emit(writer: Writer, operation: Operation) -> None:
        level = Level.LAUNCH if stem == "grid" else Level.PROGRAM
        writer.define(operation.result, f"np.int32({stem}_{operation.keywords[0]})", (), level)

    return emit


def assertion(writer: Writer, operation: Operation) -> None:
    """`tt.assert`: fails the launch if any lane is false."""
    message = str(operation.attributes.get("text", ""))
    code = writer.operand(operation.operands[0]).code
    writer.statement(f"check_assertion({code}, {message!r}, {writer.kernel!r})")


def device_print(writer: Writer, operation: Operation) -> None:
    """`tt.print`."""
    codes = [writer.full(writer.operand(value)).code for value in operation.operands]
    arguments = ", ".join([repr(str(operation.attributes.get("text", ""))), *codes])
    writer.statement(f"print_values((program_x, program_y, program_z), {arguments})")


def nothing(writer: Writer, operation: Operation) -> None:
    """Hints and barriers: a program runs as one thread here."""


ENTRIES: Final[dict[str, Emitter]] = {
    "scf.for": for_loop,
    "scf.if": condition,
    "scf.while": while_loop,
    "scf.yield": nothing,
    "scf.condition": nothing,
    "cf.br": branch,
    "cf.cond_br": conditional_branch,
    "tt.return": returns,
    "tt.call": call,
    "tt.reduce.return": nothing,
    "tt.scan.return": nothing,
    "tt.get_program_id": grid_entry("program"),
    "tt.get_num_programs": grid_entry("grid"),
    "tt.assert": assertion,
    "tt.print": device_print,
    "llvm.intr.assume": nothing,
    "gpu.barrier": nothing,
    "ttg.barrier": nothing,
}
