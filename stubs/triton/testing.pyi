# SPDX-License-Identifier: MIT OR Apache-2.0
"""Timing of a launched function on a device."""

from collections.abc import Callable, Sequence
from typing import Literal, overload

@overload
def do_bench(
    fn: Callable[[], object],
    warmup: int = ...,
    rep: int = ...,
    grad_to_none: None = ...,
    quantiles: None = ...,
    return_mode: Literal["min", "max", "mean", "median"] = ...,
) -> float: ...
@overload
def do_bench(
    fn: Callable[[], object],
    warmup: int = ...,
    rep: int = ...,
    grad_to_none: None = ...,
    *,
    quantiles: Sequence[float],
) -> list[float]: ...
