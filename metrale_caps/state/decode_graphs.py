# SPDX-License-Identifier: MIT OR Apache-2.0
"""The captured steps of an engine: which there are, for which sequences, and until when.

Invariants: a key always names the slots of its sequences, in the order of their rows, so that no other sequence, no
subset and no other order ever replays the graph. A pinned graph is not evicted. Dropping a slot drops the graphs of
every kind that contain it and no others; the dummy slot of padding rows belongs to nobody, so that dropping it, or any
slot past it, drops nothing.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

_Graph = TypeVar("_Graph")
_MOST_REFUSALS = 10_000


class GraphKey(NamedTuple):
    """What a graph was captured for.

    Attributes:
        kind: kind of step, such as "decode" or "verify".
        slots: the slot of each row's sequence, in order, the dummy slot for padding rows.
        rows_per_sequence: rows of each sequence in a verify step, empty for a decode step.
    """

    kind: str
    slots: tuple[int, ...]
    rows_per_sequence: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Kept(Generic[_Graph]):
    graph: _Graph
    pins: int = 0


class DecodeGraphs(Generic[_Graph]):
    """At most `capacity` graphs, the least recently used one evicted first.

    Attributes:
        capacity: graphs kept at most.
        max_slots: claimable slots; the dummy slot and all after it belong to no sequence.
        evictions: graphs that had to give way to another.
        dropped: graphs dropped because a slot changed hands, or all were.
    """

    def __init__(self, capacity: int, max_slots: int) -> None:
        self.capacity = capacity
        self.max_slots = max_slots
        self.evictions: int = 0
        self.dropped: int = 0
        self._kept: OrderedDict[GraphKey, _Kept[_Graph]] = OrderedDict()
        self._refused: OrderedDict[GraphKey, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: GraphKey) -> bool:
        return key in self._kept

    @property
    def keys(self) -> tuple[GraphKey, ...]:
        """Keys of the graphs, the least recently used first."""
        return tuple(self._kept)

    def get(self, key: GraphKey) -> _Graph | None:
        """Return a key's graph, now the most recently used, or None."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        self._kept.move_to_end(key)
        return kept.graph

    def put(self, key: GraphKey, graph: _Graph) -> None:
        """Keep a graph; the least recently used ones that are not pinned give way."""
        self._kept[key] = _Kept(graph)
        self._kept.move_to_end(key)
        surplus = len(self._kept) - self.capacity
        for old in [old for old, kept in self._kept.items() if not kept.pins and old != key][: max(0, surplus)]:
            del self._kept[old]
            self.evictions += 1

    @contextlib.contextmanager
    def pinned(self, key: GraphKey) -> Generator[None]:
        """Keep a graph from being evicted inside a `with` block."""
        kept = self._kept[key]
        kept.pins += 1
        try:
            yield
        finally:
            kept.pins -= 1

    def refuse(self, key: GraphKey, reason: str) -> None:
        """Note why a key's capture failed, so that it is not tried again; the oldest of very many are forgotten."""
        self._refused[key] = reason
        while len(self._refused) > _MOST_REFUSALS:
            self._refused.popitem(last=False)

    def refusal(self, key: GraphKey) -> str | None:
        """Return why a key's capture failed, or None."""
        return self._refused.get(key)

    def drop_slot(self, slot: int) -> int:
        """Drop the graphs of every kind that contain a slot.

        Returns:
            How many there were; 0 for the dummy slot and indices past it.
        """
        if not 0 <= slot < self.max_slots:
            return 0
        return self._drop(key for key in self._kept if slot in key.slots)

    def move_slot(self, source: int, target: int) -> int:
        """Drop the graphs of both slots after a sequence moved from one to the other; return how many."""
        return self.drop_slot(source) + self.drop_slot(target)

    def clear(self) -> int:
        """Drop every graph and forget every failed capture; return how many graphs there were."""
        self._refused.clear()
        return self._drop(self._kept)

    def _drop(self, keys: Iterable[GraphKey]) -> int:
        stale = list(keys)
        for key in stale:
            del self._kept[key]
        self.dropped += len(stale)
        return len(stale)
