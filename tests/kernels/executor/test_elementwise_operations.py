# SPDX-License-Identifier: MIT OR Apache-2.0
"""Each elementwise operation, on each type it has, against exact integer arithmetic or torch.

Each case is one operation in a small text of the intermediate representation, so that the types and the operations
which Triton's front end rarely emits are tried too.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.kernels.executor.codegen import generate
from metrale_caps.kernels.executor.memory import Argument
from metrale_caps.kernels.executor.numerics import PACK, STORED_AS, UNPACK, round_to

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


def _wrapped(number: int, width: int) -> int:
    number %= 2**width
    return number - 2**width if width > 1 and number >= 2 ** (width - 1) else number


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGERS: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.maxsi": max,
    "arith.minsi": min,
}
DIVISIONS: dict[str, Callable[[int, int], int]] = {
    "arith.divsi": _truncated,
    "arith.remsi": lambda a, b: a - b * _truncated(a, b),
    "arith.divui": lambda a, b: a // b,
    "arith.remui": lambda a, b: a % b,
}
UNSIGNED: dict[str, Callable[[int, int], int]] = {"arith.maxui": max, "arith.minui": min}
SHIFTS: dict[str, Callable[[int, int], int]] = {
    "arith.shli": lambda a, b: a << b,
    "arith.shrsi": lambda a, b: a >> b,
    "arith.shrui": lambda a, b: a >> b,
}
WIDTHS = [1, 8, 16, 32, 64]


def _draw_integers(data: st.DataObject, width: int, low: int | None = None, high: int | None = None) -> list[int]:
    lowest, highest = (-1, 0) if width == 1 else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
    lowest, highest = lowest if low is None else low, highest if high is None else high
    raw = np.frombuffer(data.draw(st.binary(min_size=8 * LANES, max_size=8 * LANES)), np.int64).tolist()
    return [lowest + (number - lowest) % (highest - lowest + 1) for number in raw]


def _bits(numbers: list[int], width: int) -> np.ndarray:
    return np.array([number & 1 for number in numbers] if width == 1 else numbers, f"int{max(width, 8)}")


def _check_integers(name: str, width: int, first: list[int], second: list[int], expected: list[int]) -> None:
    kind = f"i{width}"
    line = f"{name} %in0, %in1 : tensor<16x{kind}>"
    found = apply(line, (kind, kind), kind, [_bits(first, width), _bits(second, width)])
    assert found.tolist() == [_wrapped(number, width) for number in expected]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*INTEGERS, *UNSIGNED])
@examples
@given(data=st.data())
def test_integer_operation_wraps_at_its_width(name: str, width: int, data: st.DataObject) -> None:
    """The result is the exact one modulo two to the width; a signed bit is 0 or -1."""
    first, second = _draw_integers(data, width), _draw_integers(data, width)
    if name in UNSIGNED:
        modulus = 2**width
        expected = [UNSIGNED[name](a % modulus, b % modulus) for a, b in zip(first, second, strict=True)]
    else:
        expected = [INTEGERS[name](a, b) for a, b in zip(first, second, strict=True)]
    _check_integers(name, width, first, second, expected)


@pytest.mark.parametrize("width", WIDTHS[1:])
@pytest.mark.parametrize("name", DIVISIONS)
@examples
@given(data=st.data())
def test_integer_division_is_that_of_c(name: str, width: int, data: st.DataObject) -> None:
    """Quotients round towards zero, and remainders have the dividend's sign."""
    first, second = _draw_integers(data, width), _draw_integers(data, width)
    second = [number or 1 for number in second]
    second = [1 if number == -1 else number for number in second]
    if name.endswith("ui"):
        pairs = [(a % 2**width, b % 2**width) for a, b in zip(first, second, strict=True)]
    else:
        pairs = list(zip(first, second, strict=True))
    _check_integers(name, width, first, second, [DIVISIONS[name](a, b) for a, b in pairs])


@pytest.mark.parametrize("width", WIDTHS[1:])
@pytest.mark.parametrize("name", SHIFTS)
@examples
@given(data=st.data())
def test_shift_keeps_the_width(name: str, width: int, data: st.DataObject) -> None:
    """Left shifts drop high bits; right shifts fill with the sign, or with zero where unsigned."""
    first, second = _draw_integers(data, width), _draw_integers(data, width, 0, width - 1)
    values = [number % 2**width for number in first] if name == "arith.shrui" else first
    _check_integers(name, width, first, second, [SHIFTS[name](a, b) for a, b in zip(values, second, strict=True)])


ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("predicate", ["eq", "ne", *(sign + order for sign in "su" for order in list(ORDER)[2:])])
@examples
@given(data=st.data())
def test_integer_comparison(predicate: str, width: int, data: st.DataObject) -> None:
    """Signed and unsigned orders differ as the predicate says; a signed true bit is below a false one."""
    first, second = _draw_integers(data, width), _draw_integers(data, width)
    order = ORDER[predicate if predicate in ORDER else predicate[1:]]
    modulus = 2**width if predicate[0] == "u" else None
    pairs = [(a % modulus, b % modulus) if modulus else (a, b) for a, b in zip(first, second, strict=True)]
    line = f"arith.cmpi {predicate}, %in0, %in1 : tensor<16xi{width}>"
    found = apply(line, (f"i{width}",) * 2, "i1", [_bits(first, width), _bits(second, width)])
    assert found.tolist() == [order(a, b) for a, b in pairs]


def _unordered(a: float, b: float) -> bool:
    return math.isnan(a) or math.isnan(b)


def _float_order(predicate: str, a: float, b: float) -> bool:
    """A comparison with a NaN is false if the predicate is ordered, and true otherwise."""
    if predicate in {"ord", "uno"}:
        return _unordered(a, b) == (predicate == "uno")
    return predicate[0] == "u" if _unordered(a, b) else ORDER[predicate[1:]](a, b)


FLOAT_ORDER = ["ord", "uno", *(kind + order for kind in "ou" for order in ORDER)]
FLOATS = st.binary(min_size=2 * LANES, max_size=2 * LANES).map(
    lambda raw: [float(number) for number in np.frombuffer(raw, np.float16)]
)
"""Any float16 patterns: zeros, denormals, infinities and NaN are as likely as their patterns."""


def _float_bits(numbers: list[float], element: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        rounded = round_to(np.array(numbers, np.float32), element)
        return PACK[element](rounded) if element in PACK else rounded


def _tensor(bits: np.ndarray, element: str) -> torch.Tensor:
    if element == "bf16":
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(bits)


@pytest.mark.parametrize("predicate", FLOAT_ORDER)
@pytest.mark.parametrize("element", TORCH)
@examples
@given(first=FLOATS, second=FLOATS)
def test_float_comparison(predicate: str, element: str, first: list[float], second: list[float]) -> None:
    """Ordered predicates are false with a NaN, unordered ones true."""
    bits = [_float_bits(first, element), _float_bits(second, element)]
    pairs = zip(*(_tensor(each, element).double().tolist() for each in bits), strict=True)
    line = f"arith.cmpf {predicate}, %in0, %in1 : tensor<16x{element}>"
    found = apply(line, (element, element), "i1", bits)
    assert found.tolist() == [_float_order(predicate, a, b) for a, b in pairs]


def _square_root(numbers: torch.Tensor) -> torch.Tensor:
    """Correctly rounded, which torch's is not in float64."""
    roots = [math.sqrt(number) if number >= 0 else math.nan for number in numbers.tolist()]
    return torch.tensor(roots, dtype=torch.float64)


BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "arith.addf": torch.add,
    "arith.subf": torch.sub,
    "arith.mulf": torch.mul,
    "arith.divf": torch.div,
    "arith.remf": torch.fmod,
    "arith.maxnumf": torch.fmax,
    "arith.minnumf": torch.fmin,
    "arith.maximumf": torch.maximum,
    "arith.minimumf": torch.minimum,
    "tt.precise_divf": torch.div,
    "tt.approx_divf": torch.div,
}
UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "arith.negf": torch.neg,
    "math.absf": torch.abs,
    "math.floor": torch.floor,
    "math.ceil": torch.ceil,
    "math.sqrt": _square_root,
    "tt.precise_sqrt": _square_root,
    "math.exp": torch.exp,
    "math.exp2": torch.exp2,
    "math.log": torch.log,
    "math.log2": torch.log2,
    "math.rsqrt": torch.rsqrt,
    "math.sin": torch.sin,
    "math.cos": torch.cos,
    "math.tanh": torch.tanh,
    "math.erf": torch.erf,
}
EXACT = frozenset({*BINARY, "arith.negf", "math.absf", "math.floor", "math.ceil", "math.sqrt", "tt.precise_sqrt"})


def _check_floats(line: str, name: str, element: str, bits: list[np.ndarray], expected: torch.Tensor) -> None:
    found = _tensor(apply(line, (element,) * len(bits), element, bits), element)
    tolerance = 0.0 if name in EXACT else 4 * torch.finfo(TORCH[element]).eps
    smallest = 0.0 if name in EXACT else torch.finfo(TORCH[element]).tiny
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=smallest, equal_nan=True)


@pytest.mark.parametrize("element", TORCH)
@pytest.mark.parametrize("name", BINARY)
@examples
@given(first=FLOATS, second=FLOATS)
def test_float_arithmetic_rounds_once(name: str, element: str, first: list[float], second: list[float]) -> None:
    """Equal to torch's arithmetic in the same type, bfloat16 included."""
    bits = [_float_bits(first, element), _float_bits(second, element)]
    expected = BINARY[name](*(_tensor(each, element) for each in bits))
    _check_floats(f"{name} %in0, %in1 : tensor<16x{element}>", name, element, bits, expected)


@pytest.mark.parametrize("element", TORCH)
@pytest.mark.parametrize("name", UNARY)
@examples
@given(numbers=FLOATS)
def test_float_function(name: str, element: str, numbers: list[float]) -> None:
    """Exact where the operation is; within four units in the last place for transcendental functions."""
    bits = [_float_bits(numbers, element)]
    if name in {"math.sin", "math.cos"}:
        bits = [_float_bits([number if abs(number) < 100 else 1.5 for number in numbers], element)]
    expected = UNARY[name](_tensor(bits[0], element).double()).to(TORCH[element])
    _check_floats(f"{name} %in0 : tensor<16x{element}>", name, element, bits, expected)


@pytest.mark.parametrize("element", ["f16", "bf16", "f32"])
@examples
@given(numbers=st.tuples(FLOATS, FLOATS, FLOATS))
def test_fused_multiply_add_rounds_once(element: str, numbers: tuple[list[float], ...]) -> None:
    """The product is not rounded before the sum."""
    bits = [_float_bits(each, element) for each in numbers]
    first, second, third = (_tensor(each, element).double() for each in bits)
    line = f"math.fma %in0, %in1, %in2 : tensor<16x{element}>"
    found = _tensor(apply(line, (element,) * 3, element, bits), element)
    expected = (first * second + third).float().to(TORCH[element])
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@examples
@given(numbers=st.tuples(FLOATS, FLOATS, FLOATS), propagate=st.sampled_from(["none", "all"]))
def test_clamp(numbers: tuple[list[float], ...], propagate: str) -> None:
    """NaN is dropped for the lower bound, or kept, as the operation says."""
    value, low, high = (_float_bits(each, "f32") for each in numbers)
    low, high = np.nan_to_num(np.fmin(low, high)), np.nan_to_num(np.fmax(low, high))
    line = f"tt.clampf %in0, %in1, %in2, propagateNan = {propagate} : tensor<16xf32>"
    found = apply(line, ("f32",) * 3, "f32", [value, low, high])
    expected = np.minimum(np.maximum(value, low), high)
    if propagate == "none":
        expected = np.where(np.isnan(value), low, expected)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("width", [32, 64])
@examples
@given(data=st.data())
def test_multiply_high_operation(width: int, data: st.DataObject) -> None:
    """`tt.mulhiui` gives the upper half of the unsigned product."""
    first, second = _draw_integers(data, width), _draw_integers(data, width)
    expected = [(a % 2**width) * (b % 2**width) >> width for a, b in zip(first, second, strict=True)]
    _check_integers("tt.mulhiui", width, first, second, expected)


@pytest.mark.parametrize("width", WIDTHS[1:])
@examples
@given(data=st.data())
def test_absolute_integer(width: int, data: st.DataObject) -> None:
    """`math.absi`; the most negative number stays as it is."""
    numbers = _draw_integers(data, width)
    found = apply(f"math.absi %in0 : tensor<16xi{width}>", (f"i{width}",), f"i{width}", [_bits(numbers, width)])
    assert found.tolist() == [_wrapped(abs(number), width) for number in numbers]


def _conversion(name: str, source: str, target: str) -> str:
    word = "->" if name.startswith("tt.") else "to"
    return f"{name} %in0 : tensor<16x{source}> {word} tensor<16x{target}>"


@pytest.mark.parametrize("name", ["arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast"])
@pytest.mark.parametrize("source", WIDTHS)
@pytest.mark.parametrize("target", WIDTHS)
@examples
@given(data=st.data())
def test_integer_conversion(name: str, source: int, target: int, data: st.DataObject) -> None:
    """Widening repeats the sign or fills with zero; narrowing keeps the low bits."""
    widens = source < target
    if widens == (name == "arith.trunci") or source == target:
        return
    numbers = _draw_integers(data, source)
    found = apply(
        _conversion(name, f"i{source}", f"i{target}"), (f"i{source}",), f"i{target}", [_bits(numbers, source)]
    )
    values = [number % 2**source for number in numbers] if name == "arith.extui" else numbers
    if name == "arith.index_cast" and not widens:
        values = numbers
    assert found.tolist() == [_wrapped(number, target) for number in values]


@pytest.mark.parametrize("element", TORCH)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["arith.sitofp", "arith.uitofp"])
@examples
@given(data=st.data())
def test_integer_to_float(name: str, width: int, element: str, data: st.DataObject) -> None:
    """Rounded to nearest even; a signed bit is 0 or -1."""
    limit = None if width < 32 else 2**15
    numbers = _draw_integers(data, width, None if limit is None else -limit, limit)
    if name == "arith.uitofp" and width > 1:
        numbers = [abs(number) % 2 ** (width - 1) for number in numbers]
    values = [number % 2**width for number in numbers] if name == "arith.uitofp" else numbers
    found = apply(_conversion(name, f"i{width}", element), (f"i{width}",), element, [_bits(numbers, width)])
    expected = torch.tensor(values, dtype=torch.float64).to(TORCH[element])
    torch.testing.assert_close(_tensor(found, element), expected, rtol=0, atol=0)


@pytest.mark.parametrize("element", TORCH)
@pytest.mark.parametrize("width", WIDTHS[1:])
@pytest.mark.parametrize("name", ["arith.fptosi", "arith.fptoui"])
@examples
@given(data=st.data())
def test_float_to_integer_truncates(name: str, width: int, element: str, data: st.DataObject) -> None:
    """Towards zero, for what fits."""
    low, high = (0.0, 2.0**width - 1) if name == "arith.fptoui" else (1 - 2.0 ** (width - 1), 2.0 ** (width - 1) - 1)
    low, high = max(low, -30000.0), min(high, 30000.0)
    numbers = [number % (high - low) + low if math.isfinite(number) else 0.0 for number in data.draw(FLOATS)]
    bits = _float_bits(numbers, element)
    values = _tensor(bits, element).double().tolist()
    kept = [number if low <= number <= high else 0.0 for number in values]
    found = apply(_conversion(name, element, f"i{width}"), (element,), f"i{width}", [_float_bits(kept, element)])
    assert found.tolist() == [_wrapped(int(number), width) for number in kept]


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("arith.extf", "f16", "f32"),
        ("arith.extf", "bf16", "f32"),
        ("arith.extf", "f32", "f64"),
        ("arith.truncf", "f32", "bf16"),
        ("arith.truncf", "f32", "f16"),
        ("arith.truncf", "f64", "f32"),
        ("tt.fp_to_fp", "f16", "bf16"),
    ],
)
@examples
@given(numbers=FLOATS)
def test_float_to_float(name: str, source: str, target: str, numbers: list[float]) -> None:
    """Equal to torch's conversion."""
    bits = _float_bits(numbers, source)
    found = _tensor(apply(_conversion(name, source, target), (source,), target, [bits]), target)
    torch.testing.assert_close(found, _tensor(bits, source).to(TORCH[target]), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("element", ["f8E4M3FN", "f8E5M2"])
@examples
@given(numbers=FLOATS)
def test_eight_bit_floats_go_through_memory_and_conversion(element: str, numbers: list[float]) -> None:
    """Narrowing stores the bits of the rounded value, and widening what was stored is exact."""
    line = f"tt.fp_to_fp %in0, rounding = rtne : tensor<16xf32> -> tensor<16x{element}>"
    values = np.array(numbers, np.float32)
    bits = apply(line, ("f32",), element, [values])
    with np.errstate(all="ignore"):
        expected = round_to(values, element)
    np.testing.assert_array_equal(UNPACK[element](bits), expected)
    widened = apply(_conversion("tt.fp_to_fp", element, "f32"), (element,), "f32", [bits])
    np.testing.assert_array_equal(widened, expected)


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("tt.bitcast", "f32", "i32"),
        ("tt.bitcast", "i32", "f32"),
        ("arith.bitcast", "bf16", "i16"),
        ("arith.bitcast", "i16", "bf16"),
        ("tt.bitcast", "i8", "f8E4M3FN"),
        ("tt.bitcast", "f8E5M2", "i8"),
    ],
)
@examples
@given(raw=st.binary(min_size=64, max_size=64))
def test_bitcast_keeps_the_bits(name: str, source: str, target: str, raw: bytes) -> None:
    """Even those of NaN."""
    bits = np.frombuffer(raw, STORED_AS[source])[:LANES].copy()
    found = apply(_conversion(name, source, target), (source,), target, [bits])
    assert found.tobytes() == bits.tobytes()


@examples
@given(chosen=st.tuples(*[st.booleans()] * LANES), numbers=st.tuples(FLOATS, FLOATS))
def test_select(chosen: tuple[bool, ...], numbers: tuple[list[float], list[float]]) -> None:
    """Lane by lane."""
    first, second = (_float_bits(each, "f32") for each in numbers)
    line = "arith.select %in0, %in1, %in2 : tensor<16xi1>, tensor<16xf32>"
    found = apply(line, ("i1", "f32", "f32"), "f32", [np.array(chosen, np.int8), first, second])
    np.testing.assert_array_equal(found, np.where(chosen, first, second))


@pytest.mark.parametrize(
    ("element", "spelling", "expected"),
    [
        ("f32", "dense<0x7F800000>", math.inf),
        ("f32", "dense<1.500000e+00>", 1.5),
        ("bf16", "dense<0xFF80>", -math.inf),
        ("f64", "dense<-2.5>", -2.5),
        ("i32", "dense<-7>", -7),
        ("i64", "dense<9223372036854775807>", 2**63 - 1),
        ("i1", "dense<true>", 1),
        ("f16", "dense<0x7E00>", math.nan),
    ],
)
def test_constant(element: str, spelling: str, expected: float) -> None:
    """Numbers, the bits of floats, and booleans."""
    bits = apply(f"arith.constant {spelling} : tensor<16x{element}>", (), element, [])
    found = UNPACK[element](bits) if element in UNPACK else bits
    np.testing.assert_array_equal(found.astype(np.float64), np.full(LANES, expected, np.float64))


def test_constant_of_several_values() -> None:
    """A list of numbers, and the hexadecimal bytes of them."""
    numbers = list(range(-8, 8))
    listed = apply(f"arith.constant dense<{numbers}> : tensor<16xi32>", (), "i32", [])
    packed = apply(
        f'arith.constant dense<"0x{np.array(numbers, np.int32).tobytes().hex()}"> : tensor<16xi32>', (), "i32", []
    )
    assert listed.tolist() == packed.tolist() == numbers


def test_poison_is_a_value() -> None:
    """`ub.poison` may be anything; it is zero here."""
    assert apply("ub.poison : tensor<16xi32>", (), "i32", []).tolist() == [0] * LANES


@pytest.mark.parametrize(
    ("symbol", "reference"),
    [
        ("__nv_expf", torch.exp),
        ("__nv_tanhf", torch.tanh),
        ("__nv_erff", torch.erf),
        ("__nv_log1pf", torch.log1p),
        ("__nv_rsqrtf", torch.rsqrt),
        ("__nv_fast_expf", torch.exp),
        ("__nv_fabsf", torch.abs),
    ],
)
@examples
@given(numbers=FLOATS)
def test_library_function(symbol: str, reference: Callable[[torch.Tensor], torch.Tensor], numbers: list[float]) -> None:
    """Functions of the device's library by their symbols."""
    kind = "tensor<16xf32>"
    line = f'tt.extern_elementwise %in0 {{libname = "", pure = true, symbol = "{symbol}"}} : ({kind}) -> {kind}'
    bits = _float_bits(numbers, "f32")
    found = torch.from_numpy(apply(line, ("f32",), "f32", [bits]))
    expected = reference(torch.from_numpy(bits).double()).float()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-30, equal_nan=True)
