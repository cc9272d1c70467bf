# SPDX-License-Identifier: MIT OR Apache-2.0
"""The fixed buffers that every decode step of one width reads its inputs from, eager or replayed.

Rows past the sequences are padding: dummy slot, dummy block, length 0, a cache slot that writes nothing. All of a row
is written on every step except its block table, which is written when it has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metrale_caps.layer import DecodeContext

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from metrale_caps.state.sequence import Sequence

_POISON = 0x6B6B6B6B
NO_CELL = -1
"""Cache slot of a row that writes nothing."""


class DecodeBuffers:
    """Inputs of a decode step with a fixed number of rows.

    Attributes:
        width: rows, padding included.
        tokens: `[width]` int64.
        positions: `[width]` int64.
        cache_slots: `[width]` int64.
        block_tables: `[width, table_blocks]` int32.
        lengths: `[width]` int32.
        row_starts: `[width + 1]` int32, never changed: one row for each sequence.
        sequence_slots: `[width]` int32.
    """

    def __init__(
        self,
        width: int,
        table_blocks: int,
        *,
        block_size: int,
        dummy_slot: int,
        dummy_block: int,
        device: torch.device,
    ) -> None:
        self.width = width
        self.tokens: torch.Tensor = torch.zeros(width, dtype=torch.int64, device=device)
        self.positions: torch.Tensor = torch.zeros_like(self.tokens)
        self.cache_slots: torch.Tensor = torch.zeros_like(self.tokens)
        self.block_tables: torch.Tensor = torch.zeros(width, table_blocks, dtype=torch.int32, device=device)
        self.lengths: torch.Tensor = torch.zeros(width, dtype=torch.int32, device=device)
        self.row_starts: torch.Tensor = torch.arange(width + 1, dtype=torch.int32, device=device)
        self.sequence_slots: torch.Tensor = torch.zeros_like(self.lengths)
        self._block_size = block_size
        self._dummy_slot = dummy_slot
        self._dummy_block = dummy_block
        self._rows: list[list[int] | None] = [None] * width

    def fill(self, sequences: Rows[Sequence]) -> None:
        """Write the inputs of the sequences' next tokens, in the order given."""
        padding = self.width - len(sequences)
        cursors = [sequence.cursor for sequence in sequences]
        _write(self.tokens, [one.tokens[one.cursor] for one in sequences] + [0] * padding)
        _write(self.positions, cursors + [0] * padding)
        _write(self.cache_slots, [self._cell(one) for one in sequences] + [NO_CELL] * padding)
        _write(self.lengths, [cursor + 1 for cursor in cursors] + [0] * padding)
        _write(self.sequence_slots, [self._slot(one) for one in sequences] + [self._dummy_slot] * padding)
        for row in range(self.width):
            self._write_table(row, sequences[row].blocks if row < len(sequences) else [self._dummy_block])

    def _cell(self, sequence: Sequence) -> int:
        block, offset = divmod(sequence.cursor, self._block_size)
        return sequence.blocks[block] * self._block_size + offset

    def _slot(self, sequence: Sequence) -> int:
        return self._dummy_slot if sequence.slot is None else sequence.slot

    def _write_table(self, row: int, blocks: list[int]) -> None:
        if self._rows[row] != blocks:
            _write(self.block_tables[row, : len(blocks)], blocks)
            self._rows[row] = blocks.copy()

    def context(self, padding_rows: int) -> DecodeContext:
        """Return the step over these buffers; its bounds hold for every step of this width."""
        return DecodeContext(
            positions=self.positions,
            cache_slots=self.cache_slots,
            block_tables=self.block_tables,
            lengths=self.lengths,
            row_starts=self.row_starts,
            sequence_slots=self.sequence_slots,
            max_rows=1,
            max_length=self.block_tables.shape[1] * self._block_size,
            padding_rows=padding_rows,
        )

    def poison(self) -> None:
        """Overwrite all inputs with numbers that cannot be right, to show that a step reads only what was filled in."""
        for buffer in (self.tokens, self.positions, self.cache_slots, self.block_tables, self.lengths):
            buffer.fill_(_POISON)
        self.sequence_slots.fill_(_POISON)
        self._rows = [None] * self.width


def _write(buffer: torch.Tensor, values: list[int]) -> None:
    buffer.copy_(torch.tensor(values, dtype=buffer.dtype))
