# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a shipped kernel configuration is: a launch at the shapes of a common model, on tensors without data."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

META = torch.device("meta")
SEQUENCES = 32
BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


class Configuration(NamedTuple):
    """One kernel as one model launches it.

    Attributes:
        kernel: name of the kernel's function; a call may launch more than one kernel.
        call: calls the launcher with tensors that hold no data.
        multiplies: whether the kernel multiplies matrices.
        many_rows: whether it does so for at least 64 rows at a time.
    """

    kernel: str
    call: Callable[[], object]
    multiplies: bool = False
    many_rows: bool = False


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Return a tensor without data."""
    return torch.empty(shape, dtype=dtype, device=META)
