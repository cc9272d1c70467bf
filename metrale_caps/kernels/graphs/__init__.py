# SPDX-License-Identifier: MIT OR Apache-2.0
"""A step captured once and replayed: a CUDA graph on a GPU, a list of recorded calls on a CPU.

Both hold the same: calls with baked addresses. A replay runs no Python of the layers, reads what lies in the fixed
buffers by then, and writes to where the capture said. A capture runs nothing: the step happens at the replay after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrale_caps.kernels.graphs.baked import BakedBuffer as BakedBuffer
from metrale_caps.kernels.graphs.step_graph import StepGraph as StepGraph

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["BakedBuffer", "StepGraph", "capture"]


def capture(body: Callable[[], torch.Tensor], device: torch.device) -> StepGraph:
    """Capture a step without running it.

    Args:
        body: the step; it is called once. Host bookkeeping of layers that it moves is the caller's to take back.
        device: where the step's tensors lie.

    Raises:
        CaptureError: the step does something that a graph cannot hold.
        Exception: whatever the step raises.
    """
    if device.type == "cuda":
        from metrale_caps.kernels.graphs.cuda import capture_cuda

        return capture_cuda(body, device)
    from metrale_caps.kernels.graphs.recorded import capture_recorded

    return capture_recorded(body)
