# SPDX-License-Identifier: MIT OR Apache-2.0
"""Float operations of every type, against torch in the same type."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.executor.single_operation import FLOATS, ORDER, TORCH, apply, examples, float_bits, tensor_of
from tests.kernels.executor.values import listed, shared

if TYPE_CHECKING:
    from collections.abc import Callable


def _unordered(a: float, b: float) -> bool:
    return math.isnan(a) or math.isnan(b)


def _float_order(predicate: str, a: float, b: float) -> bool:
    """A comparison with a NaN is false if the predicate is ordered, and true otherwise."""
    if predicate in {"ord", "uno"}:
        return _unordered(a, b) == (predicate == "uno")
    return predicate[0] == "u" if _unordered(a, b) else ORDER[predicate[1:]](a, b)


FLOAT_ORDER = ["ord", "uno", *(kind + order for kind in "ou" for order in ORDER)]


@pytest.mark.parametrize("predicate", FLOAT_ORDER)
@pytest.mark.parametrize("element", TORCH)
@examples
@given(first=FLOATS, second=FLOATS)
def test_float_comparison(predicate: str, element: str, first: list[float], second: list[float]) -> None:
    """Ordered predicates are false with a NaN, unordered ones true."""
    bits = [float_bits(first, element), float_bits(second, element)]
    pairs = zip(*(listed(tensor_of(each, element).double()) for each in bits), strict=True)
    line = f"arith.cmpf {predicate}, %in0, %in1 : tensor<16x{element}>"
    found = apply(line, (element, element), "i1", bits)
    assert found.tolist() == [_float_order(predicate, a, b) for a, b in pairs]


def _square_root(tensor: torch.Tensor) -> torch.Tensor:
    """Correctly rounded, which torch's is not in float64."""
    roots = [math.sqrt(number) if number >= 0 else math.nan for number in listed(tensor)]
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
    found = tensor_of(apply(line, (element,) * len(bits), element, bits), element)
    tolerance = 0.0 if name in EXACT else 4 * torch.finfo(TORCH[element]).eps
    smallest = 0.0 if name in EXACT else torch.finfo(TORCH[element]).tiny
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=smallest, equal_nan=True)


@pytest.mark.parametrize("element", TORCH)
@pytest.mark.parametrize("name", BINARY)
@examples
@given(first=FLOATS, second=FLOATS)
def test_float_arithmetic_rounds_once(name: str, element: str, first: list[float], second: list[float]) -> None:
    """Equal to torch's arithmetic in the same type, bfloat16 included."""
    bits = [float_bits(first, element), float_bits(second, element)]
    expected = BINARY[name](*(tensor_of(each, element) for each in bits))
    _check_floats(f"{name} %in0, %in1 : tensor<16x{element}>", name, element, bits, expected)


@pytest.mark.parametrize("element", TORCH)
@pytest.mark.parametrize("name", UNARY)
@examples
@given(numbers=FLOATS)
def test_float_function(name: str, element: str, numbers: list[float]) -> None:
    """Exact where the operation is; within four units in the last place for transcendental functions."""
    bits = [float_bits(numbers, element)]
    if name in {"math.sin", "math.cos"}:
        bits = [float_bits([number if abs(number) < 100 else 1.5 for number in numbers], element)]
    expected = UNARY[name](tensor_of(bits[0], element).double()).to(TORCH[element])
    _check_floats(f"{name} %in0 : tensor<16x{element}>", name, element, bits, expected)


@pytest.mark.parametrize("element", ["f16", "bf16", "f32"])
@examples
@given(numbers=st.tuples(FLOATS, FLOATS, FLOATS))
def test_fused_multiply_add_rounds_once(element: str, numbers: tuple[list[float], ...]) -> None:
    """The product is not rounded before the sum."""
    bits = [float_bits(each, element) for each in numbers]
    first, second, third = (tensor_of(each, element).double() for each in bits)
    line = f"math.fma %in0, %in1, %in2 : tensor<16x{element}>"
    found = tensor_of(apply(line, (element,) * 3, element, bits), element)
    expected = (first * second + third).float().to(TORCH[element])
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@examples
@given(numbers=st.tuples(FLOATS, FLOATS, FLOATS), propagate=st.sampled_from(["none", "all"]))
def test_clamp(numbers: tuple[list[float], ...], propagate: str) -> None:
    """NaN is dropped for the lower bound, or kept, as the operation says."""
    value, low, high = (float_bits(each, "f32") for each in numbers)
    low, high = np.nan_to_num(np.fmin(low, high)), np.nan_to_num(np.fmax(low, high))
    line = f"tt.clampf %in0, %in1, %in2, propagateNan = {propagate} : tensor<16xf32>"
    found = apply(line, ("f32",) * 3, "f32", [value, low, high])
    expected = np.minimum(np.maximum(value, low), high)
    if propagate == "none":
        expected = np.where(np.isnan(value), low, expected)
    np.testing.assert_array_equal(found, expected)


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
    bits = float_bits(numbers, "f32")
    found = shared(apply(line, ("f32",), "f32", [bits]))
    expected = reference(shared(bits).double()).float()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-30, equal_nan=True)
