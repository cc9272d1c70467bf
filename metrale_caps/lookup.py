# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds a layer's method the way a call would, without evaluating anything else of the layer.

A method that is only the body-less stub of one of this package's protocols counts as missing: inheriting a protocol
declares nothing.

What is remembered of a class is where to look, never what was found there: the namespaces of its bases are live, so
a method that is put on a class or on an instance later is seen by the next question. Only whether the class forwards
attributes (`__getattr__`, `__getattribute__`) is looked at once.
"""

from __future__ import annotations

import typing
from enum import Enum
from types import FunctionType, MemberDescriptorType, MethodType
from typing import Any, cast

from metrale_caps.tracing import never_trace, torch_module_was_seen


class Absence(Enum):
    """Why a layer itself has nothing under a name."""

    MISSING = "there is nothing"
    FORWARDS = "the layer forwards the attribute, so something behind it may have it"
    CLASS = "the layer is a class rather than an instance"


MISSING = Absence.MISSING
_REGISTRIES = ("_modules", "_parameters", "_buffers")
_REMEMBERED_CLASSES = 1024


class _Shape:
    """Where the attributes of a class's instances are.

    Attributes:
        mro: the order of bases that the rest was made from.
        namespaces: the live namespace of each base but `object`, in that order.
        has_dict: whether instances have attributes of their own outside slots.
        registers: whether instances are torch modules, whose parameters, buffers and sub-modules are in registries.
        absence: what it means that none of these has a name.
    """

    __slots__ = ("absence", "has_dict", "mro", "namespaces", "registers")

    def __init__(self, cls: type) -> None:
        self.mro = cls.__mro__
        forward = getattr(cls, "__getattr__", None)
        self.registers = _is_torch_module_s(forward)
        if type in self.mro:
            self.absence = Absence.CLASS
        elif _is_transparent(cls) or not (forward is None or self.registers):
            self.absence = Absence.FORWARDS
        else:
            self.absence = Absence.MISSING
        looked_at = self.absence is not Absence.CLASS and not _is_transparent(cls)
        self.has_dict = looked_at and cls.__dictoffset__ != 0
        self.namespaces = tuple(vars(base) for base in self.mro[:-1]) if looked_at else ()


_shapes: dict[type, _Shape] = {}


def own_member(layer: object, name: str, stub: object) -> object:
    """Return what the layer itself has under `name`, bound to it; nothing is forwarded, no property is evaluated.

    Args:
        layer: an instance.
        name: of the method.
        stub: the protocol's function of that name.

    Returns:
        The bound method, or whatever else stands there (a property as itself), or an `Absence`.
    """
    cls = type(layer)
    shape = _shapes.get(cls)
    if shape is None or shape.mro is not cls.__mro__:
        shape = _remember(cls)
    if shape.has_dict:
        attributes = layer.__dict__
        if name in attributes:
            return _of_instance(layer, shape, name, attributes[name])
        if shape.registers:
            for registry in _REGISTRIES:
                # a module whose constructor has not run has none
                if name in attributes.get(registry, ()):
                    return attributes[registry][name]
    for namespace in shape.namespaces:
        if name in namespace:
            found = namespace[name]
            if found is not stub:
                return MethodType(found, layer) if type(found) is FunctionType else _bound(layer, found)
    return shape.absence


def forwarded_member(layer: object, name: str, stub: object) -> object:
    """Return what a layer that forwards attributes gives for `name`, or `MISSING`.

    Raises:
        Exception: what forwarding code of the layer raises, except that the attribute is missing.
    """
    if typing.get_origin(layer) is not None:  # a generic class with its arguments forwards to the class
        return Absence.CLASS
    cls = type(layer)
    forward: Any = getattr if _is_transparent(cls) else cast("Any", cls).__getattr__
    try:
        found = forward(layer, name)
    except AttributeError as error:
        # Python names the attribute that was missing, so that another one, missing inside the forwarding code, shows
        if error.name is None or error.name == name:
            return MISSING
        error.add_note(f"raised while {name!r} was looked up")
        raise
    return MISSING if getattr(found, "__func__", None) is stub else found


def find_member(layer: object, name: str, stub: object) -> object:
    """Return what a call of `layer.name` would find, itself or by forwarding, or an `Absence`; see both."""
    found = own_member(layer, name, stub)
    return forwarded_member(layer, name, stub) if found is Absence.FORWARDS else found


def class_member(cls: type, name: str, stub: object) -> object:
    """Return what a class or its bases have under `name`, unbound, or `MISSING`."""
    for base in cls.__mro__[:-1]:
        found = cast("object", vars(base).get(name, MISSING))
        if found is not MISSING and found is not stub:
            return found
    return MISSING


def _remember(cls: type) -> _Shape:
    if len(_shapes) >= _REMEMBERED_CLASSES:  # classes made by the thousand, as mocks are, must not pile up
        _shapes.clear()
    shape = _shapes[cls] = _Shape(cls)
    if shape.registers:
        torch_module_was_seen()
    return shape


def _is_transparent(cls: type) -> bool:
    return cls.__getattribute__ is not object.__getattribute__


def _is_torch_module_s(forward: object) -> bool:
    """Return whether it is `torch.nn.Module.__getattr__`, which serves registries and raises slowly for all else."""
    return (
        getattr(forward, "__module__", None) == "torch.nn.modules.module"
        and getattr(forward, "__qualname__", None) == "Module.__getattr__"
    )


def _of_instance(layer: object, shape: _Shape, name: str, own: object) -> object:
    for namespace in shape.namespaces:
        found = cast("object", namespace.get(name))
        if hasattr(type(found), "__set__"):  # a property of the class goes before an attribute of the instance
            return _bound(layer, found)
    return own


def _bound(layer: object, found: object) -> object:
    bind: Any = getattr(type(found), "__get__", None)
    if bind is None or isinstance(found, property):
        return found
    if hasattr(type(found), "__set_name__") and not callable(found):  # a cached property, of whatever library
        return found
    try:
        return bind(found, layer, type(layer))
    except AttributeError:
        if isinstance(found, MemberDescriptorType):  # a slot that was never filled
            return MISSING
        raise


never_trace(own_member, forwarded_member, _remember)
