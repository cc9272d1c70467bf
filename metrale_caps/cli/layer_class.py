# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes the layer that `module:Class` names, and turns whatever its code raises into one of our errors."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

from metrale_caps.errors import ConfigurationError, MetraleError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


def names_class(target: str) -> bool:
    """Return whether a target has the form `module:Class`."""
    module, colon, name = target.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def make_layer(target: str) -> object:
    """Import a class, or a function that makes a layer, and call it.

    Raises:
        ConfigurationError: it is not there, needs arguments, or raised something.
    """
    with _working_folder_importable():
        with foreign_code(target, "importing it"):
            found = _find(target)
        if not callable(found):
            kind = type(found).__name__
            raise ConfigurationError(f"{target!r} is {kind}, not a class or a function that makes a layer")
        _refuse_arguments(target, found)
        with foreign_code(target, "making it"):
            return found()


@contextlib.contextmanager
def foreign_code(target: str, doing: str) -> Generator[None]:
    """Run code of the user's, which may raise anything.

    Raises:
        ConfigurationError: it raised what is none of our errors; the cause's type and text are named.
    """
    try:
        yield
    except (MetraleError, KeyboardInterrupt):
        raise
    except BaseException as error:  # `sys.exit` is no reason to leave either
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ConfigurationError(f"{target!r} cannot be explained: {doing} raised {reason}") from error


def _find(target: str) -> object:
    module_name, _, name = target.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _refuse_arguments(target: str, found: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # some callables of other languages tell nothing
        return
    try:
        signature.bind()
    except TypeError as error:
        raise ConfigurationError(
            f"{target!r} cannot be made without arguments ({error}); name a function that makes the layer"
        ) from error


@contextlib.contextmanager
def _working_folder_importable() -> Generator[None]:
    """Find a module beside the user, as with `python -m`."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove("")
