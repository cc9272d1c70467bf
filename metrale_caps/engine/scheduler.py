# SPDX-License-Identifier: MIT OR Apache-2.0
"""Continuous batching: admits sequences, picks each step's rows and reserves what they need, frees what is done.

A step is a transaction. `next_step` reserves blocks and slots and says what to run; whoever runs it then commits each
part. What was reserved and not committed stays with its sequence, so an error between reservation and commit loses
nothing and moves no cursor. A recurrent layer may have advanced its state by then: after such an error the step's
sequences must be finished, or given up and computed again from their tokens, and never run on as they are.

Rows are split by what their sequence is doing: a chunk of a prompt is prefill, also if it is one token long.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps.state.blocks import BlockPool
    from metrale_caps.state.sequence import Sequence
    from metrale_caps.state.slots import SlotPool


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions `[sequence.cursor, end)` of a sequence that is still in its prompt.

    Attributes:
        sequence: the sequence.
        end: position after the last one.
        split: whether it is a whole long prompt, to be computed in phases.
    """

    sequence: Sequence
    end: int
    split: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What to run now: the decode rows in one pass, then each chunk in a pass of its own."""

    decode: tuple[Sequence, ...]
    prefill: tuple[Chunk, ...]


class Scheduler:
    """Picks rows first come, first served; under pressure the newest running sequence gives way.

    Attributes:
        preemptions: sequences that gave way so far.
    """

    def __init__(
        self,
        blocks: BlockPool,
        slots: SlotPool,
        *,
        prefill_chunk: int,
        split_tokens: int = 0,
        on_start: Callable[[Sequence], None],
        on_release: Callable[[Sequence, int], None],
    ) -> None:
        """Schedule over the given pools.

        Args:
            blocks: cache blocks.
            slots: slots of running sequences.
            prefill_chunk: prompt tokens of one step at most, but for a prompt that is computed in phases.
            split_tokens: tokens that a prompt which is computed in phases may have at most.
            on_start: called when a sequence has claimed its slot.
            on_release: called once for each start, when the sequence has given its slot back, with that slot.
        """
        self._blocks = blocks
        self._slots = slots
        self._prefill_chunk = prefill_chunk
        self._split_tokens = split_tokens
        self._on_start = on_start
        self._on_release = on_release
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self.preemptions: int = 0

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._waiting.append(sequence)

    @property
    def busy(self) -> bool:
        """Whether any sequence is waiting or running."""
        return bool(self._waiting or self._running)

    def next_step(self) -> Step:
        """Reserve for, and return, the next step. Old sequences come first, decode rows before prompts."""
        preemptions = self.preemptions
        decode = [
            sequence
            for sequence in tuple(self._running)
            if sequence.slot is not None and sequence.decodes and self._reserve(sequence, sequence.cursor + 1)
        ]
        chunks = self._chunks(preemptions, alone=not decode)
        # a later reservation may have preempted a sequence that was picked before
        return Step(
            tuple(sequence for sequence in decode if sequence.slot is not None),
            tuple(chunk for chunk in chunks if chunk.sequence.slot is not None),
        )

    def _chunks(self, preemptions: int, *, alone: bool) -> list[Chunk]:
        """Pick chunks; with `alone` no sequence decodes, so that a whole prompt keeps nobody waiting."""
        prefilling = deque(sequence for sequence in self._running if not sequence.decodes)
        budget = self._prefill_chunk
        chunks: list[Chunk] = []
        while budget > 0:
            if prefilling:
                sequence = prefilling.popleft()
            elif self.preemptions == preemptions and (admitted := self._admit()) is not None:
                sequence = admitted
            else:  # whoever gave way in this step must not come back in it
                break
            split = alone and not chunks and self._splits(sequence)
            end = len(sequence.tokens) if split else min(len(sequence.tokens), sequence.cursor + budget)
            if sequence.slot is not None and self._reserve(sequence, end):
                chunks.append(Chunk(sequence, end, split))
                budget -= end - sequence.cursor
        return chunks

    def _splits(self, sequence: Sequence) -> bool:
        return sequence.cursor == 0 and self._prefill_chunk < len(sequence.tokens) <= self._split_tokens

    def _admit(self) -> Sequence | None:
        """Start the oldest waiting sequence if a slot is free and its tokens fit without preempting anyone."""
        if not self._waiting or not self._slots.free:
            return None
        sequence = self._waiting[0]
        # the whole prompt must fit beside one block for each running sequence: a prompt that is admitted and then gives
        # way has been computed for nothing
        if self._running and self._blocks.blocks_for(len(sequence.tokens)) + len(self._running) > self._blocks.free:
            return None
        self._waiting.popleft()
        sequence.slot = self._slots.claim()
        self._running.append(sequence)
        self._on_start(sequence)
        return sequence

    def _reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Give a sequence blocks for `tokens` tokens; newer sequences are preempted for it, or it is itself."""
        missing = self._blocks.blocks_for(tokens) - len(sequence.blocks)
        while missing > 0:
            acquired = self._blocks.acquire(missing)
            if acquired is not None:
                sequence.blocks.extend(acquired)
                return True
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self._waiting.appendleft(sequence)  # first, so that a failing release does not lose it
        self._release(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Free what a sequence holds; it is not run again."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        if sequence in self._running:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._blocks.release(sequence.blocks)
        sequence.blocks.clear()
        sequence.cursor = 0
        slot, sequence.slot = sequence.slot, None
        if slot is not None:
            self._slots.release(slot)
            self._on_release(sequence, slot)
