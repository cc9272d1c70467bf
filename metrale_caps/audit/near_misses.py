# SPDX-License-Identifier: MIT OR Apache-2.0
"""Names that were meant to be another: a method one slip away from a name of the contract is never called."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from metrale_caps.layer import FORWARD_STUBS
from metrale_caps.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Container

_SLIPS = 2
_SLIPS_OF_FORWARD_METHOD = 1
_SHORTEST_FORWARD_METHOD = 10
"""Below this length other words are one slip away: `encode`, `refill`."""


def intended_name(name: str, beside: Container[str]) -> str | None:
    """Return the name of the contract that a public attribute's name was meant to be, or None.

    Args:
        name: of the attribute.
        beside: the other names of the same class. Where the intended name is among them, `name` is one of its own.
    """
    intended = None if name.startswith("_") else _nearest(name)
    return None if intended is None or intended in beside else intended


@functools.lru_cache(maxsize=4096)
def _nearest(name: str) -> str | None:
    if name in QUERIES or name in FORWARD_STUBS:
        return None
    for query in QUERIES:
        if _folded(name) == _folded(query) or _slips(name, query, _SLIPS) <= _SLIPS:
            return query
    for method in FORWARD_STUBS:
        if len(method) < _SHORTEST_FORWARD_METHOD or name.rstrip("0123456789") == method.rstrip("0123456789"):
            continue  # another number is another name
        if _folded(name) == _folded(method) or _slips(name, method, _SLIPS_OF_FORWARD_METHOD) <= 1:
            return method
    return None


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


def _slips(first: str, second: str, enough: int) -> int:
    """Return how many letters must be changed, put in, left out or swapped with their neighbour (Damerau, 1964).

    Above `enough` the exact number does not matter.
    """
    if abs(len(first) - len(second)) > enough:
        return enough + 1
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, start=1):
        last, before, row = before, row, [i]
        for j, other in enumerate(second, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            swapped = i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == other
            row.append(min(cost, last[j - 2] + 1) if swapped else cost)
    return row[-1]
