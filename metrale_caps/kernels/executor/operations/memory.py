# SPDX-License-Identifier: MIT OR Apache-2.0
"""Entries that make addresses, load, store, and update memory atomically."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from metrale_caps.kernels.executor.ir import Type
from metrale_caps.kernels.executor.numerics import COMPUTED_AS, STORED_AS
from metrale_caps.kernels.executor.operands import Level, Operand, Pointer, broadcast_extents
from metrale_caps.kernels.executor.writer import INDEX

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps.kernels.executor.ir import Operation, Value
    from metrale_caps.kernels.executor.writer import Writer

    Emitter = Callable[[Writer, Operation], None]

ATOMIC_UPDATES: Final = {
    "add": "np.add",
    "fadd": "np.add",
    "and": "np.bitwise_and",
    "or": "np.bitwise_or",
    "xor": "np.bitwise_xor",
    "max": "np.maximum",
    "min": "np.minimum",
    "umax": "maximum_unsigned",
    "umin": "minimum_unsigned",
    "exch": "exchange",
}
_TRUE = Operand("True", Type("i1"), (), Level.KERNEL, literal=True)


def add_pointer(writer: Writer, operation: Operation) -> None:
    """`tt.addptr`: one more part for each smaller tensor that the offset is a sum of."""
    pointer = writer.pointer(operation.operands[0])
    offset = writer.operand(operation.operands[1])
    parts = list(pointer.parts)
    for summand in writer.summands(offset):
        part = summand
        if summand.type.element != INDEX.element:
            extent, level = summand.extent, summand.level
            wide = writer.compute(f"{summand.code}.astype(np.int64)", INDEX, extent, level)
            part = replace(wide, ramp=summand.ramp)
        _merge(writer, parts, part)
    writer.bind(operation.result, Pointer(pointer.argument, operation.result.type, tuple(parts)))


def _merge(writer: Writer, parts: list[Operand], part: Operand) -> None:
    """Add to a part that is computed as often and has the same extent, else keep apart."""
    for position, other in enumerate(parts):
        if other.literal == 0:
            parts[position] = part
            return
        if other.extent == part.extent and other.level == part.level and not other.ramp and not part.ramp:
            parts[position] = writer.compute(f"{other.code} + {part.code}", INDEX, part.extent, part.level)
            return
    parts.append(part)


def _access(writer: Writer, pointer: Pointer, element: str) -> str:
    """Python name of the memory that holds elements of a type."""
    if element not in STORED_AS:
        raise writer.unsupported("tt.load", f"elements of type {element}")
    return writer.access(pointer.argument, element)


def _place(writer: Writer, address: Value, element: str) -> tuple[str, Operand]:
    """Python names of the memory and of the offsets of an address."""
    pointer = writer.pointer(address)
    return _access(writer, pointer, element), writer.offsets(pointer)


@dataclass(frozen=True, slots=True)
class Rows:
    """An access to rows of neighbours.

    Attributes:
        starts: offsets of the rows' first elements.
        columns: Python expression of the mask along the last axis, or `None`.
        rows: Python expression of the mask of whole rows, or `None`.
        shape: shape of all rows together.
    """

    starts: Operand
    columns: str
    rows: str
    shape: tuple[int, ...]


def _rows(writer: Writer, pointer: Pointer, mask: Operand) -> Rows | None:
    """How the access is one of rows of neighbours, whose bounds and masks need not be looked at lane by lane."""
    ramps = [part for part in pointer.parts if part.ramp]
    others = tuple(part for part in pointer.parts if not part.ramp)
    shape = pointer.type.shape
    if len(ramps) != 1 or not ramps[0].extent or ramps[0].extent[-1:] != shape[-1:] or not others:
        return None
    if any(part.extent is None or (part.extent and part.extent[-1] > 1) for part in others):
        return None
    starts = writer.offsets(Pointer(pointer.argument, pointer.type, others))
    columns: list[Operand] = []
    rows: list[Operand] = []
    for factor in writer.factors(mask) if mask.literal is not True else ():
        if factor.extent == () or (factor.extent and factor.extent[-1] == 1):
            rows.append(factor)
        elif factor.extent == ramps[0].extent:
            columns.append(factor)
        else:
            return None
    row_mask = writer.conjunction(rows)
    if row_mask is not None and row_mask.extent:
        if broadcast_extents([row_mask.extent, starts.extent]) != starts.extent:
            return None
        row_mask = writer.spread(row_mask, starts.extent)
    column_mask = writer.conjunction(columns)
    extent = starts.extent or (1,) * len(shape)
    return Rows(
        starts,
        column_mask.code if column_mask else "None",
        row_mask.code if row_mask else "None",
        (*extent[:-1], shape[-1]),
    )


def _mask(writer: Writer, operation: Operation, position: int) -> Operand:
    """The operand that says which lanes are active; all are where it is left out."""
    given = operation.operands[position : position + 1]
    return writer.operand(given[0]) if given else _TRUE


def load(writer: Writer, operation: Operation) -> None:
    """`tt.load`: lanes masked off give `other`, or zero."""
    result = operation.result
    pointer = writer.pointer(operation.operands[0])
    access = _access(writer, pointer, result.type.element)
    mask = _mask(writer, operation, 1)
    other = _other(writer, operation)
    rows = _rows(writer, pointer, mask) if other.extent == () else None
    if rows is not None:
        code = f"{access}.load_rows({rows.starts.code}, {rows.columns}, {rows.rows}, {other.code}, {rows.shape})"
        writer.define(result, code, rows.shape, Level.PROGRAM)
        return
    offsets = writer.offsets(pointer)
    if mask.literal is True:
        method = "load" if offsets.extent else "load_one"
        writer.define(result, f"{access}.{method}({offsets.code})", offsets.extent, Level.PROGRAM)
        return
    extent = broadcast_extents([offsets.extent, mask.extent, other.extent])
    if not extent:
        code = f"{access}.load_one({offsets.code}) if {mask.code} else {other.code}"
    else:
        code = f"{access}.load_masked({offsets.code}, {mask.code}, {other.code}, {extent})"
    writer.define(result, code, extent, Level.PROGRAM)


def _other(writer: Writer, operation: Operation) -> Operand:
    if len(operation.operands) > 2:
        return writer.operand(operation.operands[2])
    element = operation.result.type.element
    dtype = np.dtype(COMPUTED_AS[element]).name
    return writer.compute(f"np.{dtype}(0)", Type(element), (), Level.KERNEL)


def store(writer: Writer, operation: Operation) -> None:
    """`tt.store`."""
    value = writer.operand(operation.operands[1])
    pointer = writer.pointer(operation.operands[0])
    access = _access(writer, pointer, value.type.element)
    mask = _mask(writer, operation, 2)
    writer.stored.add(pointer.argument)
    rows = _rows(writer, pointer, mask)
    if rows is not None and broadcast_extents([rows.shape, value.extent]) == rows.shape:
        arguments = f"{rows.starts.code}, {rows.columns}, {rows.rows}, {value.code}, {rows.shape}"
        writer.statement(f"{access}.store_rows({arguments})")
        return
    offsets = writer.offsets(pointer)
    extent = broadcast_extents([offsets.extent, value.extent, mask.extent])
    if not extent:
        guard = "" if mask.literal is True else f"if {mask.code}: "
        writer.statement(f"{guard}{access}.store_one({offsets.code}, {value.code})")
    elif mask.literal is True:
        writer.statement(f"{access}.store({offsets.code}, {value.code})")
    else:
        writer.statement(f"{access}.store_masked({offsets.code}, {value.code}, {mask.code})")


def atomic_update(writer: Writer, operation: Operation) -> None:
    """`tt.atomic_rmw`: gives the old elements; lanes that share an address take turns."""
    kind = next(iter(operation.keywords), "")
    if kind not in ATOMIC_UPDATES:
        raise writer.unsupported("tt.atomic_rmw", kind)
    value = writer.operand(operation.operands[1])
    access, offsets = _place(writer, operation.operands[0], value.type.element)
    mask = _mask(writer, operation, 2)
    writer.stored.add(writer.pointer(operation.operands[0]).argument)
    arguments = f"{ATOMIC_UPDATES[kind]}, {offsets.code}, {value.code}, {mask.code}, {value.type.shape}"
    _define_impure(writer, operation, f"{access}.atomic({arguments})")


def compare_and_swap(writer: Writer, operation: Operation) -> None:
    """`tt.atomic_cas`."""
    expected, value = (writer.operand(operand) for operand in operation.operands[1:])
    access, offsets = _place(writer, operation.operands[0], value.type.element)
    writer.stored.add(writer.pointer(operation.operands[0]).argument)
    arguments = f"{offsets.code}, {expected.code}, {value.code}, {value.type.shape}"
    _define_impure(writer, operation, f"{access}.compare_and_swap({arguments})")


def _define_impure(writer: Writer, operation: Operation, call: str) -> None:
    """The call has an effect: it stays even if nobody reads its result."""
    name = writer.name()
    writer.statement(f"{name} = {call}")
    result = operation.result
    writer.bind(result, Operand(name, result.type, result.type.shape, Level.PROGRAM))


ENTRIES: Final[dict[str, Emitter]] = {
    "tt.addptr": add_pointer,
    "tt.load": load,
    "tt.store": store,
    "tt.atomic_rmw": atomic_update,
    "tt.atomic_cas": compare_and_swap,
}
