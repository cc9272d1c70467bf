# SPDX-License-Identifier: MIT OR Apache-2.0
"""Twins of latent attention and of the store of latents into pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metrale_caps.kernels.host import host_integers
from metrale_caps.kernels.naive.rows import rms_norm
from metrale_caps.kernels.recording import recordable, recordable_in_place

if TYPE_CHECKING:
    from torch import Tensor


def _result(query: Tensor, *_: object, rank: int, **_options: object) -> Tensor:
    return query.new_empty(*query.shape[:2], rank)


@recordable(_result)
def latent_attention(
    query: Tensor,
    latents: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    row_starts: Tensor,
    *,
    rank: int,
    scale: float,
    max_rows: int,
    max_length: int,
    splits: int | None = None,
) -> Tensor:
    """Attend over pages of latents; see the kernel's launcher of the same name. Bounds and splits change nothing."""
    del max_rows, max_length, splits
    output = query.new_zeros(*query.shape[:2], rank)
    block_size = latents.shape[1]
    starts = host_integers(row_starts)
    for sequence, length in enumerate(host_integers(lengths)):
        rows = slice(starts[sequence], starts[sequence + 1])
        if length > 0 and rows.start < rows.stop:
            blocks = block_tables[sequence, : -(-length // block_size)]
            keys = latents.index_select(0, blocks).flatten(0, 1)[:length]
            output[rows] = _attend(query[rows], keys, rank, scale)
    return output


def _attend(query: Tensor, keys: Tensor, rank: int, scale: float) -> Tensor:
    """Attend with n rows `[n, heads, width]`, the last of all positions, over `[keys, width]`."""
    rows, heads, width = query.shape
    length = keys.shape[0]
    wide = keys.float()
    scores = torch.matmul(query.reshape(rows * heads, width).float(), wide.t()).mul_(scale)
    if rows > 1:
        own = torch.arange(length - rows, length, device=query.device)[:, None, None]
        hidden = torch.arange(length, device=query.device) > own
        scores = scores.view(rows, heads, length).masked_fill_(hidden, float("-inf")).flatten(0, 1)
    weights = scores.softmax(-1)
    if rows > length:  # a row before the first position sees nothing
        weights = weights.nan_to_num_(0.0)
    return torch.matmul(weights, wide[:, :rank]).view(rows, heads, rank).to(query.dtype)


@recordable_in_place
def latent_store(latents: Tensor, weight: Tensor, eps: float, cache_slots: Tensor, pages: Tensor, *, rank: int) -> None:
    """Normalise latents and write them into pages; see the kernel's launcher of the same name."""
    kept = cache_slots >= 0
    slots = cache_slots[kept]
    rows = latents[kept]
    block_size = pages.shape[1]
    pages[slots // block_size, slots % block_size] = torch.cat(
        [rms_norm(rows[:, :rank], weight, eps), rows[:, rank:]], dim=1
    )
