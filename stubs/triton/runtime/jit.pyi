# SPDX-License-Identifier: MIT OR Apache-2.0
"""What `@triton.jit` makes of a function."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, overload

import torch

from ..compiler.compiler import CompiledKernel

_P = ParamSpec("_P")
_R = TypeVar("_R")

Grid: TypeAlias = tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]]

class KernelParam:
    num: int
    do_not_specialize: bool
    do_not_specialize_on_alignment: bool
    @property
    def name(self) -> str: ...
    @property
    def annotation(self) -> str: ...
    @property
    def annotation_type(self) -> str: ...
    @property
    def is_constexpr(self) -> bool: ...
    @property
    def is_const(self) -> bool: ...
    @property
    def default(self) -> Any: ...
    @property
    def has_default(self) -> bool: ...

class KernelInterface:
    # a launch is given tensors where the kernel's own parameters are pointers, so their types cannot be carried over
    def __getitem__(self, grid: Grid) -> Callable[..., CompiledKernel]: ...
    def run(self, *args: object, grid: Grid, warmup: bool, **kwargs: object) -> CompiledKernel | None: ...
    def warmup(self, *args: object, grid: Grid, **kwargs: object) -> CompiledKernel: ...

class JITCallable:
    src: str
    signature: inspect.Signature
    __name__: str
    __module__: str
    __globals__: dict[str, Any]
    @property
    def cache_key(self) -> str: ...

class JITFunction(JITCallable, KernelInterface, Generic[_P, _R]):
    fn: Callable[_P, _R]
    params: list[KernelParam]
    arg_names: list[str]
    constexprs: list[int]
    device_caches: dict[int, Any]
    debug: bool | None
    noinline: bool | None
    def __init__(self, fn: Callable[_P, _R]) -> None: ...
    # inside another kernel; literals and dtypes may stand for constexpr parameters
    def __call__(self, *args: Any, **kwargs: Any) -> _R: ...

@overload
def jit(fn: Callable[_P, _R]) -> JITFunction[_P, _R]: ...
@overload
def jit(
    *,
    version: object = ...,
    repr: Callable[..., str] | None = ...,
    launch_metadata: Callable[..., dict[str, Any]] | None = ...,
    do_not_specialize: Iterable[int | str] | None = ...,
    do_not_specialize_on_alignment: Iterable[int | str] | None = ...,
    debug: bool | None = ...,
    noinline: bool | None = ...,
) -> Callable[[Callable[_P, _R]], JITFunction[_P, _R]]: ...

class ConstexprFunction(JITCallable, Generic[_P, _R]):
    # inside a kernel the arguments are constexpr
    def __call__(self, *args: Any, **kwargs: Any) -> _R: ...

def constexpr_function(fn: Callable[_P, _R]) -> ConstexprFunction[_P, _R]: ...

class MockTensor:
    dtype: torch.dtype
    shape: Sequence[int]
    def __init__(self, dtype: torch.dtype, shape: Sequence[int] | None = ...) -> None: ...
    @staticmethod
    def wrap_dtype(arg: object) -> object: ...
    def stride(self) -> tuple[int, ...]: ...
    @staticmethod
    def data_ptr() -> int: ...

class TensorWrapper:
    base: torch.Tensor
    dtype: Any
    shape: torch.Size
    def __init__(self, base: torch.Tensor, dtype: Any) -> None: ...
    def data_ptr(self) -> int: ...

def reinterpret(tensor: torch.Tensor | TensorWrapper, dtype: Any) -> torch.Tensor | TensorWrapper: ...
