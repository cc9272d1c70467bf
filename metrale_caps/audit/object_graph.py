# SPDX-License-Identifier: MIT OR Apache-2.0
"""What an object holds, walked without running any code of it.

Attributes are read from `__dict__` and slots, sub-modules from torch's registries, elements from containers; a bound
method leads to its object. Properties, forwarding and weak references are not followed, and an object that will not be
looked into is passed over. The walk goes level by level and stops after `LIMIT` values that hold others, so that a
layer that holds a whole tokenizer costs milliseconds and not minutes; of numbers and texts so many are named, too.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import deque
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

_T = TypeVar("_T")

LIMIT = 10_000
_LOOKED_AT = 100
"""How many times the limit is looked at in one container, in search of values that hold others."""

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_CLOSED = (*_SCALARS, type, ModuleType, FunctionType, BuiltinFunctionType)
_CONTAINERS = (list, tuple, set, frozenset, deque)
_REGISTRIES = frozenset({"_modules", "_parameters", "_buffers"})
_BOOKKEEPING = frozenset({"training", "_is_full_backward_hook", "_non_persistent_buffers_set"})


def walk(root: object, closed: Collection[int] = ()) -> Iterator[tuple[str, object]]:
    """Yield everything an object holds, with the path that leads there, the nearest first; the object itself not.

    Args:
        root: the object.
        closed: identities of objects that are not yielded and not entered. While the walk is under way it may be
            added to, to close what was just yielded.
    """
    seen = {id(root)}
    waiting: deque[tuple[str, object]] = deque([("self", root)])
    left = plain = LIMIT
    while waiting:
        path, holder = waiting.popleft()
        if holder is not root and id(holder) in closed:
            continue
        for step, value in _held(holder):
            if id(value) in closed:
                continue
            if is_closed(value):
                if plain:
                    plain -= 1
                    yield path + step, value
                continue
            yield path + step, value
            left -= 1
            if not left:
                return
            if id(value) not in seen:
                seen.add(id(value))
                waiting.append((path + step, value))


def is_closed(value: object) -> bool:
    """Return whether nothing is to be found inside a value: numbers, texts, classes, modules, functions."""
    return _is(value, _CLOSED)


def _is(value: object, classes: tuple[type, ...]) -> bool:
    """Return whether a value is of one of the classes in truth, whatever it says of its class."""
    return issubclass(type(value), classes)


def fingerprint(root: object) -> dict[str, object]:
    """Return what tells by comparison whether an object was changed: paths with values, identities and versions."""
    return {path: _token(value) for path, value in walk(root)}


def changed_paths(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return the paths at which two fingerprints differ, in order."""
    return sorted(path for path in {**before, **after} if before.get(path, _NOTHING) != after.get(path, _NOTHING))


_NOTHING = object()
_SMALL = 4096


def _token(value: object) -> object:
    if _is(value, _SCALARS):
        return (type(value).__name__, _shown(value))
    content = None
    with contextlib.suppress(Exception):  # an inference tensor, for one, has no count of writes
        content = _content(value)
    return (id(value), content, _Held(value))


def _content(value: object) -> object:
    module = type(value).__module__.partition(".")[0]
    if module == "numpy" and getattr(value, "nbytes", _SMALL + 1) <= _SMALL:
        return cast("Any", value).tobytes()
    # torch counts the writes to a tensor; nothing is read from a device
    return getattr(value, "_version", None) if module == "torch" else None


def _shown(value: object) -> str:
    """Return the text of a number or text, whatever a subclass makes of it."""
    kind: Any = next(scalar for scalar in _SCALARS if _is(value, (scalar,)))
    return kind.__repr__(value)


class _Held:
    """Keeps an object alive, so that no other one gets its identity, and equals any other of its kind."""

    __slots__ = ("value",)
    __hash__ = object.__hash__

    def __init__(self, value: object) -> None:
        self.value = value

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)


def _held(holder: object) -> Iterator[tuple[str, object]]:
    if _is(holder, (dict,)):
        # as a dictionary, whatever a subclass makes of its items
        items = dict[object, object].items(cast("dict[object, object]", holder))
        for key, value in _first_of(items):
            if _is(key, _SCALARS):
                yield f"[{_shown(key)}]", value
            else:
                yield "[...]", value
                yield ".keys()", key
    elif _is(holder, _CONTAINERS):
        kind = next(container for container in _CONTAINERS if _is(holder, (container,)))
        elements = _first_of(cast("Any", kind).__iter__(holder))
        yield from ((f"[{index}]", value) for index, value in enumerate(elements))
    elif type(holder) is MethodType:
        yield ".__self__", holder.__self__
    elif _is(holder, (functools.partial,)):
        partial = cast("functools.partial[object]", holder)
        yield from ((".func", partial.func), (".args", partial.args), (".keywords", partial.keywords))
        return
    yield from ((f".{name}", value) for name, value in attributes_of(holder))


def _first_of(elements: Iterable[_T]) -> list[_T]:
    """Return the elements of a container as it is now; it may change while the walk is under way."""
    return list(itertools.islice(elements, LIMIT * _LOOKED_AT))


def attributes_of(holder: object) -> Iterator[tuple[str, object]]:
    """Yield an object's own attributes, its filled slots among them, and the sub-modules of a torch module."""
    attributes: dict[str, object] = {}
    with contextlib.suppress(Exception):  # there is none, or the class puts something else under the name
        attributes = object.__getattribute__(holder, "__dict__")
    if not _is(attributes, (dict,)):
        attributes = {}
    for name, value in list(dict[str, object].items(attributes)):
        if type(name) is not str:
            continue
        if name in _REGISTRIES and _is(value, (dict,)):
            yield from list(dict[str, object].items(cast("dict[str, object]", value)))
        elif not ("_modules" in attributes and _is_bookkeeping(name)):
            yield name, value
    yield from _filled_slots(holder)


def _is_bookkeeping(name: str) -> bool:
    """Return whether an attribute is one that torch gives to every module."""
    return name in _BOOKKEEPING or (name.startswith("_") and "_hooks" in name)


def _filled_slots(holder: object) -> Iterator[tuple[str, object]]:
    for base in type(holder).__mro__:
        if "__slots__" not in vars(base):
            continue
        for name, member in vars(base).items():
            if isinstance(member, MemberDescriptorType):
                try:
                    yield name, member.__get__(holder, type(holder))
                except AttributeError:  # never filled
                    continue
