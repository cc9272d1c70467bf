# SPDX-License-Identifier: MIT OR Apache-2.0
"""Conversions of the executor's number types, bit for bit against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.kernels.executor import numerics
from tests.kernels.executor.values import shared

EIGHT_BIT = {"f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2}
examples = settings(max_examples=40, deadline=None)
WIDE_PATTERNS = st.binary(min_size=256, max_size=256).map(lambda raw: np.frombuffer(raw, np.uint32).tolist())
NEAR = st.lists(st.floats(-600, 600, width=32), min_size=1, max_size=64)
TINY = st.lists(st.floats(-(2.0**-5), 2.0**-5, width=32), min_size=1, max_size=64)


def _same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Equal bits, except that any NaN equals any NaN."""
    nan = np.isnan(ours)
    return bool((nan == np.isnan(theirs)).all() and (ours.view(np.uint32) == theirs.view(np.uint32))[~nan].all())


def test_every_bfloat16_pattern_unpacks_as_in_torch_and_packs_back() -> None:
    """All 65536 patterns, NaN payloads included, survive the way through float32."""
    raw = np.arange(65536, dtype=np.uint16)
    values = numerics.unpack_bfloat16(raw)
    expected = shared(raw.view(np.int16)).view(torch.bfloat16).float().numpy()
    assert _same(values, expected)
    assert (numerics.pack_bfloat16(values) == raw).all()


@pytest.mark.parametrize("element", EIGHT_BIT)
def test_every_eight_bit_pattern_unpacks_as_in_torch_and_packs_back(element: str) -> None:
    """All 256 patterns survive, and decode to torch's values."""
    raw = np.arange(256, dtype=np.uint8)
    values = numerics.UNPACK[element](raw)
    expected = shared(raw.copy()).view(EIGHT_BIT[element]).float().numpy()
    assert _same(values, expected)
    assert (numerics.PACK[element](values) == raw).all()


def test_every_bfloat16_tie_rounds_as_in_torch() -> None:
    """The value half-way between each pattern and the next, and its two float32 neighbours, round to torch's result."""
    half = (np.arange(65536, dtype=np.uint32) << 16) | 0x8000
    for bits in (half - 1, half, half + 1):
        values = bits.astype(np.uint32).view(np.float32)
        expected = shared(values).to(torch.bfloat16).float().numpy()
        assert _same(numerics.round_bfloat16(values), expected)


@examples
@given(WIDE_PATTERNS)
def test_any_float32_rounds_to_bfloat16_as_in_torch(patterns: list[int]) -> None:
    """Denormals, infinities and NaN included."""
    values = np.array(patterns, np.uint32).view(np.float32)
    expected = shared(values).to(torch.bfloat16).float().numpy()
    assert _same(numerics.round_bfloat16(values), expected)


@pytest.mark.parametrize("element", EIGHT_BIT)
def test_every_eight_bit_tie_rounds_as_in_torch(element: str) -> None:
    """The midpoint of each two neighbouring finite values, and its float32 neighbours, round to torch's result."""
    values = np.unique(numerics.UNPACK[element](np.arange(256, dtype=np.uint8)))
    finite = values[np.isfinite(values)]
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    for points in (np.nextafter(middle, np.float32(-1e9)), middle, np.nextafter(middle, np.float32(1e9))):
        expected = shared(points).to(EIGHT_BIT[element]).float().numpy()
        assert _same(numerics.round_to(points, element), expected)


@pytest.mark.parametrize("element", EIGHT_BIT)
@examples
@given(patterns=WIDE_PATTERNS, near=NEAR, tiny=TINY)
def test_any_float32_rounds_to_eight_bits_as_in_torch_and_saturates(
    element: str, patterns: list[int], near: list[float], tiny: list[float]
) -> None:
    """Within the type's range as torch; beyond it, infinity included, the largest finite value; NaN stays NaN."""
    values = np.concatenate([np.array(patterns, np.uint32).view(np.float32), np.array(near + tiny, np.float32)])
    largest = np.float32(torch.finfo(EIGHT_BIT[element]).max)
    with np.errstate(all="ignore"):
        rounded = numerics.round_to(values, element)
    clamped = shared(values).clamp(-float(largest), float(largest))
    assert _same(rounded, clamped.to(EIGHT_BIT[element]).float().numpy())
    assert (np.abs(rounded[np.abs(values) > largest]) == largest).all()


@pytest.mark.parametrize("element", ["bf16", "f16", *EIGHT_BIT])
@examples
@given(values=NEAR)
def test_rounding_towards_zero_gives_the_nearest_value_not_further_from_zero(element: str, values: list[float]) -> None:
    """The truncated value is of the type, not above in magnitude, and the next one of the type is above."""
    given_values = np.array(values, np.float32)
    with np.errstate(all="ignore"):
        truncated = np.asarray(numerics.truncate_to(given_values, element)).astype(np.float32)
        again = np.asarray(numerics.round_to(truncated, element)).astype(np.float32)
        nearest = np.asarray(numerics.round_to(given_values, element)).astype(np.float32)
    assert (again == truncated).all()
    limit = np.abs(given_values)
    assert (np.abs(truncated) <= limit).all()
    assert ((np.abs(nearest) > limit) | (nearest == truncated)).all()


@examples
@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1)), min_size=1))
def test_division_of_signed_integers_truncates(pairs: list[tuple[int, int]]) -> None:
    """The quotient is C's, rounded towards zero."""
    kept = [(a, b) for a, b in pairs if b and not (a == -(2**31) and b == -1)]
    first, second = (np.array([pair[side] for pair in kept], np.int32) for side in (0, 1))
    expected = [abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in kept]
    assert numerics.divide_truncating(first, second).tolist() == expected


@pytest.mark.parametrize("width", [32, 64])
@examples
@given(data=st.data())
def test_high_half_of_the_unsigned_product(width: int, data: st.DataObject) -> None:
    """The upper half of the exact product of both numbers seen as unsigned."""
    numbers = st.lists(st.integers(0, 2**width - 1), min_size=4, max_size=4)
    first, second = data.draw(numbers), data.draw(numbers)
    arrays = [np.array(each, f"uint{width}").view(f"int{width}") for each in (first, second)]
    found = numerics.multiply_high_unsigned(*arrays).view(f"uint{width}").tolist()
    assert found == [a * b >> width for a, b in zip(first, second, strict=True)]
