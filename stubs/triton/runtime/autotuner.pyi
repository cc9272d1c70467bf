# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernels with several configurations, and constexprs computed from the other arguments."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .jit import KernelInterface

class Config:
    kwargs: dict[str, Any]
    num_warps: int
    num_stages: int
    num_ctas: int
    maxnreg: int | None
    pre_hook: Callable[..., object] | None
    def __init__(
        self,
        kwargs: Mapping[str, object],
        num_warps: int = ...,
        num_stages: int = ...,
        num_ctas: int = ...,
        maxnreg: int | None = ...,
        pre_hook: Callable[..., object] | None = ...,
    ) -> None: ...
    def all_kwargs(self) -> dict[str, Any]: ...

class Autotuner(KernelInterface):
    fn: KernelInterface
    base_fn: Callable[..., Any]
    arg_names: list[str]
    configs: list[Config]
    keys: list[str]
    cache: dict[tuple[object, ...], Config]

class Heuristics(KernelInterface):
    fn: KernelInterface
    arg_names: list[str]
    values: dict[str, Callable[[dict[str, Any]], object]]

def autotune(
    configs: Sequence[Config],
    key: Sequence[str],
    prune_configs_by: Mapping[str, Any] | None = ...,
    reset_to_zero: Sequence[str] | None = ...,
    restore_value: Sequence[str] | None = ...,
    pre_hook: Callable[..., object] | None = ...,
    post_hook: Callable[..., object] | None = ...,
) -> Callable[[KernelInterface], Autotuner]: ...
def heuristics(
    values: Mapping[str, Callable[[dict[str, Any]], object]],
) -> Callable[[KernelInterface], Heuristics]: ...
