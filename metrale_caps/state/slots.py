# SPDX-License-Identifier: MIT OR Apache-2.0
"""Slots that name the running sequences.

Every running sequence claims a slot, also on models without recurrent layers: graphs and recurrent state are keyed by
it. Invariants: a slot is claimed by at most one sequence; slot `max_slots` is the dummy of padding rows and is never
handed out.
"""

from __future__ import annotations

import heapq

from metrale_caps.errors import SlotError


class SlotPool:
    """Slots `0 .. max_slots - 1`; the lowest free one is handed out.

    Attributes:
        max_slots: claimable slots.
    """

    def __init__(self, max_slots: int) -> None:
        self.max_slots = max_slots
        self._free = list(range(max_slots))
        self._claimed: set[int] = set()

    @property
    def dummy(self) -> int:
        """The slot of padding rows."""
        return self.max_slots

    @property
    def free(self) -> int:
        """Slots that can be claimed."""
        return len(self._free)

    def claim(self) -> int | None:
        """Return a free slot, now claimed, or None."""
        if not self._free:
            return None
        slot = heapq.heappop(self._free)
        self._claimed.add(slot)
        return slot

    def release(self, slot: int) -> None:
        """Give a claimed slot back.

        Raises:
            SlotError: the slot is not claimed.
        """
        if slot not in self._claimed:
            raise SlotError(f"slot {slot} is not claimed, so that it cannot be released")
        self._claimed.remove(slot)
        heapq.heappush(self._free, slot)
