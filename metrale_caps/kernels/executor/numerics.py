# SPDX-License-Identifier: MIT OR Apache-2.0
"""Numbers of the kernel's types in numpy arrays, and the conversions between them.

numpy has no bfloat16 and no 8-bit floats. Their values are computed with as float32 arrays that hold only values
the narrow type has; `round_to` makes such an array, `pack` and `unpack` go to and from the bits in memory. Rounding
is to nearest, ties to even. A NaN stays a NaN. Conversion to an 8-bit float saturates, infinities included, as the
hardware's own conversion (`cvt.satfinite`) does; conversion to bfloat16 and float16 overflows to infinity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]

COMPUTED_AS: Final[dict[str, type[np.generic]]] = {
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "index": np.int64,
    "f16": np.float16,
    "bf16": np.float32,
    "f32": np.float32,
    "f64": np.float64,
    "f8E4M3FN": np.float32,
    "f8E5M2": np.float32,
}
"""numpy type with which each element type is computed."""

STORED_AS: Final[dict[str, type[np.generic]]] = {
    **COMPUTED_AS,
    "bf16": np.uint16,
    "f8E4M3FN": np.uint8,
    "f8E5M2": np.uint8,
}
"""numpy type of each element type's bits in memory."""

NARROW_FLOATS: Final = frozenset({"bf16", "f8E4M3FN", "f8E5M2"})
"""Floats that numpy lacks."""

BITS: Final[dict[str, int]] = {
    name: 1 if name == "i1" else 8 * np.dtype(stored).itemsize for name, stored in STORED_AS.items()
}
"""Width of each element type."""

_UNSIGNED: Final[dict[int, type[np.generic]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

_HIGH_HALF = np.uint32(0xFFFF0000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)
_INFINITY = np.uint32(0x7F800000)
_HALF_UNIT = np.uint32(0x7FFF)
_ONE = np.uint32(1)
_SIXTEEN = np.uint32(16)
_BFLOAT_NAN = np.uint32(0x7FC00000)


def bits_of(values: Any) -> Array:
    """The float32 bits of `values` as uint32, without copying where possible."""
    return np.asarray(values, np.float32).view(np.uint32)


def round_bfloat16(values: Any) -> Array:
    """`values` rounded to bfloat16; a NaN becomes the positive quiet NaN, as in torch."""
    bits = bits_of(values)
    rounded = bits + (((bits >> _SIXTEEN) & _ONE) + _HALF_UNIT) & _HIGH_HALF
    result = rounded.view(np.float32)
    magnitude = bits & _MAGNITUDE
    if np.maximum.reduce(magnitude, axis=None) > _INFINITY:
        result = np.where(magnitude > _INFINITY, _BFLOAT_NAN, rounded).view(np.float32)
    return result


def truncate_bfloat16(values: Any) -> Array:
    """`values` rounded towards zero to bfloat16."""
    bits = bits_of(values)
    kept = bits & _HIGH_HALF
    is_nan = (bits & _MAGNITUDE) > _INFINITY
    return np.where(is_nan, _BFLOAT_NAN, kept).view(np.float32)


def pack_bfloat16(values: Any) -> Array:
    """Memory bits of values that bfloat16 has."""
    return (bits_of(values) >> _SIXTEEN).astype(np.uint16)


def unpack_bfloat16(raw: Array) -> Array:
    """Values of memory bits."""
    return np.left_shift(raw, _SIXTEEN, dtype=np.uint32).view(np.float32)


class SmallFloat:
    """An 8-bit float: conversions by its layout.

    Attributes:
        mantissa: bits of the mantissa.
        bias: exponent's bias.
        largest: largest finite value.
    """

    def __init__(self, mantissa: int, bias: int, largest: float, nan: int, infinity: int | None) -> None:
        self.mantissa = mantissa
        self.bias = bias
        self.largest: np.float32 = np.float32(largest)
        self._shift = np.uint32(23 - mantissa)
        self._smallest_normal = np.float32(2.0 ** (1 - bias))
        # Adding this to a magnitude below the smallest normal rounds it to a multiple of the smallest subnormal.
        self._aligner = np.float32(2.0 ** (1 - bias - mantissa + 23))
        self._nan = np.uint8(nan)
        self._values = self._decoded(infinity)

    def _decoded(self, infinity: int | None) -> Array:
        """The 256 values; of a NaN, sign and payload are kept so that a copy through memory is exact."""
        codes = np.arange(256, dtype=np.uint32)
        magnitude = codes & np.uint32(0x7F)
        exponent = (magnitude >> np.uint32(self.mantissa)).astype(np.int32)
        fraction = (magnitude & np.uint32((1 << self.mantissa) - 1)).astype(np.float64)
        scaled = fraction / (1 << self.mantissa)
        finite = np.where(exponent > 0, (1 + scaled) * 2.0 ** (exponent - self.bias), scaled * 2.0 ** (1 - self.bias))
        bits = finite.astype(np.float32).view(np.uint32)
        first_nan = np.uint32(0x7F if infinity is None else infinity + 1)
        bits = np.where(magnitude >= first_nan, _INFINITY | (magnitude << self._shift) & np.uint32(0x7FFFFF), bits)
        if infinity is not None:
            bits = np.where(magnitude == np.uint32(infinity), _INFINITY, bits)
        return (bits | (codes & np.uint32(0x80)) << np.uint32(24)).view(np.float32)

    def round(self, values: Any) -> Array:
        """`values` rounded to this type, saturating; NaN becomes this type's canonical NaN of the same sign."""
        given = np.asarray(values, np.float32)
        bits = given.view(np.uint32)
        magnitude = np.abs(given)
        clipped = np.fmin(magnitude, self.largest).view(np.uint32)
        odd = (clipped >> self._shift) & _ONE
        half = np.uint32((1 << (int(self._shift) - 1)) - 1)
        normal = ((clipped + odd + half) >> self._shift << self._shift).view(np.float32)
        subnormal = (clipped.view(np.float32) + self._aligner) - self._aligner
        rounded = np.where(magnitude < self._smallest_normal, subnormal, normal)
        rounded = np.where(np.isnan(given), self._values[int(self._nan)], rounded)
        return (rounded.view(np.uint32) & _MAGNITUDE | bits & _SIGN).view(np.float32)

    def truncate(self, values: Any) -> Array:
        """`values` rounded towards zero to this type, saturating."""
        given = np.asarray(values, np.float32)
        nearest = self.round(given)
        codes = self.pack(nearest)
        above = np.abs(nearest) > np.abs(given)
        return self.unpack(np.where(above, codes - np.uint8(1), codes))

    def pack(self, values: Any) -> Array:
        """Memory bits of values that this type has."""
        bits = bits_of(values)
        sign = (bits & _SIGN) >> np.uint32(24)
        magnitude = bits & _MAGNITUDE
        rebias = np.uint32((127 - self.bias) << self.mantissa)
        normal = (magnitude >> self._shift) - rebias
        steps = np.float32(2.0 ** (self.bias - 1 + self.mantissa))
        subnormal = (np.fmin(magnitude.view(np.float32), self._smallest_normal) * steps).astype(np.uint32)
        code = np.where(magnitude.view(np.float32) < self._smallest_normal, subnormal, normal)
        special = magnitude >= _INFINITY
        payload = (magnitude >> self._shift) & np.uint32((1 << self.mantissa) - 1)
        top = np.uint32(0x7F >> self.mantissa << self.mantissa)
        code = np.where(special, top | payload, code)
        return (code | sign).astype(np.uint8)

    def unpack(self, raw: Array) -> Array:
        """Values of memory bits."""
        return self._values[raw]


E4M3 = SmallFloat(mantissa=3, bias=7, largest=448.0, nan=0x7F, infinity=None)
E5M2 = SmallFloat(mantissa=2, bias=15, largest=57344.0, nan=0x7F, infinity=0x7C)

_ROUNDING: Final[dict[str, Callable[[Any], Array]]] = {
    "bf16": round_bfloat16,
    "f8E4M3FN": E4M3.round,
    "f8E5M2": E5M2.round,
}
_TRUNCATING: Final[dict[str, Callable[[Any], Array]]] = {
    "bf16": truncate_bfloat16,
    "f8E4M3FN": E4M3.truncate,
    "f8E5M2": E5M2.truncate,
}
PACK: Final[dict[str, Callable[[Any], Array]]] = {
    "bf16": pack_bfloat16,
    "f8E4M3FN": E4M3.pack,
    "f8E5M2": E5M2.pack,
}
UNPACK: Final[dict[str, Callable[[Array], Array]]] = {
    "bf16": unpack_bfloat16,
    "f8E4M3FN": E4M3.unpack,
    "f8E5M2": E5M2.unpack,
}


def round_to(values: Any, element: str) -> Any:
    """`values` (numbers of any kind) converted to `element`, rounding to nearest even."""
    rounding = _ROUNDING.get(element)
    if rounding is not None:
        return rounding(values)
    return np.asarray(values).astype(COMPUTED_AS[element])


def truncate_to(values: Any, element: str) -> Any:
    """Floats converted to a narrower float, rounding towards zero."""
    truncating = _TRUNCATING.get(element)
    if truncating is not None:
        return truncating(values)
    wide = np.asarray(values)
    nearest = wide.astype(COMPUTED_AS[element])
    above = np.abs(nearest) > np.abs(wide)
    return np.where(above, np.nextafter(nearest, np.zeros_like(nearest)), nearest)


def reinterpret(values: Any, source: str, target: str) -> Any:
    """The numbers whose memory bits, read as `target`, are those of `values` of type `source`."""
    packing = PACK.get(source)
    raw = packing(values) if packing is not None else np.ascontiguousarray(values).astype(COMPUTED_AS[source])
    raw = raw.reshape(np.shape(values)).view(STORED_AS[target])
    unpacking = UNPACK.get(target)
    return unpacking(raw) if unpacking is not None else raw


def unsigned(values: Any) -> Any:
    """Integers (array or numpy scalar) seen as unsigned ones of the same width."""
    if values.dtype == np.bool_:
        return values.astype(np.uint8)
    return values.view(_UNSIGNED[values.dtype.itemsize])


def divide_truncating(dividend: Any, divisor: Any) -> Any:
    """Signed integer quotient rounded towards zero, as in C; numpy's rounds down."""
    return (dividend - np.fmod(dividend, divisor)) // divisor


def multiply_high_unsigned(first: Any, second: Any) -> Any:
    """The upper half of the full product of unsigned 32- or 64-bit integers."""
    left, right = unsigned(np.asarray(first)), unsigned(np.asarray(second))
    if left.dtype.itemsize == np.dtype(np.uint32).itemsize:
        wide = left.astype(np.uint64) * right.astype(np.uint64)
        return (wide >> np.uint64(32)).astype(np.uint32).view(np.int32)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    left_high, left_low, right_high, right_low = left >> half, left & low, right >> half, right & low
    middle = left_high * right_low + (left_low * right_low >> half)
    carry = left_low * right_high + (middle & low)
    return (left_high * right_high + (middle >> half) + (carry >> half)).view(np.int64)
