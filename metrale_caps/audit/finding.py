# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a finding is: a fault that no call would show, with the place to mend it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from metrale_caps.audit.source_place import Place


class FindingKind(Enum):
    """What kind of fault a finding is."""

    MISSPELT = "misspelt"
    """A public attribute is a slip away from a name of the contract, under which nothing will look."""
    MALFORMED = "malformed"
    """What stands under a query's name is no answer."""
    RAISING = "raising"
    """Asking raised an exception of the layer's own."""
    HIDDEN = "hidden capability"
    """A part of the layer answers a query, and the layer itself does not."""
    CONTRADICTION = "contradiction"
    """An answer obliges the layer to have a method that it lacks."""
    UNSTABLE = "unstable"
    """The answer to a query that is asked once was another the second time."""
    SIDE_EFFECT = "side effect"
    """Asking changed the layer."""


def text_of(error: Exception) -> str:
    """Return what an exception of a layer says, whose own code may fail to say it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the code is the layer's
        return "its text cannot be shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault.

    Attributes:
        kind: what kind of fault it is.
        layer_type: qualified name of the layer's class.
        name: the query or method that it is about.
        message: what was found and what to do, without the layer.
        place: where to mend it, or None where the source is not to be had.
        layer_index: position in the stack, or None for a layer on its own.
        error: the exception behind it, or None.
    """

    kind: FindingKind
    layer_type: str
    name: str
    message: str
    place: Place | None = None
    layer_index: int | None = None
    error: Exception | None = field(default=None, compare=False)

    @override
    def __str__(self) -> str:
        who = self.layer_type if self.layer_index is None else f"layer {self.layer_index} ({self.layer_type})"
        return f"{who} {self.message}"

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return {
            "kind": self.kind.value,
            "layer_type": self.layer_type,
            "layer_index": self.layer_index,
            "name": self.name,
            "message": self.message,
            "file": self.place.file if self.place else None,
            "line": self.place.line if self.place else None,
        }
