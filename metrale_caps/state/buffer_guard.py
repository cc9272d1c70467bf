# SPDX-License-Identifier: MIT OR Apache-2.0
"""Whether the buffers that a graph baked still belong to those who owned them when it was captured.

At the capture each baked buffer is looked for in the objects that may own it, and the way to it is noted: attributes,
keys and indices from the owner down to a tensor. Before a replay every way is gone again; another address at its end
means that the owner has replaced the buffer, and that the graph would read and write what nobody looks at any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch

from metrale_caps.errors import CaptureError, StaleGraphError
from metrale_caps.state.object_ways import Step, in_words, objects_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from metrale_caps.kernels.graphs import BakedBuffer

_HANDLES = (int, str, bytes, tuple)
"""Types of a state that is a handle: it says which of the layer's buffers is the sequence's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Someone whose buffers a graph may bake.

    Attributes:
        name: how errors call it.
        root: the object, or None where `state_of` says which it is at each replay.
        layer: index of the layer it belongs to, or None for a part of the engine.
        state_of: for a layer's own state: the row of the step whose sequence has it.
        advice: what to do if a buffer of it has moved.
        sole: whether what others hold of its buffers does not matter, such as a context that a layer has kept.
    """

    name: str
    root: object
    advice: str
    layer: int | None = None
    state_of: int | None = None
    sole: bool = False


Layout: TypeAlias = "tuple[int, torch.Size, tuple[int, ...], torch.dtype]"
"""What a graph baked of a tensor: address, shape, strides and type."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """The buffers of one owner."""

    owner: Owner
    buffers: tuple[_Buffer, ...]


_Buffer: TypeAlias = "tuple[Callable[[Any], Any], torch.Tensor, Layout, str]"
"""The way as a function, the tensor that stood at its end, what was baked of it, and the way in words."""


class BufferGuard:
    """The baked buffers of one graph with their owners."""

    def __init__(self, baked: Iterable[BakedBuffer], owners: Sequence[Owner]) -> None:
        """Find the owners of each buffer.

        Every tensor over a baked storage is watched wherever an owner holds it, but for storages of a sole owner.

        Args:
            baked: the graph's buffers.
            owners: who may own them.

        Raises:
            CaptureError: nobody owns a buffer, so that nothing would tell when it is replaced.
        """
        places = _places(owners)
        watched: dict[int, list[_Buffer]] = {}
        for buffer in baked:
            held = places.get(buffer.storage)
            if held is None:
                raise CaptureError(_unowned(buffer), buffer.layer)
            sole = {index for index, _, _ in held if owners[index].sole}
            for index, way, tensor in held:
                if not sole or index in sole:
                    watched.setdefault(index, []).append((_getter(way), tensor, _layout(tensor), in_words(way)))
        self._watched = tuple(_Watched(owners[index], tuple(watched[index])) for index in sorted(watched))
        handles = [owner for owner in owners if owner.state_of is not None and isinstance(owner.root, _HANDLES)]
        self._handles = tuple(handles)

    @property
    def size(self) -> int:
        """Number of tensors that are looked at before a replay."""
        return sum(len(watched.buffers) for watched in self._watched)

    def check(self, states: Sequence[Mapping[int, object]]) -> None:
        """Look at every tensor.

        Args:
            states: for each row of the step, its sequence's states by layer index.

        Raises:
            StaleGraphError: a buffer has moved; the first is named with its owner.
        """
        for watched in self._watched:
            owner, root = watched.owner, _root(watched.owner, states)
            for get, tensor, layout, way in watched.buffers:
                try:
                    current = get(root)
                    # the same tensor can have been given other memory; its layout it keeps
                    same = current.data_ptr() == layout[0] and (current is tensor or _layout(current) == layout)
                except (AttributeError, LookupError, TypeError):
                    same = False
                if not same:
                    raise StaleGraphError(owner.name, way or "its tensor", owner.advice)
        for owner in self._handles:
            if _root(owner, states) != owner.root:
                raise StaleGraphError(owner.name, "the handle that it is", owner.advice)


def _root(owner: Owner, states: Sequence[Mapping[int, object]]) -> object:
    return owner.root if owner.state_of is None else states[owner.state_of].get(cast("int", owner.layer))


def _layout(tensor: Any) -> Layout:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _unowned(buffer: BakedBuffer) -> str:
    shape = list(buffer.tensor.shape)
    return (
        f"a {buffer.tensor.dtype} tensor of shape {shape} is used that neither the layer, nor its state, nor the "
        "engine holds, so that nothing would tell when it is replaced; keep it as an attribute of the layer or its "
        "state"
    )


def _getter(way: tuple[Step, ...]) -> Callable[[Any], Any]:
    """Return the way as a function; runs of attributes are followed by one C call."""
    functions: list[Callable[[Any], Any]] = []
    names: list[str] = []
    for kind, key in way:
        if kind == "attribute":
            names.append(str(key))
            continue
        if names:
            functions.append(attrgetter(".".join(names)))
            names = []
        functions.append(itemgetter(key))
    if names:
        functions.append(attrgetter(".".join(names)))
    if len(functions) == 1:
        return functions[0]

    def follow(root: Any) -> Any:
        for function in functions:
            root = function(root)
        return root

    return follow


def _places(owners: Sequence[Owner]) -> dict[int, list[tuple[int, tuple[Step, ...], torch.Tensor]]]:
    """Return who holds tensors over which storage: the owner's index, the way, and the tensor."""
    places: dict[int, list[tuple[int, tuple[Step, ...], torch.Tensor]]] = {}
    for index, owner in enumerate(owners):
        for item, way in objects_below(owner.root):
            if isinstance(item, torch.Tensor):
                places.setdefault(item.untyped_storage().data_ptr(), []).append((index, way, item))
    return places
