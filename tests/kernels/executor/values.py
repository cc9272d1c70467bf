# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tensors to and from plain values, with types that torch's own annotations leave open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


def listed(tensor: torch.Tensor) -> list[Any]:
    """The elements, as nested lists of Python numbers."""
    return cast("list[Any]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


def shared(array: NDArray[Any]) -> torch.Tensor:
    """A tensor over the array's memory."""
    return torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]
