# SPDX-License-Identifier: MIT OR Apache-2.0
"""Turns a chunk that the scheduler picked into tensors; decode steps have buffers of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metrale_caps.layer import PrefillContext

if TYPE_CHECKING:
    from metrale_caps.state.sequence import Sequence


def prompt_tokens(sequence: Sequence, end: int, device: torch.device) -> torch.Tensor:
    """Return the token ids `[rows]` of a sequence from its cursor to position `end`."""
    return _integers(sequence.tokens[sequence.cursor : end], device)


def prefill_context(
    sequence: Sequence, start: int, end: int, *, block_size: int, device: torch.device
) -> PrefillContext:
    """Return the context of the chunk of positions `start` to `end`."""
    positions = range(start, end)
    return PrefillContext(
        positions=torch.arange(start, end, device=device),
        cache_slots=_integers([cache_slot(sequence, at, block_size) for at in positions], device),
        block_tables=_integers(sequence.blocks, device, torch.int32)[None],
        lengths=_integers([end], device, torch.int32),
        row_starts=_integers([0, len(positions)], device, torch.int32),
        sequence_slots=_integers([-1 if sequence.slot is None else sequence.slot], device, torch.int32),
        max_rows=len(positions),
        max_length=end,
        chunk_start=start,
    )


def cache_slot(sequence: Sequence, position: int, block_size: int) -> int:
    """Return where a position's key and value go: block * block_size + offset in the block."""
    return sequence.blocks[position // block_size] * block_size + position % block_size


def _integers(values: list[int], device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device)
