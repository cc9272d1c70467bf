# SPDX-License-Identifier: MIT OR Apache-2.0
"""E4M3FN in integer operations, for kernels that must give the same bits where the target has no such type.

A code is a sign, four bits of exponent with bias 7 and three of mantissa; there is no infinity, 0x7F and 0xFF are NaN
and the largest magnitude is 448.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def encode_e4m3(x: tl.tensor) -> tl.tensor:
    """Return the code of each fp32 number: to nearest even, saturating at 448; any NaN becomes 0x7F."""
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    clipped = tl.minimum(magnitude, 0x43E00000)  # 448; of numbers that are not negative the bits are in order too
    normal = ((clipped + 0x7FFFF + ((clipped >> 20) & 1)) >> 20) - 0x3C0
    # a unit in the last place of 2^14 is 2^-9, the smallest subnormal: the addition rounds
    subnormal = (clipped.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(clipped < 0x3C800000, subnormal, normal) | ((bits >> 24) & 0x80)
    # without the sign, which a NaN that was computed does not have on every target
    return tl.where(magnitude > 0x7F800000, 0x7F, code).to(tl.uint8)


@triton.jit
def decode_e4m3(codes: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Return 2^-8 of each code's number, exactly: with its bias of 15, fp16 has that number in the same bits.

    The factor is left to whoever uses the sums: it is exact there too, and saves a product for each number.
    """
    # the sign ends up in two bits, of which the lower one is the exponent's
    half = (codes.to(tl.int8, bitcast=True).to(tl.int16) << 7) & -0x4080
    x = half.to(tl.float16, bitcast=True).to(tl.float32)
    return tl.where(tl.abs(x) > 1.75, float("nan"), x).to(dtype)


@triton.jit
def load_scale(scale: tl.tensor) -> tl.tensor:
    """Return the factor of what `decode_e4m3` returns: the scale that lies in memory now, times 2^8."""
    return tl.load(scale) * 256.0
