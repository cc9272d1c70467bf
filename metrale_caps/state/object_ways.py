# SPDX-License-Identifier: MIT OR Apache-2.0
"""Walks objects: everything below one, with the way to it in attributes, keys and indices."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

Step: TypeAlias = "tuple[str, Hashable]"
"""One step of a way: "attribute" with its name, or "item" with its key or index."""

_MOST_OBJECTS = 100_000
_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, FunctionType, BuiltinFunctionType)


def in_words(way: tuple[Step, ...]) -> str:
    """Return a way as it would be written in code."""
    return "".join(f".{key}" if kind == "attribute" else f"[{key!r}]" for kind, key in way).removeprefix(".")


def objects_below(root: object) -> Iterator[tuple[object, tuple[Step, ...]]]:
    """Yield the object itself and everything below it but numbers and texts, each with the way to it, nearest first.

    What can be reached in several ways is yielded once; a tensor, which may be held twice, each time.
    """
    waiting: deque[tuple[object, tuple[Step, ...]]] = deque([(root, ())])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        item, way = waiting.popleft()
        if isinstance(item, torch.Tensor):
            yield item, way
        elif id(item) not in seen and not isinstance(item, _LEAVES):
            seen.add(id(item))
            yield item, way
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
