# SPDX-License-Identifier: MIT OR Apache-2.0
"""A step as a CUDA graph. What it must not do is found by the driver; its memory is noted as on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from metrale_caps.errors import CaptureError
from metrale_caps.kernels.graphs.baked import MemoryNotes, storage_address, tensors_in
from metrale_caps.kernels.recording import recording_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from metrale_caps.kernels.graphs.baked import BakedBuffer


class CudaStep:
    """A captured step.

    Attributes:
        output: what the step returns; each replay overwrites it.
        baked: the buffers from outside whose addresses it holds.
        calls: 0, as a CUDA graph does not tell.
    """

    calls: int = 0

    def __init__(self, graph: torch.cuda.CUDAGraph, output: torch.Tensor, baked: tuple[BakedBuffer, ...]) -> None:
        self._graph = graph
        self.output: torch.Tensor = output
        self.baked: tuple[BakedBuffer, ...] = baked

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        self._graph.replay()


def capture_cuda(body: Callable[[], torch.Tensor], device: torch.device) -> CudaStep:
    """Capture a step; see `metrale_caps.kernels.graphs.capture`.

    Whatever the step needs only the first time (compiled kernels, workspaces of libraries) must exist already.

    Raises:
        CaptureError: the driver ended the capture without a graph.
        Exception: whatever the step raises; the capture is closed first.
    """
    graph = torch.cuda.CUDAGraph()
    watch = _Watch()
    failure: Exception | None = None
    output: torch.Tensor | None = None
    previous = torch.cuda.current_stream(device)
    try:
        with (
            torch.cuda.device(device),
            torch.cuda.graph(graph, stream=torch.cuda.Stream(device)),
            recording_with(watch),
            watch,
        ):
            try:
                output = body()
            except Exception as error:  # noqa: BLE001 - the capture must be closed before it goes on
                failure = error
    except RuntimeError as error:
        if failure is None:
            raise CaptureError(f"the driver refused the capture: {error}", watch.layer) from error
    finally:
        torch.cuda.set_stream(previous)  # torch leaves the capture's own current when its end fails
    if failure is not None:
        raise failure
    if output is None:
        raise CaptureError("the step returned nothing", None)
    watch.memory.used([output], None)
    return CudaStep(graph, output, tuple(watch.memory.external.values()))


class _Watch(TorchDispatchMode):
    """Notes which memory a step uses and lets everything happen; the active `Recorder`."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - torch leaves it unannotated
        self.layer: int | None = None
        self.memory = MemoryNotes()

    def record_launch(self, run: Callable[[], None], tensors: Iterable[torch.Tensor]) -> None:
        """Note a launch's memory and launch it into the graph."""
        self.memory.used(tensors, self.layer)
        run()

    def record_operation(
        self, run: Callable[[], torch.Tensor], result: Callable[[], torch.Tensor], operands: object
    ) -> torch.Tensor:
        """Run an operation; its own operators are seen one by one."""
        del result, operands
        return run()

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = tensors_in((args, kwargs))
        self.memory.used(tensors, self.layer)
        result = func(*args, **kwargs)
        given = {storage_address(tensor) for tensor in tensors}
        for tensor in tensors_in(result):
            if storage_address(tensor) not in given:
                self.memory.made(tensor)
        return result
