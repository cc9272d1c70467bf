# SPDX-License-Identifier: MIT OR Apache-2.0
"""One operation of the intermediate representation on sixteen lanes, and random values for it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

from metrale_caps.kernels.executor.codegen import generate
from metrale_caps.kernels.executor.memory import Argument
from metrale_caps.kernels.executor.numerics import PACK, STORED_AS, round_to
from tests.kernels.executor.values import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metrale_caps.kernels.executor.codegen import GeneratedKernel

LANES = 16
examples = settings(max_examples=12, deadline=None)
TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}

TEXT = """
module {{
  tt.func public @elementwise({parameters}) attributes {{noinline = false}} {{
    %zero = arith.constant dense<0> : tensor<16xi8>
    %lane = tt.make_range {{end = 16 : i32, start = 0 : i32}} : tensor<16xi32>
{loads}
    %result = {line}
{stores}
    tt.return
  }}
}}
"""


def _load(position: int, element: str) -> str:
    memory = "i8" if element == "i1" else element
    pointers = f"tensor<16x!tt.ptr<{memory}>>"
    lines = [
        f"%base{position} = tt.splat %arg{position} : !tt.ptr<{memory}> -> {pointers}",
        f"%at{position} = tt.addptr %base{position}, %lane : {pointers}, tensor<16xi32>",
        f"%{'byte' if element == 'i1' else 'in'}{position} = tt.load %at{position} : {pointers}",
    ]
    if element == "i1":
        lines.append(f"%in{position} = arith.cmpi ne, %byte{position}, %zero : tensor<16xi8>")
    return "\n".join(lines)


def _store(position: int, element: str) -> str:
    memory = "i8" if element == "i1" else element
    pointers = f"tensor<16x!tt.ptr<{memory}>>"
    value = "%widened" if element == "i1" else "%result"
    lines = ["%widened = arith.extui %result : tensor<16xi1> to tensor<16xi8>"] if element == "i1" else []
    lines += [
        f"%base{position} = tt.splat %arg{position} : !tt.ptr<{memory}> -> {pointers}",
        f"%at{position} = tt.addptr %base{position}, %lane : {pointers}, tensor<16xi32>",
        f"tt.store %at{position}, {value} : {pointers}",
    ]
    return "\n".join(lines)


@cache
def kernel_of(line: str, inputs: tuple[str, ...], output: str) -> GeneratedKernel:
    """The kernel that loads 16 lanes of each input, does one operation, and stores the result."""
    memories = ["i8" if element == "i1" else element for element in (*inputs, output)]
    text = TEXT.format(
        parameters=", ".join(f"%arg{position}: !tt.ptr<{element}>" for position, element in enumerate(memories)),
        loads="\n".join(_load(position, element) for position, element in enumerate(inputs)),
        line=line,
        stores=_store(len(inputs), output),
    )
    return generate(text, "elementwise")


def apply(line: str, inputs: tuple[str, ...], output: str, values: Sequence[np.ndarray]) -> np.ndarray:
    """Run one operation on arrays of memory bits; returns memory bits."""
    kernel = kernel_of(line, inputs, output)
    stored = STORED_AS[output] if output != "i1" else np.int8
    arrays = [*values, np.zeros(LANES, stored)]
    memories = [
        Argument(f"arg{position}", array, (LANES,), (1,), dense=True, writable=position == len(inputs))
        for position, array in enumerate(arrays)
    ]
    with np.errstate(all="ignore"):
        kernel.launch(*memories, 1, 1, 1)(0, 0, 0)
    return arrays[-1]


def wrapped(number: int, width: int) -> int:
    number %= 2**width
    return number - 2**width if width > 1 and number >= 2 ** (width - 1) else number


WIDTHS = [1, 8, 16, 32, 64]


def draw_integers(data: st.DataObject, width: int, low: int | None = None, high: int | None = None) -> list[int]:
    lowest, highest = (-1, 0) if width == 1 else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
    lowest, highest = lowest if low is None else low, highest if high is None else high
    raw = np.frombuffer(data.draw(st.binary(min_size=8 * LANES, max_size=8 * LANES)), np.int64).tolist()
    return [lowest + (number - lowest) % (highest - lowest + 1) for number in raw]


def integer_bits(numbers: list[int], width: int) -> np.ndarray:
    return np.array([number & 1 for number in numbers] if width == 1 else numbers, f"int{max(width, 8)}")


ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
FLOATS = st.binary(min_size=2 * LANES, max_size=2 * LANES).map(
    lambda raw: [float(number) for number in np.frombuffer(raw, np.float16)]
)
"""Any float16 patterns: zeros, denormals, infinities and NaN are as likely as their patterns."""


def float_bits(numbers: list[float], element: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        rounded = round_to(np.array(numbers, np.float32), element)
        return PACK[element](rounded) if element in PACK else rounded


def tensor_of(bits: np.ndarray, element: str) -> torch.Tensor:
    if element == "bf16":
        return shared(bits.view(np.int16)).view(torch.bfloat16)
    return shared(bits)


def conversion(name: str, source: str, target: str) -> str:
    word = "->" if name.startswith("tt.") else "to"
    return f"{name} %in0 : tensor<16x{source}> {word} tensor<16x{target}>"
