# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where in the source a member of a class stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from metrale_caps.lookup import MISSING, class_member

if TYPE_CHECKING:
    from types import CodeType


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file."""

    file: str
    line: int

    @override
    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def place_of(cls: type, name: str) -> Place | None:
    """Return where a class has a method, else where the class itself begins, or None where there is no source."""
    code = _code(class_member(cls, name, None))
    if code is not None:
        return Place(code.co_filename, code.co_firstlineno)
    import inspect

    try:
        file = inspect.getsourcefile(cls)
        line = inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return None
    return Place(file, line) if file else None


def _code(found: object) -> CodeType | None:
    if found is MISSING:
        return None
    for inner in ("__func__", "fget", "func"):  # static and class methods, properties, partials
        found = getattr(found, inner, found)
    return getattr(found, "__code__", None)
