# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a plugin's entry point has to name, and what it has to register."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrale_caps.errors import PluginDeclarationError

if TYPE_CHECKING:
    from collections.abc import Sequence

_WRITE = "write `def register(registrar): registrar.add(name, build, example=example)` and name that"


def check_target(value: str, target: object) -> None:
    """Check what an entry point names, before it is called.

    Raises:
        PluginDeclarationError: it is no function that takes a registrar.
    """
    import inspect

    expected = "an entry point names a function that takes a LayerRegistrar"
    if isinstance(target, type):
        raise PluginDeclarationError([f"{value!r} is the class {target.__name__}, but {expected}; {_WRITE}"])
    kind = type(target).__name__
    if not callable(target):
        raise PluginDeclarationError([f"{value!r} is a {kind} and cannot be called; {expected}; {_WRITE}"])
    if hasattr(type(target), "decode"):
        raise PluginDeclarationError([f"{value!r} is a layer, a {kind}, but {expected}; {_WRITE}"])
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # some callables of other languages tell nothing
        return
    try:
        signature.bind(target)
    except TypeError as error:
        raise PluginDeclarationError(
            [f"{value!r} cannot be called with one argument ({error}), but {expected}"]
        ) from error


def registration_faults(layers: Sequence[tuple[object, object, object]], returned: object) -> list[str]:
    """Return what is wrong with the name, build and example of each registered layer, and what was returned.

    A coroutine among the latter is closed.
    """
    import inspect
    import re

    faults: list[str] = []
    if inspect.iscoroutine(returned):
        returned.close()  # it is never awaited, and Python would warn of that
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        faults.append(f"its function returned a {type(returned).__name__}; expected an ordinary function, not async")
    elif not layers:
        came = "" if returned is None else f" and returned a {type(returned).__name__}"
        faults.append(f"it registered nothing{came}; call `registrar.add(name, build, example=example)`")
    seen: set[str] = set()
    for name, build, example in layers:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            faults.append(f"it registers a layer as {name!r}; expected a name of letters, digits, `_`, `.` and `-`")
        elif name in seen:
            faults.append(f"it registers {name!r} twice; each layer needs a name of its own")
        else:
            seen.add(name)
        for what, given in (("build", build), ("example", example)):
            if not callable(given):
                faults.append(f"{what} of {name!r} is a {type(given).__name__}; expected something that can be called")
    return faults
