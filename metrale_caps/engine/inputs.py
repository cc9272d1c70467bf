# SPDX-License-Identifier: MIT OR Apache-2.0
"""Turns what the scheduler picked into the tensors of one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metrale_caps.layer import DecodeContext, PrefillContext

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from metrale_caps.state.sequence import Sequence


def decode_inputs(
    sequences: Rows[Sequence], block_size: int, device: torch.device
) -> tuple[torch.Tensor, DecodeContext]:
    """Return the token ids `[sequences]` and the context of a decode step."""
    positions = [sequence.cursor for sequence in sequences]
    tokens = [sequence.tokens[sequence.cursor] for sequence in sequences]
    context = DecodeContext(
        positions=_integers(positions, device),
        cache_slots=_integers(
            [cache_slot(sequence, at, block_size) for sequence, at in zip(sequences, positions, strict=True)], device
        ),
        block_tables=_block_tables(sequences, device),
        lengths=_integers([position + 1 for position in positions], device, torch.int32),
        row_starts=torch.arange(len(sequences) + 1, dtype=torch.int32, device=device),
        sequence_slots=_slots(sequences, device),
        max_rows=1,
        max_length=max(positions) + 1,
    )
    return _integers(tokens, device), context


def prefill_inputs(
    sequence: Sequence, end: int, block_size: int, device: torch.device
) -> tuple[torch.Tensor, PrefillContext]:
    """Return the token ids `[rows]` and the context of the chunk that ends before position `end`."""
    positions = range(sequence.cursor, end)
    context = PrefillContext(
        positions=torch.arange(sequence.cursor, end, device=device),
        cache_slots=_integers([cache_slot(sequence, at, block_size) for at in positions], device),
        block_tables=_block_tables([sequence], device),
        lengths=_integers([end], device, torch.int32),
        row_starts=_integers([0, len(positions)], device, torch.int32),
        sequence_slots=_slots([sequence], device),
        max_rows=len(positions),
        max_length=end,
        chunk_start=sequence.cursor,
    )
    return _integers(sequence.tokens[sequence.cursor : end], device), context


def cache_slot(sequence: Sequence, position: int, block_size: int) -> int:
    """Return where a position's key and value go: block * block_size + offset in the block."""
    return sequence.blocks[position // block_size] * block_size + position % block_size


def _integers(values: list[int], device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def _slots(sequences: Rows[Sequence], device: torch.device) -> torch.Tensor:
    return _integers([-1 if it.slot is None else it.slot for it in sequences], device, torch.int32)


def _block_tables(sequences: Rows[Sequence], device: torch.device) -> torch.Tensor:
    width = max(len(sequence.blocks) for sequence in sequences)
    rows = [sequence.blocks + [0] * (width - len(sequence.blocks)) for sequence in sequences]
    return torch.tensor(rows, dtype=torch.int32, device=device)
