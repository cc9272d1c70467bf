# SPDX-License-Identifier: MIT OR Apache-2.0
"""What objects hold on the host, so that it can be put back after code ran over tensors without numbers in them."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, cast

import torch

from metrale_caps.state.object_ways import in_words, objects_below

if TYPE_CHECKING:
    from collections.abc import Iterable

    from metrale_caps.state.object_ways import Step

_GONE = object()


class HostState:
    """Attributes, entries and items of everything below some objects, at one moment."""

    def __init__(self, roots: Iterable[tuple[str, object]]) -> None:
        """Look at everything below some objects, each with how errors call it."""
        self._kept: list[tuple[str, Any, tuple[Step, ...], dict[Any, Any]]] = []
        for name, root in roots:
            for item, way in objects_below(root):
                content = _content(item)
                if content is not None:
                    self._kept.append((name, item, way, content))

    def replaced_tensor(self) -> str | None:
        """Return whose tensor is no longer the one it was, and the way to it, or None."""
        for name, item, way, content in self._kept:
            current = _content(item) or {}
            for key, value in content.items():
                if isinstance(value, torch.Tensor) and current.get(key) is not value:
                    kind = "item" if isinstance(item, (MutableMapping, list)) else "attribute"
                    return f"`{in_words((*way, (kind, key)))}` of {name}"
        return None

    def restore(self) -> None:
        """Put back what has changed."""
        for _, item, _, content in self._kept:
            current = _content(item) or {}
            if len(current) == len(content) and all(current.get(key, _GONE) is content[key] for key in content):
                continue
            if isinstance(item, list):
                cast("list[Any]", item)[:] = content.values()
                continue
            entries = cast("dict[Any, Any]", item if isinstance(item, MutableMapping) else vars(item))
            entries.clear()
            entries.update(content)


def _content(item: Any) -> dict[Any, Any] | None:
    if isinstance(item, MutableMapping):
        return dict(cast("MutableMapping[Any, Any]", item))
    if isinstance(item, list):
        return dict(enumerate(cast("list[Any]", item)))
    attributes: object = getattr(item, "__dict__", None)
    return dict(cast("dict[str, Any]", attributes)) if isinstance(attributes, dict) else None
