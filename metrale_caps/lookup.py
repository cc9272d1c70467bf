# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds a layer's method the way a call would, without evaluating anything else of the layer.

A method that is only the body-less stub of one of this package's protocols counts as missing: inheriting a protocol
declares nothing.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Member:
    """What stands under a name.

    Attributes:
        value: the bound method, or whatever else stands there; a property is not evaluated.
        delegated: whether the layer forwards the attribute to something behind it.
    """

    value: object
    delegated: bool


def find_member(layer: object, name: str, stub: object) -> Member | None:
    """Return what stands under `name`, or None where there is nothing or only `stub`.

    Args:
        layer: an instance.
        name: of the method.
        stub: the protocol's function of that name.

    Raises:
        Exception: what forwarding code of the layer raises, except that the attribute is missing.
    """
    cls = type(layer)
    if cls.__getattribute__ is not object.__getattribute__:
        return _delegated(lambda: getattr(layer, name), name, stub)
    own = _instance_attributes(layer).get(name, _MISSING)
    if own is not _MISSING:
        return Member(own, delegated=False)
    for base in cls.__mro__:
        found = cast("object", vars(base).get(name, _MISSING))
        if found is not _MISSING and found is not stub:
            return _bound(layer, found)
    forward: Any = getattr(cls, "__getattr__", None)
    return None if forward is None else _delegated(lambda: forward(layer, name), name, stub)


def _instance_attributes(layer: object) -> Mapping[str, object]:
    try:
        attributes = object.__getattribute__(layer, "__dict__")
    except AttributeError:
        return {}
    return cast("Mapping[str, object]", attributes) if isinstance(attributes, dict) else {}


def _bound(layer: object, found: object) -> Member | None:
    bind: Any = getattr(type(found), "__get__", None)
    if bind is None or isinstance(found, property) or hasattr(type(found), "__set_name__"):
        return Member(found, delegated=False)
    try:
        return Member(bind(found, layer, type(layer)), delegated=False)
    except AttributeError:
        if isinstance(found, types.MemberDescriptorType):  # a slot that was never filled
            return None
        raise


def _delegated(forward: Any, name: str, stub: object) -> Member | None:
    try:
        value = forward()
    except AttributeError as error:
        # Python names the attribute that was missing, so that another one, missing inside the forwarding code, shows
        if error.name is None or error.name == name:
            return None
        error.add_note(f"raised while {name!r} was looked up")
        raise
    return None if getattr(value, "__func__", None) is stub else Member(value, delegated=True)
