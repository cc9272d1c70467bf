# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which memory a step reads and writes that was there before it."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class BakedBuffer:
    """Memory from outside a step whose address the step holds.

    Attributes:
        storage: address of the storage's first byte.
        layer: index of the layer that used it first, or None outside the stack.
        tensor: a tensor over it; it keeps the memory from being handed out again while the graph lives.
    """

    storage: int
    layer: int | None
    tensor: torch.Tensor


def tensors_in(arguments: object) -> list[torch.Tensor]:
    """Return the tensors among arguments, those inside containers and dataclasses too."""
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            found.extend(tensors_in([getattr(leaf, field.name) for field in fields(leaf)]))
    return found


def storage_address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage, which all its views share."""
    return tensor.untyped_storage().data_ptr()


class MemoryNotes:
    """Tells a step's own memory from what was there before.

    Attributes:
        external: memory from outside, by the address of its storage.
    """

    def __init__(self) -> None:
        self.external: dict[int, BakedBuffer] = {}
        self._own: dict[int, torch.Tensor] = {}  # tensors, so that an address is not handed out twice

    def made(self, tensor: torch.Tensor) -> None:
        """Note memory that the step made itself."""
        self._own[storage_address(tensor)] = tensor

    def is_own(self, tensor: torch.Tensor) -> bool:
        """Return whether the step made a tensor's memory."""
        return storage_address(tensor) in self._own

    def used(self, tensors: Iterable[torch.Tensor], layer: int | None) -> None:
        """Note memory that a call of the step names."""
        for tensor in tensors:
            address = storage_address(tensor)
            if address and address not in self._own and address not in self.external:
                self.external[address] = BakedBuffer(address, layer, tensor)
