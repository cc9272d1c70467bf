# SPDX-License-Identifier: MIT OR Apache-2.0
"""Entries that convert numbers from one type to another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from metrale_caps.kernels.executor.numerics import COMPUTED_AS, NARROW_FLOATS, STORED_AS
from metrale_caps.kernels.executor.operands import Operand, Pointer
from metrale_caps.kernels.executor.writer import retyped

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps.kernels.executor.ir import Operation
    from metrale_caps.kernels.executor.writer import Writer

    Emitter = Callable[[Writer, Operation], None]


def _dtype(element: str) -> str:
    name = np.dtype(COMPUTED_AS[element]).name
    return "bool_" if name == "bool" else name


def _to(writer: Writer, operation: Operation, source: str) -> None:
    element = operation.result.type.element
    if element in NARROW_FLOATS:
        writer.elementwise(operation, f"round_to({source}, {element!r})")
    else:
        writer.elementwise(operation, f"{source}.astype(np.{_dtype(element)})")


def signed(writer: Writer, operation: Operation) -> None:
    """From a signed integer; a set bit is -1."""
    is_bit = operation.operands[0].type.element == "i1"
    _to(writer, operation, "(-{0}.astype(np.int8))" if is_bit else "{0}")
    if writer.operand(operation.operands[0]).ramp:
        writer.bind(operation.result, replace(writer.operand(operation.result), ramp=True))


def unsigned(writer: Writer, operation: Operation) -> None:
    """From an unsigned integer."""
    _to(writer, operation, "unsigned({0})")


def truncate(writer: Writer, operation: Operation) -> None:
    """`arith.trunci`: keeps the low bits."""
    if operation.result.type.element == "i1":
        writer.elementwise(operation, "({0} & 1).astype(np.bool_)")
    else:
        _to(writer, operation, "{0}")


def to_signed(writer: Writer, operation: Operation) -> None:
    """`arith.fptosi`: towards zero; what does not fit is undefined."""
    _to(writer, operation, "{0}")


def to_unsigned(writer: Writer, operation: Operation) -> None:
    """`arith.fptoui`: towards zero; what does not fit is undefined."""
    element = operation.result.type.element
    if element == "i1":
        writer.elementwise(operation, "({0}.astype(np.int64) & 1).astype(np.bool_)")
    else:
        writer.elementwise(operation, f"{{0}}.astype(np.uint{element[1:]}).view(np.int{element[1:]})")


def float_to_float(writer: Writer, operation: Operation) -> None:
    """Widening is exact; narrowing rounds to nearest even, or towards zero if the operation says so."""
    element = operation.result.type.element
    if operation.attributes.get("rounding") == "rtz":
        writer.elementwise(operation, f"truncate_to({{0}}, {element!r})")
    elif element not in NARROW_FLOATS and COMPUTED_AS[operation.operands[0].type.element] is COMPUTED_AS[element]:
        # A narrow float is computed with as float32, so that it is widened already.
        writer.bind(operation.result, retyped(writer.operand(operation.operands[0]), operation.result.type))
    else:
        _to(writer, operation, "{0}")


def reinterpret(writer: Writer, operation: Operation) -> None:
    """The same bits under another type of the same width; of addresses, another pointee of the same width."""
    result = operation.result
    bound = writer.bound(operation.operands[0])
    source, target = operation.operands[0].type.element, result.type.element
    if isinstance(bound, Operand):
        writer.elementwise(operation, f"reinterpret({{0}}, {source!r}, {target!r})")
        return
    if np.dtype(STORED_AS[source]).itemsize != np.dtype(STORED_AS[target]).itemsize:
        raise writer.unsupported("tt.bitcast", f"from addresses of {source} to addresses of {target}")
    writer.bind(result, Pointer(bound.argument, result.type, bound.parts))


ENTRIES: Final[dict[str, Emitter]] = {
    "arith.extsi": signed,
    "arith.sitofp": signed,
    "arith.index_cast": signed,
    "arith.extui": unsigned,
    "arith.uitofp": unsigned,
    "arith.trunci": truncate,
    "arith.fptosi": to_signed,
    "arith.fptoui": to_unsigned,
    "arith.extf": float_to_float,
    "arith.truncf": float_to_float,
    "tt.fp_to_fp": float_to_float,
    "arith.bitcast": reinterpret,
    "tt.bitcast": reinterpret,
}
