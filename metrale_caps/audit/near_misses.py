# SPDX-License-Identifier: MIT OR Apache-2.0
"""Names that were meant to be another: a method one slip away from a name of the contract is never called."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from metrale_caps.capabilities import PARTS
from metrale_caps.layer import FORWARD_STUBS
from metrale_caps.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from metrale_caps.queries import QueryName

_SLIPS = 2
_SLIPS_OF_FORWARD_METHOD = 1
_SHORTEST_FORWARD_METHOD = 10
"""Below this length other words are one slip away: `decoder`, `decide`, `refill`."""
_SHORT_WORD = 3
"""A word of this length with two slips in it is another word: `dsa` for `ssm`."""
_NAMES = (*QUERIES, PARTS)
"""The names that are taken for meant in spite of two slips."""

_OPPOSITES: Mapping[str, QueryName] = {
    opposite.replace("_", ""): name
    for name in QUERIES
    for opposite in (
        (f"{name.removesuffix('_unsupported')}_supported", f"supports_{name.removesuffix('_unsupported')}")
        if name.endswith("_unsupported")
        else (f"{name.removeprefix('supports_')}_unsupported",) * name.startswith("supports_")
    )
}


def intended_name(name: str, beside: Container[str]) -> str | None:
    """Return the name of the contract that a public attribute's name was meant to be, or None.

    Args:
        name: of the attribute.
        beside: the other names of the same class. Where the intended name is among them, `name` is one of its own.
    """
    intended = None if name.startswith("_") else _nearest(name)
    return None if intended is None or intended in beside else intended


def opposite_query(name: str) -> QueryName | None:
    """Return the query to which a public attribute's name would be the opposite answer, or None."""
    return None if name.startswith("_") or name in QUERIES else _OPPOSITES.get(_folded(name))


@functools.lru_cache(maxsize=4096)
def _nearest(name: str) -> str | None:
    if name in _NAMES or name in FORWARD_STUBS:
        return None
    for query in _NAMES:
        slipped = _slips(name, query, _SLIPS) <= _SLIPS and not _has_another_word(name, query)
        if _folded(name) == _folded(query) or slipped:
            return query
    for method in FORWARD_STUBS:
        if name.rstrip("0123456789") == method.rstrip("0123456789"):
            continue  # another number is another name
        if len(method) < _SHORTEST_FORWARD_METHOD:
            if _is_slip_of_a_short_name(name, method):
                return method
        elif _folded(name) == _folded(method) or _slips(name, method, _SLIPS_OF_FORWARD_METHOD) <= 1:
            return method
    return None


def _has_another_word(name: str, intended: str) -> bool:
    words, meant = name.lower().split("_"), intended.split("_")
    return len(words) == len(meant) and any(
        len(intended_word) <= _SHORT_WORD and _slips(word, intended_word, 1) > 1
        for word, intended_word in zip(words, meant, strict=True)
    )


def _is_slip_of_a_short_name(name: str, method: str) -> bool:
    """Return whether a letter was left out, doubled or swapped, or an underscore or a capital put in.

    A constant, a nested class, another letter in place of one, and a letter more at the end make other words.
    """
    if not name.startswith(method[0]) or name.endswith("_"):
        return False
    if _folded(name) == method:
        return True
    other_letter = len(name) == len(method) and sorted(name) != sorted(method)
    other_ending = name.startswith(method) and name[-1] != method[-1]
    return not other_letter and not other_ending and _slips(name, method, 1) == 1


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
