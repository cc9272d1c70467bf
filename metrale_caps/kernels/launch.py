# SPDX-License-Identifier: MIT OR Apache-2.0
"""The one way a kernel is launched: compiled on a GPU, executed from its own IR on a CPU."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.recording import active_recorder

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from triton import JITFunction

Argument: TypeAlias = torch.Tensor | float | bool | str | None


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch as it was asked for.

    Attributes:
        kernel: the kernel.
        grid: programs on each axis.
        arguments: every argument by name.
        num_warps: warps of a program on a GPU.
        num_stages: depth of software pipelines on a GPU.
    """

    kernel: JITFunction[..., Any]
    grid: tuple[int, ...]
    arguments: Mapping[str, Argument]
    num_warps: int
    num_stages: int


_recorded: list[list[Launch]] = []


@contextlib.contextmanager
def record_launches() -> Generator[list[Launch]]:
    """Collect the launches on tensors of the meta device, which hold no data and run nothing.

    This is how a launcher's real arguments reach the ahead-of-time compiler.
    """
    launches: list[Launch] = []
    _recorded.append(launches)
    try:
        yield launches
    finally:
        # two recorders with the same launches are equal lists
        _recorded[:] = [one for one in _recorded if one is not launches]


def launch(
    kernel: JITFunction[..., Any],
    grid: tuple[int, ...],
    *,
    writes: tuple[str, ...],
    num_warps: int = 4,
    num_stages: int = 2,
    **arguments: Argument,
) -> None:
    """Run a kernel over a grid.

    Tensors on a GPU: the kernel is compiled. On a CPU: it is executed, every access checked against its argument. On
    the meta device: it is only recorded. An empty grid runs nothing. While a step is captured, the launch is noted.

    Args:
        kernel: an ordinary `triton.jit` function.
        grid: programs on each axis, one to three of them.
        writes: names of the pointer arguments that the kernel may store to; it only reads the others.
        num_warps: warps of a program on a GPU.
        num_stages: depth of software pipelines on a GPU.
        **arguments: every argument of the kernel.

    Raises:
        LaunchError: an argument is missing, unknown, or lies on another device than the rest.
        KernelError: a CPU execution faulted.
    """
    device = _checked_device(kernel, writes, arguments)
    if 0 in grid:
        return
    if device == "meta":
        for launches in _recorded:
            launches.append(Launch(kernel, grid, arguments, num_warps, num_stages))
        return

    def run() -> None:
        if device == "cpu":
            from metrale_caps.kernels.executor import execute

            execute(kernel, grid, arguments, writes=writes)
        else:
            # said, since the compiler's default differs between versions, and with it the bits
            kernel[grid](**arguments, num_warps=num_warps, num_stages=num_stages, enable_fp_fusion=True)

    recorder = active_recorder()
    if recorder is None:
        run()
    else:
        recorder.record_launch(run, [value for value in arguments.values() if isinstance(value, torch.Tensor)])


def _checked_device(kernel: JITFunction[..., Any], writes: tuple[str, ...], arguments: Mapping[str, Argument]) -> str:
    names = kernel.arg_names
    name = kernel.fn.__name__
    if len(names) != len(arguments) or any(parameter not in arguments for parameter in names):
        missing = [parameter for parameter in names if parameter not in arguments]
        unknown = [argument for argument in arguments if argument not in names]
        raise LaunchError(f"{name}: missing arguments {missing}, unknown arguments {unknown}; it takes {list(names)}")
    devices = {argument.device for argument in arguments.values() if isinstance(argument, torch.Tensor)}
    if len(devices) != 1:
        raise LaunchError(f"{name}: all tensors must lie on one device, but they lie on {sorted(map(str, devices))}")
    for written in writes:
        if written not in arguments:
            raise LaunchError(f"{name}: it should write {written!r}, but has no such argument")
    return devices.pop().type
