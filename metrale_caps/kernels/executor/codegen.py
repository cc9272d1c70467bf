# SPDX-License-Identifier: MIT OR Apache-2.0
"""From a kernel's intermediate representation to a Python function, compiled once.

The generated source has three levels. What depends on constants alone is computed when it is compiled; `launch` is
called once for each launch with the arguments and the grid, computes what does not depend on the program, and
returns `program`, which is called for each program of the grid.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metrale_caps.kernels.executor import arrays, numerics
from metrale_caps.kernels.executor.ir import Type
from metrale_caps.kernels.executor.operands import Bound, Level, Operand, Pointer
from metrale_caps.kernels.executor.operations import OPERATIONS
from metrale_caps.kernels.executor.operations.control import write_function
from metrale_caps.kernels.executor.parser import parse
from metrale_caps.kernels.executor.writer import INDEX, Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps.kernels.executor.ir import Function
    from metrale_caps.kernels.executor.writer import Line

    ProgramFunction = Callable[[int, int, int], None]

_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_ZERO = Operand("np.int64(0)", INDEX, (), Level.KERNEL, literal=0)
_FUNCTIONS = (
    arrays.accumulate,
    arrays.check_assertion,
    arrays.error_function,
    arrays.exchange,
    arrays.fold,
    arrays.gather,
    arrays.histogram,
    arrays.integer_matmul,
    arrays.maximum_unsigned,
    arrays.minimum_unsigned,
    arrays.multiply_add,
    arrays.prefixes,
    arrays.print_values,
    arrays.reciprocal_sqrt,
    numerics.divide_truncating,
    numerics.multiply_high_unsigned,
    numerics.reinterpret,
    numerics.round_to,
    numerics.truncate_to,
    numerics.unsigned,
)
_GLOBALS: dict[str, Any] = {"np": np, **{function.__name__: function for function in _FUNCTIONS}}


@dataclass(frozen=True, slots=True)
class GeneratedKernel:
    """A kernel as a Python function.

    Attributes:
        source: the generated source.
        launch: takes the arguments' memory or numbers and the grid's three extents; returns the program function.
        stored: positions of the arguments that the kernel has stores or atomic updates for.
        operations: names of the operations that the generator used.
    """

    source: str
    launch: Callable[..., ProgramFunction]
    stored: frozenset[int]
    operations: frozenset[str]


def generate(text: str, name: str) -> GeneratedKernel:
    """Generate the Python function of a kernel from its textual intermediate representation.

    Raises:
        UnsupportedOperationError: an operation, or a use of one, that cannot be executed.
    """
    module = parse(text)
    function = module.kernel
    writer = Writer(name, module, OPERATIONS)
    names = [f"a{position}" for position in range(len(function.arguments))]
    with writer.indented():
        write_function(writer, function, _arguments(function, names))
    lines = _assembled(writer, names)
    source = "\n".join(lines) + "\n"
    namespace = dict(_GLOBALS)
    with np.errstate(all="ignore"):
        exec(compile(source, f"<generated from the IR of {name}>", "exec"), namespace)  # noqa: S102
    stored = frozenset(names.index(argument) for argument in writer.stored)
    return GeneratedKernel(source, namespace["launch"], stored, frozenset(writer.emitted))


def _arguments(function: Function, names: list[str]) -> list[Bound]:
    arguments: list[Bound] = []
    for name, value in zip(names, function.arguments, strict=True):
        if value.type.pointer:
            arguments.append(Pointer(name, value.type, (_ZERO,)))
        else:
            arguments.append(Operand(name, Type(value.type.element), (), Level.LAUNCH))
    return arguments


def _assembled(writer: Writer, names: list[str]) -> list[str]:
    """All lines that matter, in order."""
    nested = {Level.KERNEL: 0, Level.LAUNCH: 1, Level.PROGRAM: 1}
    lines = _needed_lines(writer)
    text = {level: ["    " * (line.depth + nested[level]) + line.text for line in lines[level]] for level in Level}
    parameters = ", ".join([*names, "grid_x", "grid_y", "grid_z"])
    return [
        *text[Level.KERNEL],
        f"def launch({parameters}):",
        *text[Level.LAUNCH],
        "    def program(program_x, program_y, program_z):",
        *text[Level.PROGRAM],
        "    return program",
    ]


def _needed_lines(writer: Writer) -> dict[Level, list[Line]]:
    """Leave out lines that only give a name to something which nothing reads."""
    lines = dict(writer.lines)
    removed = True
    while removed:
        uses: Counter[str] = Counter()
        for level in Level:
            for line in lines[level]:
                uses.update(_NAME.findall(line.text))
        kept = {
            level: [line for line in lines[level] if line.defines is None or uses[line.defines] > 1] for level in Level
        }
        removed = any(len(kept[level]) != len(lines[level]) for level in Level)
        lines = kept
    return lines
