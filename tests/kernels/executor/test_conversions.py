# SPDX-License-Identifier: MIT OR Apache-2.0
"""Conversions, constants and selection, for every pair of types that has them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metrale_caps.kernels.executor.codegen import generate
from metrale_caps.kernels.executor.memory import Argument
from metrale_caps.kernels.executor.numerics import STORED_AS, UNPACK, round_to
from tests.kernels.executor.single_operation import (
    FLOATS,
    LANES,
    TORCH,
    WIDTHS,
    apply,
    conversion,
    draw_integers,
    examples,
    float_bits,
    integer_bits,
    tensor_of,
    wrapped,
)
from tests.kernels.executor.values import listed


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
    numbers = draw_integers(data, source)
    found = apply(
        conversion(name, f"i{source}", f"i{target}"), (f"i{source}",), f"i{target}", [integer_bits(numbers, source)]
    )
    values = [number % 2**source for number in numbers] if name == "arith.extui" else numbers
    if name == "arith.index_cast" and not widens:
        values = numbers
    assert found.tolist() == [wrapped(number, target) for number in values]


@pytest.mark.parametrize("element", TORCH)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["arith.sitofp", "arith.uitofp"])
@examples
@given(data=st.data())
def test_integer_to_float(name: str, width: int, element: str, data: st.DataObject) -> None:
    """Rounded to nearest even; a signed bit is 0 or -1."""
    limit = None if width < 32 else 2**15
    numbers = draw_integers(data, width, None if limit is None else -limit, limit)
    if name == "arith.uitofp" and width > 1:
        numbers = [abs(number) % 2 ** (width - 1) for number in numbers]
    values = [number % 2**width for number in numbers] if name == "arith.uitofp" else numbers
    found = apply(conversion(name, f"i{width}", element), (f"i{width}",), element, [integer_bits(numbers, width)])
    expected = torch.tensor(values, dtype=torch.float64).to(TORCH[element])
    torch.testing.assert_close(tensor_of(found, element), expected, rtol=0, atol=0)


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
    bits = float_bits(numbers, element)
    values = listed(tensor_of(bits, element).double())
    kept = [number if low <= number <= high else 0.0 for number in values]
    found = apply(conversion(name, element, f"i{width}"), (element,), f"i{width}", [float_bits(kept, element)])
    assert found.tolist() == [wrapped(int(number), width) for number in kept]


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
    bits = float_bits(numbers, source)
    found = tensor_of(apply(conversion(name, source, target), (source,), target, [bits]), target)
    torch.testing.assert_close(found, tensor_of(bits, source).to(TORCH[target]), rtol=0, atol=0, equal_nan=True)


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
    widened = apply(conversion("tt.fp_to_fp", element, "f32"), (element,), "f32", [bits])
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
    found = apply(conversion(name, source, target), (source,), target, [bits])
    assert found.tobytes() == bits.tobytes()


@examples
@given(chosen=st.tuples(*[st.booleans()] * LANES), numbers=st.tuples(FLOATS, FLOATS))
def test_select(chosen: tuple[bool, ...], numbers: tuple[list[float], list[float]]) -> None:
    """Lane by lane."""
    first, second = (float_bits(each, "f32") for each in numbers)
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


def test_only_element_of_a_tensor() -> None:
    """`tt.unsplat` makes a scalar of a tensor of one element; `tt.splat` the reverse."""
    text = """
    module {
      tt.func public @only(%arg0: !tt.ptr<f32>, %arg1: !tt.ptr<f32>) attributes {noinline = false} {
        %0 = tt.splat %arg0 : !tt.ptr<f32> -> tensor<1x!tt.ptr<f32>>
        %1 = tt.make_range {end = 1 : i32, start = 0 : i32} : tensor<1xi32>
        %2 = tt.addptr %0, %1 : tensor<1x!tt.ptr<f32>>, tensor<1xi32>
        %3 = tt.load %2 : tensor<1x!tt.ptr<f32>>
        %4 = tt.unsplat %3 : tensor<1xf32>
        %5 = arith.addf %4, %4 : f32
        tt.store %arg1, %5 : !tt.ptr<f32>
        tt.return
      }
    }
    """
    arrays = [np.array([2.5], np.float32), np.zeros(1, np.float32)]
    memories = [Argument("x", array, (1,), (1,), dense=True, writable=True) for array in arrays]
    generate(text, "only").launch(*memories, 1, 1, 1)(0, 0, 0)
    assert arrays[1][0] == 5
