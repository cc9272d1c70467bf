# SPDX-License-Identifier: MIT OR Apache-2.0
"""Entries that make, reshape, rearrange and multiply tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from metrale_caps.kernels.executor.ir import Type
from metrale_caps.kernels.executor.operands import Bound, Level, Operand, Pointer

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps.kernels.executor.ir import Operation
    from metrale_caps.kernels.executor.writer import Writer

    Emitter = Callable[[Writer, Operation], None]
    Reshaping = Callable[[Operand], Operand]


def make_range(writer: Writer, operation: Operation) -> None:
    """`tt.make_range`."""
    start, end = operation.attributes["start"], operation.attributes["end"]
    result = operation.result
    code = f"np.arange({start}, {end}, dtype=np.int32)"
    numbers = writer.define(result, code, result.type.shape, Level.KERNEL)
    writer.bind(result, replace(numbers, ramp=start == 0))


def _rearrange(writer: Writer, operation: Operation, reshaping: Reshaping) -> None:
    """Bind the result to a rearrangement of a tensor; of addresses, to that of each part of their offsets."""
    bound: Bound = writer.bound(operation.operands[0])
    new_type = operation.result.type
    if isinstance(bound, Operand):
        writer.bind(operation.result, replace(reshaping(bound), type=new_type))
        return
    shape = bound.type.shape
    parts = tuple(reshaping(part.as_type(Type("i64", shape))) for part in bound.parts)
    writer.bind(operation.result, Pointer(bound.argument, new_type, parts))


def alias(writer: Writer, operation: Operation) -> None:
    """`tt.splat` and `tt.broadcast`: the array at hand stays, for numpy broadcasts where it meets another."""
    _rearrange(writer, operation, lambda operand: operand)


def unsplat(writer: Writer, operation: Operation) -> None:
    """`tt.unsplat`: the only element of a tensor."""

    def only(operand: Operand) -> Operand:
        if operand.extent == ():
            return operand
        return writer.compute(f"{operand.code}.reshape(())[()]", operand.type, (), operand.level)

    _rearrange(writer, operation, only)


def expand_dims(writer: Writer, operation: Operation) -> None:
    """`tt.expand_dims`."""
    axis = int(str(operation.attributes["axis"]))
    shape = operation.result.type.shape

    def expanded(operand: Operand) -> Operand:
        if not operand.extent:
            return operand
        extent = (*operand.extent[:axis], 1, *operand.extent[axis:])
        index = ", ".join("None" if dimension == axis else ":" for dimension in range(len(shape)))
        wide = writer.compute(f"{operand.code}[{index}]", operand.type, extent, operand.level)
        if operand.ramp and axis < len(operand.extent):
            return replace(wide, ramp=True)
        for known, note in ((writer.summands, writer.note_sum), (writer.factors, writer.note_product)):
            if len(known(operand)) > 1:
                note(wide, [expanded(one) for one in known(operand)])
        return wide

    _rearrange(writer, operation, expanded)


def transpose(writer: Writer, operation: Operation) -> None:
    """`tt.trans`."""
    order = operation.attributes["order"]
    axes = tuple(int(axis) for axis in order) if isinstance(order, tuple) else ()

    def transposed(operand: Operand) -> Operand:
        extent = operand.extent
        if not extent:
            return operand
        turned = tuple(extent[axis] for axis in axes)
        return writer.compute(f"{operand.code}.transpose({axes})", operand.type, turned, operand.level)

    _rearrange(writer, operation, transposed)


def reshape(writer: Writer, operation: Operation) -> None:
    """`tt.reshape`."""
    shape = operation.result.type.shape

    def reshaped(operand: Operand) -> Operand:
        if operand.extent == ():
            return operand
        full = writer.full(operand)
        return writer.compute(f"{full.code}.reshape({shape})", operand.type, shape, operand.level)

    _rearrange(writer, operation, reshaped)


def _full(writer: Writer, operation: Operation) -> tuple[list[str], Level]:
    operands = [writer.full(writer.operand(value)) for value in operation.operands]
    return [operand.code for operand in operands], max(operand.level for operand in operands)


def join(writer: Writer, operation: Operation) -> None:
    """`tt.join`: stacks two tensors along a new last axis."""
    codes, level = _full(writer, operation)
    writer.define(operation.result, f"np.stack(({', '.join(codes)}), -1)", operation.result.type.shape, level)


def split(writer: Writer, operation: Operation) -> None:
    """`tt.split`: the two halves along the last axis, of extent 2."""
    codes, level = _full(writer, operation)
    for half, result in enumerate(operation.results):
        writer.define(result, f"{codes[0]}[..., {half}]", result.type.shape, level)


def concatenate(writer: Writer, operation: Operation) -> None:
    """`tt.cat`: the operation allows any order of the elements; the first tensor comes first here."""
    codes, level = _full(writer, operation)
    writer.define(operation.result, f"np.concatenate(({', '.join(codes)}))", operation.result.type.shape, level)


def gather(writer: Writer, operation: Operation) -> None:
    """`tt.gather`: along one axis, by an index for each element of the result."""
    codes, level = _full(writer, operation)
    axis = operation.attributes["axis"]
    code = f"gather({codes[0]}, {codes[1]}, {axis}, {writer.kernel!r})"
    writer.define(operation.result, code, operation.result.type.shape, level)


def histogram(writer: Writer, operation: Operation) -> None:
    """`tt.histogram`: how often each of 0, 1, ... occurs; other numbers, and lanes masked off, are not counted."""
    codes, level = _full(writer, operation)
    result = operation.result.type
    mask = codes[1] if len(codes) > 1 else "None"
    code = f"histogram({codes[0]}, {mask}, {result.shape[0]}).astype(np.int{result.element[1:]})"
    writer.define(operation.result, code, result.shape, level)


def dot(writer: Writer, operation: Operation) -> None:
    """`tt.dot`: matrix product plus a matrix; float16, bfloat16 and 8-bit floats multiply and add up in float32."""
    left, right, added = (writer.operand(value) for value in operation.operands)
    result = operation.result.type
    codes = [writer.full(operand).code for operand in (left, right)]
    level = max(left.level, right.level, added.level)
    if result.element.startswith("i"):
        product = f"integer_matmul({codes[0]}, {codes[1]})"
    elif result.element == "f64":
        product = f"np.matmul({codes[0]}, {codes[1]})"
    else:
        product = f"np.matmul({', '.join(_single(code, left.type) for code in codes)})"
    if added.literal is None or added.literal != 0:
        product = f"{product} + {added.code}"
    if result.element == "f16":
        product = f"({product}).astype(np.float16)"
    elif result.element == "bf16":
        product = f"round_to({product}, 'bf16')"
    writer.define(operation.result, product, result.shape, level)


def _single(code: str, operand_type: Type) -> str:
    return f"{code}.astype(np.float32)" if operand_type.element == "f16" else code


ENTRIES: Final[dict[str, Emitter]] = {
    "tt.make_range": make_range,
    "tt.splat": alias,
    "tt.broadcast": alias,
    "tt.unsplat": unsplat,
    "tt.expand_dims": expand_dims,
    "tt.trans": transpose,
    "tt.reshape": reshape,
    "tt.join": join,
    "tt.split": split,
    "tt.cat": concatenate,
    "tt.gather": gather,
    "tt.histogram": histogram,
    "tt.dot": dot,
}
