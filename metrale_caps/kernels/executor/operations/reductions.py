# SPDX-License-Identifier: MIT OR Apache-2.0
"""Entries that combine the elements along one axis: `tt.reduce` and `tt.scan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from metrale_caps.kernels.executor.numerics import COMPUTED_AS, NARROW_FLOATS
from metrale_caps.kernels.executor.operands import Bound, Level, Operand

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps.kernels.executor.ir import Operation
    from metrale_caps.kernels.executor.writer import Writer

    Emitter = Callable[[Writer, Operation], None]

UFUNCS: Final = {
    "arith.addf": "np.add",
    "arith.addi": "np.add",
    "arith.mulf": "np.multiply",
    "arith.muli": "np.multiply",
    "arith.maxnumf": "np.fmax",
    "arith.minnumf": "np.fmin",
    "arith.maximumf": "np.maximum",
    "arith.minimumf": "np.minimum",
    "arith.maxsi": "np.maximum",
    "arith.minsi": "np.minimum",
    "arith.andi": "np.bitwise_and",
    "arith.ori": "np.bitwise_or",
    "arith.xori": "np.bitwise_xor",
}
_ROUNDING = frozenset({"arith.addf", "arith.mulf"})


def _ufunc(operation: Operation) -> str | None:
    """The numpy function that combines whole axes, if the combination is one operation on one tensor."""
    block = operation.regions[0].entry
    if len(block.arguments) != 2 or len(block.operations) != 2:
        return None
    combining = block.operations[0]
    element = block.arguments[0].type.element
    if set(combining.operands) != set(block.arguments) or block.operations[1].operands != combining.results:
        return None
    if element == "i1" and combining.name not in {"arith.andi", "arith.ori", "arith.xori"}:
        return None
    if element in NARROW_FLOATS and combining.name in _ROUNDING:
        return None
    return UFUNCS.get(combining.name)


def _combination(writer: Writer, operation: Operation) -> str:
    """Write the combining region as a function on arrays; returns its name."""
    region = operation.regions[0]
    name = writer.name("combine")
    names = [writer.name() for _ in region.entry.arguments]
    arguments: list[Bound] = [
        Operand(code, value.type, None, Level.PROGRAM)
        for code, value in zip(names, region.entry.arguments, strict=True)
    ]
    writer.statement(f"def {name}({', '.join(names)}):")
    with writer.indented():
        last = writer.region(region, arguments)
        combined = [writer.operand(value).code for value in last.operands]
        writer.statement(f"return ({', '.join(combined)},)")
    return name


def _inputs(writer: Writer, operation: Operation) -> list[Operand]:
    return [writer.full(writer.operand(value)) for value in operation.operands]


def _define_all(writer: Writer, operation: Operation, call: str) -> None:
    together = writer.compute(call, operation.results[0].type, None, Level.PROGRAM)
    for position, result in enumerate(operation.results):
        writer.define(result, f"{together.code}[{position}]", result.type.shape, Level.PROGRAM)


def reduce(writer: Writer, operation: Operation) -> None:
    """`tt.reduce`: the order of combination is unspecified."""
    axis = operation.attributes["axis"]
    inputs = _inputs(writer, operation)
    ufunc = _ufunc(operation)
    if ufunc is not None:
        result = operation.result
        dtype = np.dtype(COMPUTED_AS[result.type.element]).name
        code = f"{ufunc}.reduce({inputs[0].code}, {axis}, np.{'bool_' if dtype == 'bool' else dtype})"
        writer.emitted.update(inner.name for inner in operation.regions[0].entry.operations)
        writer.define(result, code, result.type.shape, inputs[0].level)
        return
    name = _combination(writer, operation)
    _define_all(writer, operation, f"fold(({', '.join(one.code for one in inputs)},), {axis}, {name})")


def scan(writer: Writer, operation: Operation) -> None:
    """`tt.scan`: the combination of all elements up to each, or from each on."""
    axis = operation.attributes["axis"]
    reverse = bool(operation.attributes.get("reverse", False))
    inputs = _inputs(writer, operation)
    ufunc = _ufunc(operation)
    if ufunc is not None:
        result = operation.result
        dtype = np.dtype(COMPUTED_AS[result.type.element]).name
        code = f"accumulate({ufunc}, {inputs[0].code}, {axis}, {reverse}, np.{'bool_' if dtype == 'bool' else dtype})"
        writer.emitted.update(inner.name for inner in operation.regions[0].entry.operations)
        writer.define(result, code, result.type.shape, inputs[0].level)
        return
    name = _combination(writer, operation)
    codes = ", ".join(one.code for one in inputs)
    _define_all(writer, operation, f"prefixes(({codes},), {axis}, {reverse}, {name})")


ENTRIES: Final[dict[str, Emitter]] = {"tt.reduce": reduce, "tt.scan": scan}
