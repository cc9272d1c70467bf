# SPDX-License-Identifier: MIT OR Apache-2.0
"""Whether the buffers that a graph baked still belong to those who owned them when it was captured.

At the capture each baked buffer is looked for in the objects that may own it, and the way to it is noted: attributes,
keys and indices from the owner down to a tensor. Before a replay every way is gone again; another address at its end
means that the owner has replaced the buffer, and that the graph would read and write what nobody looks at any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch

from metrale_caps.errors import CaptureError, StaleGraphError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from metrale_caps.kernels.graphs import BakedBuffer

Step: TypeAlias = "tuple[str, Hashable]"
"""One step of a way: "attribute" with its name, or "item" with its key or index."""

_MOST_OBJECTS = 100_000
_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, FunctionType, BuiltinFunctionType)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Someone whose buffers a graph may bake.

    Attributes:
        name: how errors call it.
        root: the object, or None where `state_of` says which it is at each replay.
        layer: index of the layer it belongs to, or None for a part of the engine.
        state_of: for a layer's own state: the row of the step whose sequence has it.
        advice: what to do if a buffer of it has moved.
    """

    name: str
    root: object
    advice: str
    layer: int | None = None
    state_of: int | None = None


@dataclass(frozen=True, slots=True)
class _Watched:
    """The buffers of one owner: for each the way as a function, the address at its end, and the way in words."""

    owner: Owner
    buffers: tuple[tuple[Callable[[Any], Any], int, str], ...]


class BufferGuard:
    """The baked buffers of one graph with their owners."""

    def __init__(self, baked: Iterable[BakedBuffer], owners: Sequence[Owner]) -> None:
        """Find the owner of each buffer.

        Args:
            baked: the graph's buffers.
            owners: who may own them; the first that has a buffer, of those of its own layer before the others, is it.

        Raises:
            CaptureError: nobody owns a buffer, so that nothing would tell when it is replaced.
        """
        places = _places(owners)
        watched: dict[int, list[tuple[Callable[[Any], Any], int, str]]] = {}
        for buffer in baked:
            candidates = places.get(buffer.storage)
            if candidates is None:
                raise CaptureError(_unowned(buffer), buffer.layer)
            index, way, tensor = min(candidates, key=lambda one: (owners[one[0]].layer != buffer.layer, one[0]))
            watched.setdefault(index, []).append((_getter(way), tensor.data_ptr(), in_words(way)))
        self._watched = tuple(_Watched(owners[index], tuple(buffers)) for index, buffers in watched.items())

    @property
    def size(self) -> int:
        """Number of buffers that are looked at before a replay."""
        return sum(len(watched.buffers) for watched in self._watched)

    def check(self, states: Sequence[Mapping[int, object]]) -> None:
        """Look at every buffer.

        Args:
            states: for each row of the step, its sequence's states by layer index.

        Raises:
            StaleGraphError: a buffer has moved; the first is named with its owner.
        """
        for watched in self._watched:
            owner = watched.owner
            root = owner.root if owner.state_of is None else states[owner.state_of].get(cast("int", owner.layer))
            for get, address, way in watched.buffers:
                try:
                    current = get(root).data_ptr()
                except (AttributeError, LookupError, TypeError):
                    current = None
                if current != address:
                    raise StaleGraphError(owner.name, way or "its tensor", owner.advice)


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


def in_words(way: tuple[Step, ...]) -> str:
    """Return a way as it would be written in code."""
    return "".join(f".{key}" if kind == "attribute" else f"[{key!r}]" for kind, key in way).removeprefix(".")


def _places(owners: Sequence[Owner]) -> dict[int, list[tuple[int, tuple[Step, ...], torch.Tensor]]]:
    """Return who holds a tensor over which storage: the owner's index, the shortest way, and the tensor."""
    places: dict[int, list[tuple[int, tuple[Step, ...], torch.Tensor]]] = {}
    for index, owner in enumerate(owners):
        found: set[int] = set()
        for way, tensor in _tensors(owner.root):
            storage = tensor.untyped_storage().data_ptr()
            if storage not in found:
                found.add(storage)
                places.setdefault(storage, []).append((index, way, tensor))
    return places


def _tensors(root: object) -> Iterator[tuple[tuple[Step, ...], torch.Tensor]]:
    """Yield each tensor below an object with the way to it, those nearest to it first."""
    waiting: deque[tuple[object, tuple[Step, ...]]] = deque([(root, ())])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        item, way = waiting.popleft()
        if isinstance(item, torch.Tensor):
            yield way, item
        elif id(item) not in seen and not isinstance(item, _LEAVES):
            seen.add(id(item))
            waiting.extend((value, (*way, step)) for step, value in _parts(item))


def _parts(item: object) -> Iterator[tuple[Step, object]]:
    """Yield what an object holds, each part with the step to it."""
    if isinstance(item, Mapping):
        entries = cast("Mapping[Hashable, object]", item)
        yield from ((("item", key), value) for key, value in tuple(entries.items()))
    elif isinstance(item, (list, tuple, deque)):
        yield from ((("item", index), value) for index, value in enumerate(tuple(cast("Iterable[object]", item))))
    holder = cast("Any", item)
    attributes: dict[str, object] = getattr(holder, "__dict__", {})
    yield from ((("attribute", name), value) for name, value in tuple(attributes.items()))
    for kind in type(holder).__mro__:
        slots: Any = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if not name.startswith("__") and hasattr(holder, name):
                yield ("attribute", name), getattr(holder, name)
