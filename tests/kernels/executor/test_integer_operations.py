# SPDX-License-Identifier: MIT OR Apache-2.0
"""Integer operations of every width, against exact arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.executor.single_operation import ORDER, WIDTHS, apply, draw_integers, examples, integer_bits, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable


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


def _check_integers(name: str, width: int, first: list[int], second: list[int], expected: list[int]) -> None:
    kind = f"i{width}"
    line = f"{name} %in0, %in1 : tensor<16x{kind}>"
    found = apply(line, (kind, kind), kind, [integer_bits(first, width), integer_bits(second, width)])
    assert found.tolist() == [wrapped(number, width) for number in expected]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*INTEGERS, *UNSIGNED])
@examples
@given(data=st.data())
def test_integer_operation_wraps_at_its_width(name: str, width: int, data: st.DataObject) -> None:
    """The result is the exact one modulo two to the width; a signed bit is 0 or -1."""
    first, second = draw_integers(data, width), draw_integers(data, width)
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
    first, second = draw_integers(data, width), draw_integers(data, width)
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
    first, second = draw_integers(data, width), draw_integers(data, width, 0, width - 1)
    values = [number % 2**width for number in first] if name == "arith.shrui" else first
    _check_integers(name, width, first, second, [SHIFTS[name](a, b) for a, b in zip(values, second, strict=True)])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("predicate", ["eq", "ne", *(sign + order for sign in "su" for order in list(ORDER)[2:])])
@examples
@given(data=st.data())
def test_integer_comparison(predicate: str, width: int, data: st.DataObject) -> None:
    """Signed and unsigned orders differ as the predicate says; a signed true bit is below a false one."""
    first, second = draw_integers(data, width), draw_integers(data, width)
    order = ORDER[predicate if predicate in ORDER else predicate[1:]]
    modulus = 2**width if predicate[0] == "u" else None
    pairs = [(a % modulus, b % modulus) if modulus else (a, b) for a, b in zip(first, second, strict=True)]
    line = f"arith.cmpi {predicate}, %in0, %in1 : tensor<16xi{width}>"
    found = apply(line, (f"i{width}",) * 2, "i1", [integer_bits(first, width), integer_bits(second, width)])
    assert found.tolist() == [order(a, b) for a, b in pairs]


@pytest.mark.parametrize("width", [32, 64])
@examples
@given(data=st.data())
def test_multiply_high_operation(width: int, data: st.DataObject) -> None:
    """`tt.mulhiui` gives the upper half of the unsigned product."""
    first, second = draw_integers(data, width), draw_integers(data, width)
    expected = [(a % 2**width) * (b % 2**width) >> width for a, b in zip(first, second, strict=True)]
    _check_integers("tt.mulhiui", width, first, second, expected)


@pytest.mark.parametrize("width", WIDTHS[1:])
@examples
@given(data=st.data())
def test_absolute_integer(width: int, data: st.DataObject) -> None:
    """`math.absi`; the most negative number stays as it is."""
    numbers = draw_integers(data, width)
    found = apply(f"math.absi %in0 : tensor<16xi{width}>", (f"i{width}",), f"i{width}", [integer_bits(numbers, width)])
    assert found.tolist() == [wrapped(abs(number), width) for number in numbers]
