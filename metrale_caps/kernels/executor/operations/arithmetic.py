# SPDX-License-Identifier: MIT OR Apache-2.0
"""Entries of the `arith` dialect: constants, integer and float arithmetic, comparisons, selection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from metrale_caps.kernels.executor.numerics import COMPUTED_AS, NARROW_FLOATS
from metrale_caps.kernels.executor.operands import Level, Operand, Pointer, broadcast_extents
from metrale_caps.kernels.executor.writer import INDEX

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps.kernels.executor.ir import Operation, Value
    from metrale_caps.kernels.executor.writer import Writer

    Emitter = Callable[[Writer, Operation], None]

FLOATS: Final = {
    "arith.addf": "{0} + {1}",
    "arith.subf": "{0} - {1}",
    "arith.mulf": "{0} * {1}",
    "arith.divf": "{0} / {1}",
    "arith.remf": "np.fmod({0}, {1})",
    "arith.maxnumf": "np.fmax({0}, {1})",
    "arith.minnumf": "np.fmin({0}, {1})",
    "arith.maximumf": "np.maximum({0}, {1})",
    "arith.minimumf": "np.minimum({0}, {1})",
    "arith.negf": "-{0}",
    "tt.precise_divf": "{0} / {1}",
    "tt.approx_divf": "{0} / {1}",
}
INTEGERS: Final = {
    "arith.muli": "{0} * {1}",
    "arith.divsi": "divide_truncating({0}, {1})",
    "arith.remsi": "np.fmod({0}, {1})",
    "arith.ori": "{0} | {1}",
    "arith.shli": "np.left_shift({0}, {1})",
    "arith.shrsi": "np.right_shift({0}, {1})",
    "arith.maxsi": "np.maximum({0}, {1})",
    "arith.minsi": "np.minimum({0}, {1})",
}
UNSIGNED: Final = {
    "arith.divui": "unsigned({0}) // unsigned({1})",
    "arith.remui": "unsigned({0}) % unsigned({1})",
    "arith.shrui": "unsigned({0}) >> unsigned({1})",
    "arith.maxui": "np.maximum(unsigned({0}), unsigned({1}))",
    "arith.minui": "np.minimum(unsigned({0}), unsigned({1}))",
}
# A signed bit is 0 or -1, so that the order of bool is reversed.
BITS: Final = {
    "arith.addi": "{0} ^ {1}",
    "arith.subi": "{0} ^ {1}",
    "arith.muli": "{0} & {1}",
    "arith.maxsi": "{0} & {1}",
    "arith.minsi": "{0} | {1}",
    "arith.maxui": "{0} | {1}",
    "arith.minui": "{0} & {1}",
}
INTEGER_ORDER: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
FLOAT_ORDER: Final = {
    "oeq": "{0} == {1}",
    "one": "({0} < {1}) | ({0} > {1})",
    "olt": "{0} < {1}",
    "ole": "{0} <= {1}",
    "ogt": "{0} > {1}",
    "oge": "{0} >= {1}",
    "ord": "({0} == {0}) & ({1} == {1})",
    "ueq": "~(({0} < {1}) | ({0} > {1}))",
    "une": "{0} != {1}",
    "ult": "~({0} >= {1})",
    "ule": "~({0} > {1})",
    "ugt": "~({0} <= {1})",
    "uge": "~({0} < {1})",
    "uno": "({0} != {0}) | ({1} != {1})",
}


def constant(writer: Writer, operation: Operation) -> None:
    """`arith.constant`: computed once, as a scalar where all elements are equal."""
    result = operation.result
    value = operation.attributes["value"]
    dtype = np.dtype(COMPUTED_AS[result.type.element]).name
    if isinstance(value, tuple):
        code = f"np.array({list(value)!r}, np.{dtype}).reshape({result.type.shape})"
        writer.define(result, code, result.type.shape, Level.KERNEL)
        return
    if isinstance(value, str):
        raise writer.unsupported("arith.constant", value)
    if isinstance(value, float) and not math.isfinite(value):
        code = f"np.{dtype}(float('{value}'))"
    elif isinstance(value, int) and dtype.startswith("int"):
        # Large unsigned constants are spelt without a sign.
        code = f"np.array({value % 2 ** (8 * np.dtype(dtype).itemsize)}, np.u{dtype}).view(np.{dtype})[()]"
    else:
        code = f"np.{'bool_' if dtype == 'bool' else dtype}({value!r})"
    operand = writer.define(result, code, (), Level.KERNEL)
    writer.bind(result, Operand(operand.code, result.type, (), Level.KERNEL, value))


def rounded(template: str, element: str) -> str:
    """An expression whose float result is one that `element` has."""
    return f"round_to({template}, {element!r})" if element in NARROW_FLOATS else template


def float_entry(template: str) -> Emitter:
    """An entry that computes in the type itself, or in float32 and rounds."""

    def emit(writer: Writer, operation: Operation) -> None:
        writer.elementwise(operation, rounded(template, operation.result.type.element))

    return emit


def integer_entry(name: str, template: str) -> Emitter:
    """An entry for integers that wrap around, with a different meaning for single bits."""

    def emit(writer: Writer, operation: Operation) -> None:
        is_bit = operation.result.type.element == "i1"
        writer.elementwise(operation, BITS.get(name, template) if is_bit else template)

    return emit


def unsigned_entry(name: str, template: str) -> Emitter:
    """An entry that sees integers as unsigned and gives its result the signed type that all integers have here."""

    def emit(writer: Writer, operation: Operation) -> None:
        element = operation.result.type.element
        if element == "i1":
            writer.elementwise(operation, BITS.get(name, f"({template}).astype(np.bool_)"))
        else:
            writer.elementwise(operation, f"({template}).view(np.int{element[1:]})")

    return emit


def add(writer: Writer, operation: Operation) -> None:
    """`arith.addi`: also notes sums of 64-bit tensors, which addresses are made of."""
    if operation.result.type.element == "i1":
        writer.elementwise(operation, BITS["arith.addi"])
        return
    total = writer.elementwise(operation, "{0} + {1}")
    first, second = (writer.operand(value) for value in operation.operands)
    if total.type.element == INDEX.element and first.extent != second.extent:
        writer.note_sum(total, (first, second))


def conjunction(writer: Writer, operation: Operation) -> None:
    """`arith.andi`: also notes conjunctions of masks of different extents."""
    total = writer.elementwise(operation, "{0} & {1}")
    first, second = (writer.operand(value) for value in operation.operands)
    if total.type.element == "i1" and first.extent != second.extent:
        writer.note_product(total, (first, second))


def compare_integers(writer: Writer, operation: Operation) -> None:
    """`arith.cmpi`."""
    predicate = operation.keywords[0]
    element = operation.operands[0].type.element
    order = INTEGER_ORDER[predicate if predicate in {"eq", "ne"} else predicate[1:]]
    if predicate[0] == "u":
        writer.elementwise(operation, f"unsigned({{0}}) {order} unsigned({{1}})")
    elif predicate[0] == "s" and element == "i1":
        writer.elementwise(operation, f"{{1}} {order} {{0}}")
    else:
        writer.elementwise(operation, f"{{0}} {order} {{1}}")


def compare_floats(writer: Writer, operation: Operation) -> None:
    """`arith.cmpf`."""
    writer.elementwise(operation, FLOAT_ORDER[operation.keywords[0]])


def select(writer: Writer, operation: Operation) -> None:
    """`arith.select`, of numbers, or of two addresses in the same argument."""
    condition, first, second = operation.operands
    if isinstance(writer.bound(first), Pointer):
        _select_pointer(writer, operation, condition, first, second)
        return
    uniform = writer.operand(condition).extent == ()
    same_extent = writer.operand(first).extent == writer.operand(second).extent
    writer.elementwise(operation, "({1} if {0} else {2})" if uniform and same_extent else "np.where({0}, {1}, {2})")


def _select_pointer(writer: Writer, operation: Operation, condition: Value, first: Value, second: Value) -> None:
    pointers = [writer.pointer(first), writer.pointer(second)]
    if pointers[0].argument != pointers[1].argument:
        raise writer.unsupported("arith.select", "chooses between addresses in two arguments")
    choice = writer.operand(condition)
    offsets = [writer.offsets(pointer) for pointer in pointers]
    extent = broadcast_extents([choice.extent, *(offset.extent for offset in offsets)])
    level = max(choice.level, *(offset.level for offset in offsets))
    code = f"np.where({choice.code}, {offsets[0].code}, {offsets[1].code})"
    chosen = writer.compute(code, INDEX, extent, level)
    writer.bind(operation.result, Pointer(pointers[0].argument, operation.result.type, (chosen,)))


def poison(writer: Writer, operation: Operation) -> None:
    """`ub.poison`: a value that must not matter; zero."""
    dtype = np.dtype(COMPUTED_AS[operation.result.type.element]).name
    writer.define(operation.result, f"np.{'bool_' if dtype == 'bool' else dtype}(0)", (), Level.KERNEL)


ENTRIES: Final[dict[str, Emitter]] = {
    "arith.constant": constant,
    "ub.poison": poison,
    "arith.addi": add,
    "arith.andi": conjunction,
    "arith.subi": integer_entry("arith.subi", "{0} - {1}"),
    "arith.xori": integer_entry("arith.xori", "{0} ^ {1}"),
    "arith.cmpi": compare_integers,
    "arith.cmpf": compare_floats,
    "arith.select": select,
    **{name: float_entry(template) for name, template in FLOATS.items()},
    **{name: integer_entry(name, template) for name, template in INTEGERS.items()},
    **{name: unsigned_entry(name, template) for name, template in UNSIGNED.items()},
}
