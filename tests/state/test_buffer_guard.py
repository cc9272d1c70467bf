# SPDX-License-Identifier: MIT OR Apache-2.0
"""The guard finds the owner of each buffer wherever it keeps it, and tells when it is another."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch

from metrale_caps.errors import CaptureError, StaleGraphError
from metrale_caps.kernels.graphs import BakedBuffer
from metrale_caps.state.buffer_guard import BufferGuard, Owner

if TYPE_CHECKING:
    from collections.abc import Callable


class Slotted:
    """Keeps its buffer in a slot."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer


@dataclass
class Part:
    """Keeps buffers in containers."""

    table: dict[Any, Any] = field(default_factory=dict[Any, Any])
    row: list[Any] = field(default_factory=list[Any])


class Holder:
    """An owner; each way of keeping a buffer has a place in it."""

    def __init__(self) -> None:
        self.part = Part()
        self.slotted = Slotted(torch.zeros(1))
        self.queue: deque[torch.Tensor] = deque()
        self.module = torch.nn.Linear(2, 2)
        self.itself = self  # a ring is no trap
        self.text = "x" * 50


def _set_part(holder: Holder, buffer: torch.Tensor) -> None:
    holder.part.table = {("a", 1): [buffer]}


def _set_row(holder: Holder, buffer: torch.Tensor) -> None:
    holder.part.row = [None, {"deep": (1, buffer)}]


def _set_slot(holder: Holder, buffer: torch.Tensor) -> None:
    holder.slotted.buffer = buffer


def _set_queue(holder: Holder, buffer: torch.Tensor) -> None:
    holder.queue = deque([torch.ones(3), buffer])


def _set_weight(holder: Holder, buffer: torch.Tensor) -> None:
    holder.module.weight = torch.nn.Parameter(buffer, requires_grad=False)


_WAYS: dict[str, tuple[Callable[[Holder, torch.Tensor], None], str]] = {
    "mapping": (_set_part, "part.table[('a', 1)][0]"),
    "list": (_set_row, "part.row[1]['deep'][1]"),
    "slot": (_set_slot, "slotted.buffer"),
    "deque": (_set_queue, "queue[1]"),
    "module": (_set_weight, "module._parameters['weight']"),
}


def _baked(tensor: torch.Tensor, layer: int | None = 0) -> BakedBuffer:
    return BakedBuffer(tensor.untyped_storage().data_ptr(), layer, tensor)


def _owner(root: object, **values: Any) -> Owner:
    merged: dict[str, Any] = {"name": "the holder", "root": root, "advice": "keep it", "layer": 0, **values}
    return Owner(**merged)


@pytest.mark.parametrize("way", sorted(_WAYS))
def test_replaced_buffer_is_found_wherever_it_is_kept(way: str) -> None:
    """It is named by the way to it; put back, the graph may run again."""
    place, words = _WAYS[way]
    holder, buffer = Holder(), torch.zeros(2, 2)
    place(holder, buffer)
    guard = BufferGuard([_baked(buffer)], [_owner(holder)])
    assert guard.size == 1
    guard.check([])
    place(holder, torch.zeros(2, 2))
    with pytest.raises(StaleGraphError) as caught:
        guard.check([])
    assert (caught.value.owner, caught.value.buffer) == ("the holder", words)
    place(holder, buffer)
    guard.check([])


def test_other_numbers_in_the_same_buffer_are_no_change() -> None:
    """Written in place, it is still the one that the graph holds."""
    holder, buffer = Holder(), torch.zeros(2, 2)
    _set_slot(holder, buffer)
    guard = BufferGuard([_baked(buffer)], [_owner(holder)])
    buffer.fill_(7.0)
    guard.check([])


def test_buffer_that_is_gone_is_stale() -> None:
    """An attribute that was deleted, a list that became shorter, a state that is None."""
    holder, buffer = Holder(), torch.zeros(2, 2)
    _set_row(holder, buffer)
    guard = BufferGuard([_baked(buffer)], [_owner(holder)])
    rows: list[Any] = [[], [None, {}], None]
    for row in rows:
        holder.part.row = row
        with pytest.raises(StaleGraphError):
            guard.check([])
    del holder.part
    with pytest.raises(StaleGraphError):
        guard.check([])


def test_view_that_moved_inside_its_storage_is_stale() -> None:
    """The graph holds the address of the view, not of the storage."""
    holder, whole = Holder(), torch.zeros(8)
    holder.slotted.buffer = whole[2:4]
    guard = BufferGuard([_baked(whole)], [_owner(holder)])
    holder.slotted.buffer = whole[4:6]
    with pytest.raises(StaleGraphError):
        guard.check([])


def test_other_strides_at_the_same_address_are_stale() -> None:
    """A square matrix that was transposed begins where it did."""
    holder, buffer = Holder(), torch.zeros(3, 3)
    holder.slotted.buffer = buffer
    guard = BufferGuard([_baked(buffer)], [_owner(holder)])
    holder.slotted.buffer = buffer.t()
    with pytest.raises(StaleGraphError):
        guard.check([])


def test_state_is_looked_up_in_the_row_that_has_it_now() -> None:
    """A state's buffer is compared with that of the sequence that stands in the row at the replay."""
    first, second = {"buffer": torch.zeros(2)}, {"buffer": torch.zeros(2)}
    owners = [_owner(state, name=f"row {row}", state_of=row) for row, state in enumerate((first, second))]
    guard = BufferGuard([_baked(first["buffer"]), _baked(second["buffer"])], owners)
    guard.check([{0: first}, {0: second}])
    with pytest.raises(StaleGraphError, match="row 0"):
        guard.check([{0: second}, {0: first}])
    with pytest.raises(StaleGraphError, match="row 1"):
        guard.check([{0: first}, {}])


def test_owner_of_the_layer_that_used_a_buffer_comes_first() -> None:
    """A buffer that two layers hold is the one's whose call it was, else the first owner's."""
    shared = torch.zeros(2)
    roots = [[shared] for _ in range(3)]
    owners = [_owner(root, name=f"layer {index}", layer=index) for index, root in enumerate(roots)]
    held = BufferGuard([_baked(shared, layer=2)], owners)
    roots[2].clear()
    with pytest.raises(StaleGraphError, match="layer 2"):
        held.check([])


def test_buffer_without_an_owner_ends_the_capture() -> None:
    """Nobody would tell when it is replaced; the layer that used it is named."""
    with pytest.raises(CaptureError, match=r"in layer 4, a torch.float32 tensor of shape \[2, 3\] is used") as caught:
        BufferGuard([_baked(torch.zeros(2, 3), layer=4)], [_owner(Holder())])
    assert caught.value.layer_index == 4
