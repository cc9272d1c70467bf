# SPDX-License-Identifier: MIT OR Apache-2.0
"""How long work says where it is."""

from __future__ import annotations

from typing_extensions import Protocol


class Progress(Protocol):
    """Told of each stage of long work."""

    def __call__(self, stage: str, done: int = 0, total: int | None = None, /) -> None:
        """Take note of a stage; `total` is None where it is not known how much there is to do."""
        ...


def silent(_stage: str, _done: int = 0, _total: int | None = None, /) -> None:
    """Say nothing."""
