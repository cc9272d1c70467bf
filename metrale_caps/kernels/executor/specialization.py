# SPDX-License-Identifier: MIT OR Apache-2.0
"""Binds a launch's arguments to a kernel's parameters, and keeps one generated kernel for each specialisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import torch
import triton.language as tl
from triton import JITFunction

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.executor.codegen import generate
from metrale_caps.kernels.executor.lowering import lower

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metrale_caps.kernels.executor.codegen import GeneratedKernel

POINTERS: Final[dict[torch.dtype, str]] = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
    torch.bool: "*i1",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.uint16: "*u16",
    torch.uint32: "*u32",
    torch.uint64: "*u64",
}
"""Triton's names of pointers to torch's types."""

LAUNCH_OPTIONS: Final = frozenset(
    {
        "num_warps",
        "num_stages",
        "num_ctas",
        "maxnreg",
        "warmup",
        "debug",
        "enable_fp_fusion",
        "waves_per_eu",
        "ir_override",
    }
)
"""Arguments of a launch that say how to compile; nothing is compiled here."""

_CONSTANT: Final = "constexpr"
_NUMBERS: Final[dict[str, type[np.generic]]] = {
    "i1": np.bool_,
    "u1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "fp16": np.float16,
    "fp32": np.float32,
    "fp64": np.float64,
}


class BoundArgument(NamedTuple):
    """A run-time argument: its parameter's name, and a tensor or a numpy scalar."""

    name: str
    value: Any


class Parameter(NamedTuple):
    """What binding needs to know of one parameter of a kernel."""

    name: str
    is_constant: bool
    annotated: str
    default: Any
    has_default: bool


class Specializer:
    """One kernel: its parameters, and what was generated for the kinds of arguments seen so far."""

    def __init__(self, kernel: JITFunction[..., Any]) -> None:
        self.kernel = kernel
        self.name: str = kernel.fn.__name__
        self._parameters = tuple(
            Parameter(each.name, each.is_constexpr, each.annotation_type, each.default, each.has_default)
            for each in kernel.params
        )
        self._names = frozenset(each.name for each in self._parameters)
        self.generated: dict[tuple[object, ...], GeneratedKernel] = {}

    def bind(self, arguments: Mapping[str, object]) -> tuple[GeneratedKernel, list[BoundArgument]]:
        """The generated kernel for these arguments, and the ones that it takes, in order.

        Raises:
            LaunchError: an argument is missing, unknown, or of a kind that kernels do not take.
            UnsupportedOperationError: the kernel uses an operation that cannot be executed.
        """
        key: list[object] = []
        bound: list[BoundArgument] = []
        found = 0
        for parameter in self._parameters:
            name = parameter.name
            if name in arguments:
                value = arguments[name]
                found += 1
            elif parameter.has_default:
                value = parameter.default
            else:
                raise LaunchError(f"{self.name}: the argument {name!r} is missing")
            if isinstance(value, torch.Tensor) and not parameter.is_constant:
                key.append(value.dtype)
                bound.append(BoundArgument(name, value))
            elif parameter.is_constant or not isinstance(value, (bool, int, float)):
                key.append(_constant_key(value))
            else:
                kind = parameter.annotated or kind_of_number(value)
                key.append(kind)
                bound.append(BoundArgument(name, _number(kind, value)))
        if found < len(arguments):
            self._check_names(arguments)
        generated = self.generated.get(tuple(key))
        if generated is None:
            generated = self.generated[tuple(key)] = self._generate(arguments)
        return generated, bound

    def _check_names(self, arguments: Mapping[str, object]) -> None:
        unknown = sorted(set(arguments) - self._names - LAUNCH_OPTIONS)
        if unknown:
            raise LaunchError(f"{self.name} has no argument {unknown[0]!r}; it has {', '.join(sorted(self._names))}")

    def _generate(self, arguments: Mapping[str, object]) -> GeneratedKernel:
        signature: dict[str, str] = {}
        constants: dict[str, object] = {}
        for parameter in self._parameters:
            value = _unwrapped(arguments.get(parameter.name, parameter.default))
            kind = _CONSTANT if parameter.is_constant else self._kind(parameter, value)
            signature[parameter.name] = kind
            if kind == _CONSTANT:
                constants[parameter.name] = value
        return generate(lower(self.kernel, signature, constants), self.name)

    def _kind(self, parameter: Parameter, value: object) -> str:
        """Triton's name of the type that a parameter gets for this value."""
        if isinstance(value, torch.Tensor):
            if value.dtype not in POINTERS:
                raise LaunchError(
                    f"{self.name}: {parameter.name!r} is a tensor of {value.dtype}, which has no kernel type"
                )
            return POINTERS[value.dtype]
        if isinstance(value, (bool, int, float)):
            return parameter.annotated or kind_of_number(value)
        if value is None or isinstance(value, (tl.dtype, JITFunction)):
            return _CONSTANT
        raise LaunchError(
            f"{self.name}: {parameter.name!r} is of type {type(value).__name__}, which kernels do not take"
        )


def kind_of_number(value: bool | float) -> str:
    """The type by which Triton passes a number: the narrowest of 32 and 64 bits for an integer."""
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, float):
        return "fp32"
    if -(2**31) <= value < 2**31:
        return "i32"
    return "i64" if -(2**63) <= value < 2**63 else "u64"


def _number(kind: str, value: bool | float) -> Any:
    if kind.startswith("u") and kind != "u1":
        return np.array(value, f"uint{kind[1:]}").view(f"int{kind[1:]}")[()]
    dtype = _NUMBERS.get(kind)
    if dtype is None:
        raise LaunchError(f"numbers of type {kind} cannot be passed to a kernel here")
    return dtype(value)


def _unwrapped(value: object) -> object:
    return value.value if isinstance(value, tl.constexpr) else value


def _constant_key(value: object) -> object:
    """Constants that compare equal may differ in kind, as 1, 1.0 and True do."""
    value = _unwrapped(value)
    if isinstance(value, JITFunction):
        return id(cast("object", value))
    try:
        hash(value)
    except TypeError:
        return (type(value), repr(value))
    return (type(value), value)


_specializers: Final[dict[int, Specializer]] = {}


def specializer_of(kernel: JITFunction[..., Any]) -> Specializer:
    """The one specializer of a kernel; a kernel that was used stays alive."""
    found = _specializers.get(id(kernel))
    if found is None:
        found = _specializers[id(kernel)] = Specializer(kernel)
    return found


def generated_kernels(kernel: JITFunction[..., Any]) -> tuple[GeneratedKernel, ...]:
    """What was generated for a kernel so far, one for each specialisation."""
    return tuple(specializer_of(kernel).generated.values())
