# SPDX-License-Identifier: MIT OR Apache-2.0
"""Values of small tensors and facts about devices, typed where torch's own annotations are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

if TYPE_CHECKING:
    from torch import Tensor


def host_integers(tensor: Tensor) -> list[int]:
    """Return the elements of a one-dimensional integer tensor; on a GPU this waits for it."""
    return cast("list[int]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU."""
    properties = torch.cuda.get_device_properties(device)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return cast("int", properties.multi_processor_count)  # pyright: ignore[reportUnknownMemberType]
