# SPDX-License-Identifier: MIT OR Apache-2.0
"""Parts of attention kernels: which tiles of keys a program goes through, and one step of a running softmax."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def key_range(
    first: tl.tensor,
    end: tl.tensor,
    window: tl.tensor,
    split: tl.tensor,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the oldest key that rows from position `first` on see, and where a split's tiles begin and end."""
    oldest = first * 0
    if HAS_WINDOW:
        oldest = tl.maximum(first - window + 1, 0)
    begin = oldest // KEYS * KEYS
    if SPLITS > 1:
        share = tl.cdiv(tl.cdiv(end - begin, SPLITS), KEYS) * KEYS
        begin += split * share
        end = tl.minimum(end, begin + share)
    return oldest, begin, end


@triton.jit
def softmax_step(
    scores: tl.tensor, peak: tl.tensor, total: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return the weights of more scores, the factor of earlier ones, and the new peak and total of each row."""
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    # a row that has seen no key yet must not turn -inf - -inf into NaN
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - base[:, None])
    decay = tl.exp2(peak - base)
    return weights, decay, new_peak, total * decay + tl.sum(weights, 1)
