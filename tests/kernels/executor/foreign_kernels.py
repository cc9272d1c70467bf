# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs kernels of flash-linear-attention, unmodified and launched by their own wrappers, on the executor.

A script, because importing that package warns, and binds other libraries to it for the rest of the process. Prints
one JSON object: for each case, the largest error relative to the reference's largest magnitude.
"""

from __future__ import annotations

import json
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import KernelInterface

from metrale_caps.kernels.executor import execute

if TYPE_CHECKING:
    from collections.abc import Callable


class Driver:
    """What the wrappers ask of the device driver where there is no device."""

    class utils:  # noqa: N801 - the driver's own name
        """Properties of the device."""

        @staticmethod
        def get_device_properties(_device: int) -> dict[str, int]:
            """Those of an H200, as far as they are asked for."""
            return {"max_shared_mem": 232448, "multiprocessor_count": 132, "max_num_regs": 65536, "warpSize": 32}

    def get_current_device(self) -> int:
        """The first."""
        return 0

    def get_current_stream(self, _device: int | None = None) -> int:
        """The default one."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """The one that the executor lowers for."""
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        """Where the tensors are."""
        return torch.device("cpu")


launched: set[str] = set()


def divert(kernel: Any, grid: Any) -> Callable[..., None]:
    """Execute instead of compiling and launching."""

    def launch(*positional: object, **named: object) -> None:
        inner = kernel
        while not isinstance(inner, triton.JITFunction):
            inner = inner.fn
        launched.add(inner.fn.__name__)
        execute(kernel, grid, {**dict(zip(inner.arg_names, positional, strict=False)), **named})

    return launch


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest error, relative to the largest magnitude."""
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max())


def inputs(dtype: torch.dtype, tokens: int = 80, heads: int = 2, width: int = 32) -> dict[str, torch.Tensor]:
    """Queries, keys, values, gates and a state, as a gated delta rule takes them."""
    torch.default_generator.manual_seed(0)
    shape = (1, tokens, heads, width)
    return {
        "q": torch.nn.functional.normalize(torch.randn(shape), dim=-1).to(dtype),
        "k": torch.nn.functional.normalize(torch.randn(shape), dim=-1).to(dtype),
        "v": torch.randn(shape).to(dtype),
        "beta": torch.rand(1, tokens, heads).to(dtype),
        "initial_state": torch.randn(1, heads, width, width),
    }


def gated_delta_rule(dtype: torch.dtype, *, chunked: bool) -> list[float]:
    """Outputs and final state of the gated delta rule."""
    rule = import_module("fla.ops.gated_delta_rule")
    reference = import_module("fla.ops.gated_delta_rule.naive").naive_recurrent_gated_delta_rule
    given = inputs(dtype)
    gate = -torch.rand(1, 80, 2)
    function = rule.chunk_gated_delta_rule if chunked else rule.fused_recurrent_gated_delta_rule
    found = function(**given, g=gate, output_final_state=True)
    wide = {name: tensor.float() for name, tensor in given.items()}
    expected = reference(**wide, g=gate, output_final_state=True)
    return [relative_error(*pair) for pair in zip(found, expected, strict=True)]


def delta_attention(dtype: torch.dtype, *, chunked: bool) -> list[float]:
    """Outputs and final state of Kimi delta attention."""
    attention = import_module("fla.ops.kda")
    reference = import_module("fla.ops.kda.naive").naive_recurrent_kda
    given = inputs(dtype)
    gate = -torch.rand(1, 80, 2, 32)
    function = attention.chunk_kda if chunked else attention.fused_recurrent_kda
    found = function(**given, g=gate, output_final_state=True)
    wide = {name: tensor.float() for name, tensor in given.items()}
    expected = reference(**wide, g=gate, output_final_state=True)
    return [relative_error(*pair) for pair in zip(found, expected, strict=True)]


def causal_convolution(dtype: torch.dtype) -> list[float]:
    """A short depthwise convolution with its activation."""
    convolve = import_module("fla.modules.causal_conv1d").causal_conv1d
    torch.default_generator.manual_seed(0)
    x, weight = torch.randn(2, 50, 64).to(dtype), torch.randn(64, 4).to(dtype)
    found: Any = convolve(x, weight, activation="silu")
    padded = torch.nn.functional.pad(x.float().transpose(1, 2), (3, 0))
    mixed = torch.nn.functional.conv1d(padded, weight.float()[:, None], groups=64)
    expected = torch.nn.functional.silu(mixed).transpose(1, 2)
    return [relative_error(found[0], expected)]


def _capability(_device: object = None) -> tuple[int, int]:
    return (9, 0)


def _name(_device: object = None) -> str:
    return "NVIDIA H200"


def divert_launches() -> None:
    """Let every launch in this process run on the executor, as on a device that the wrappers know."""
    warnings.simplefilter("ignore")
    no_device: Any = Driver()
    driver.set_active(no_device)
    setattr(torch.cuda, "get_device_capability", _capability)  # noqa: B010 - it is not ours to retype
    setattr(torch.cuda, "get_device_name", _name)  # noqa: B010
    setattr(KernelInterface, "__getitem__", divert)  # noqa: B010


def main() -> None:
    """Run every case in both precisions."""
    divert_launches()
    cases: dict[str, Callable[[torch.dtype], list[float]]] = {
        "fused_recurrent_gated_delta_rule": lambda dtype: gated_delta_rule(dtype, chunked=False),
        "chunk_gated_delta_rule": lambda dtype: gated_delta_rule(dtype, chunked=True),
        "fused_recurrent_kda": lambda dtype: delta_attention(dtype, chunked=False),
        "chunk_kda": lambda dtype: delta_attention(dtype, chunked=True),
        "causal_conv1d": causal_convolution,
    }
    with torch.no_grad():
        errors = {
            name: {str(dtype): max(case(dtype)) for dtype in (torch.float32, torch.bfloat16)}
            for name, case in cases.items()
        }
    sys.stdout.write(json.dumps({"errors": errors, "launched": sorted(launched)}))


if __name__ == "__main__":
    main()
