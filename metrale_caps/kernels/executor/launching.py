# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs every program of a launch, and turns what goes wrong into errors that name kernel, argument and program."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from triton import JITFunction
from triton.runtime.autotuner import Autotuner, Heuristics

from metrale_caps.errors import LaunchError, MemoryFaultError, RaceError
from metrale_caps.kernels.executor.layout import span_of
from metrale_caps.kernels.executor.memory import AccessFault, Argument
from metrale_caps.kernels.executor.races import RaceMonitor
from metrale_caps.kernels.executor.specialization import specializer_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from metrale_caps.kernels.executor.codegen import GeneratedKernel
    from metrale_caps.kernels.executor.races import Program
    from metrale_caps.kernels.executor.specialization import BoundArgument

Grid = tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]]

_RAW = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}
_MAX_DIMENSIONS = 3


def execute(
    kernel: object,
    grid: Grid,
    arguments: Mapping[str, object],
    *,
    writes: Collection[str] | None = None,
) -> None:
    """Run a Triton kernel on CPU tensors, in the compiler's semantics, with every memory access checked.

    Args:
        kernel: a `@triton.jit` function, also under `heuristics` (which are evaluated) or `autotune` (whose first
            configuration is run, once).
        grid: extents of the grid, up to three, or a function of the arguments that gives them.
        arguments: every argument by name. Tensors are shared, not copied: the kernel's stores change them.
        writes: names of the pointer arguments that the kernel may store to; None allows all.

    Raises:
        LaunchError: the arguments or the grid do not fit the kernel.
        MemoryFaultError: an access outside its argument, in a gap of a strided one, or a store to a read-only one.
        RaceError: two programs, or two lanes of one store, collide at one address.
        UnsupportedOperationError: the kernel uses an operation that the executor does not know.
        KernelError: a device assertion failed.
    """
    inner, arguments = _unwrapped(kernel, arguments)
    specializer = specializer_of(inner)
    extents = _extents(grid(dict(arguments)) if callable(grid) else grid, specializer.name)
    generated, bound = specializer.bind(arguments)
    if 0 in extents:
        return
    values = [
        _memory(one, specializer.name, writable=writes is None or one.name in writes)
        if isinstance(one.value, torch.Tensor)
        else one.value
        for one in bound
    ]
    monitors: list[RaceMonitor] = []
    if extents != (1, 1, 1) and generated.stored:
        monitors = _monitors(generated, bound, values)
    _run(specializer.name, generated, extents, values, monitors)


def _unwrapped(kernel: object, arguments: Mapping[str, object]) -> tuple[JITFunction[..., Any], Mapping[str, object]]:
    """The innermost kernel, and the arguments with those that its wrappers add."""
    while True:
        if isinstance(kernel, JITFunction):
            return cast("JITFunction[..., Any]", kernel), arguments
        if isinstance(kernel, Heuristics):
            found = dict(arguments)
            for name, heuristic in kernel.values.items():
                found[name] = heuristic(found)
            kernel, arguments = kernel.fn, found
        elif isinstance(kernel, Autotuner):
            kernel, arguments = kernel.fn, {**arguments, **kernel.configs[0].kwargs}
        else:
            raise LaunchError(f"{type(kernel).__name__} is not a Triton kernel")


def _extents(grid: tuple[int, ...], kernel: str) -> Program:
    if not 1 <= len(grid) <= _MAX_DIMENSIONS or any(extent < 0 for extent in grid):
        raise LaunchError(f"{kernel}: the grid has to be of one to three extents, none negative, but is {grid}")
    first, second, third = (*grid, 1, 1)[:_MAX_DIMENSIONS]
    return (int(first), int(second), int(third))


def _memory(argument: BoundArgument, kernel: str, *, writable: bool) -> Argument:
    tensor: torch.Tensor = argument.value
    if not tensor.is_cpu:
        raise LaunchError(f"{kernel}: {argument.name!r} is on {tensor.device}, but the executor runs on CPU tensors")
    shape, strides = tuple(tensor.shape), tensor.stride()
    dense = tensor.is_contiguous()
    if tensor.requires_grad:
        tensor = tensor.detach()
    flat = tensor.view(-1) if dense else tensor.as_strided((span_of(shape, strides),), (1,))
    raw = _RAW.get(tensor.dtype)
    elements = (flat if raw is None else flat.view(raw)).numpy()
    return Argument(argument.name, elements, shape, strides, dense=dense, writable=writable)


def _monitors(generated: GeneratedKernel, bound: list[BoundArgument], values: list[Any]) -> list[RaceMonitor]:
    """One monitor for each set of arguments that overlap in memory and of which one is stored to."""
    regions: list[tuple[int, int, int]] = []
    for position, one in enumerate(bound):
        memory = values[position]
        if isinstance(memory, Argument) and len(memory.data):
            start: int = one.value.data_ptr()
            regions.append((start, start + memory.data.nbytes, position))
    monitors: list[RaceMonitor] = []
    group: list[tuple[int, int, int]] = []
    reach = -1
    for region in [*sorted(regions), (2**64, 2**64, -1)]:
        if region[0] >= reach:
            if any(position in generated.stored for _, _, position in group):
                monitors.append(_monitor(group, bound, values))
            group = []
        group.append(region)
        reach = max(reach, region[1])
    return monitors


def _monitor(group: list[tuple[int, int, int]], bound: list[BoundArgument], values: list[Any]) -> RaceMonitor:
    memories: list[Argument] = [values[position] for _, _, position in group]
    first = group[0][0]
    monitor = RaceMonitor(
        [bound[position].name for _, _, position in group],
        [start - first for start, _, _ in group],
        [memory.data.itemsize for memory in memories],
    )
    for memory, log in zip(memories, monitor.logs, strict=True):
        memory.log = log
    return monitor


def _run(
    name: str, generated: GeneratedKernel, extents: Program, values: list[Any], monitors: list[RaceMonitor]
) -> None:
    program = (0, 0, 0)
    with np.errstate(all="ignore"):
        run = generated.launch(*values, *extents)
        try:
            for z, y, x in product(range(extents[2]), range(extents[1]), range(extents[0])):
                program = (x, y, z)
                run(x, y, z)
                for monitor in monitors:
                    monitor.end_program(program)
        except AccessFault as fault:
            if fault.lanes:
                raise RaceError(name, fault.argument, fault.offsets, [program], fault.what) from None
            raise MemoryFaultError(name, fault.argument, fault.offsets, program, fault.what) from None
    for monitor in monitors:
        race = monitor.race()
        if race is not None:
            raise RaceError(name, race.argument, race.offsets, race.programs, race.what)
