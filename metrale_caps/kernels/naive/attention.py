# SPDX-License-Identifier: MIT OR Apache-2.0
"""Twin of attention over pages: each sequence's keys are gathered and a plain softmax is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metrale_caps.kernels.checks import expect_scales
from metrale_caps.kernels.host import host_integers
from metrale_caps.kernels.naive.fp8 import decode_e4m3
from metrale_caps.kernels.recording import recordable

if TYPE_CHECKING:
    from torch import Tensor


def _result(query: Tensor, _key_cache: object, value_cache: Tensor, *_: object, **_options: object) -> Tensor:
    return query.new_empty(*query.shape[:2], value_cache.shape[3])


@recordable(_result)
def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    row_starts: Tensor,
    *,
    scale: float,
    max_rows: int,
    max_length: int,
    window: int | None = None,
    splits: int | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> Tensor:
    """Attend over pages; see the kernel's launcher of the same name. The bounds and splits change nothing here."""
    del max_rows, max_length, splits
    expect_scales(key_cache, key_scale, value_scale)
    output = query.new_zeros(*query.shape[:2], value_cache.shape[3])
    block_size = key_cache.shape[1]
    starts = host_integers(row_starts)
    for sequence, length in enumerate(host_integers(lengths)):
        rows = slice(starts[sequence], starts[sequence + 1])
        if length == 0 or rows.start == rows.stop:
            continue
        # what left the window of every row may be gone from the pool
        oldest = 0 if window is None else max(0, length - (rows.stop - rows.start) - window + 1)
        first_block = oldest // block_size
        blocks = block_tables[sequence, first_block : -(-length // block_size)]
        seen = slice(oldest - first_block * block_size, length - first_block * block_size)
        keys = _gathered(key_cache, blocks, seen, key_scale)
        values = _gathered(value_cache, blocks, seen, value_scale)
        output[rows] = _attend(query[rows], keys, values, scale, window)
    return output


def _gathered(pages: Tensor, blocks: Tensor, seen: slice, scale: Tensor | None) -> Tensor:
    """Return what blocks of `[blocks, block_size, kv_heads, width]` hold, as `[keys, kv_heads, width]`."""
    if scale is None:
        return pages.index_select(0, blocks).flatten(0, 1)[seen]
    return decode_e4m3(pages.view(torch.uint8).index_select(0, blocks).flatten(0, 1)[seen], scale)


def _attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
    """Attend with n rows `[n, query_heads, head_dim]`, the last of all positions, over `[keys, kv_heads, width]`."""
    rows, length = query.shape[0], keys.shape[0]
    heads, width = keys.shape[1], query.shape[2]
    group = query.shape[1] // heads
    grouped = query.reshape(rows, heads, group, width).permute(1, 2, 0, 3).reshape(heads, group * rows, width).float()
    scores = torch.matmul(grouped, keys.float().permute(1, 2, 0)).mul_(scale)
    if rows > 1 or (window is not None and window < length):
        own = torch.arange(length - rows, length, device=query.device)[:, None]
        at = torch.arange(length, device=query.device)[None, :]
        hidden = at > own
        if window is not None:
            hidden |= at <= own - window
        scores = scores.view(heads, group, rows, length).masked_fill_(hidden, float("-inf")).flatten(1, 2)
        # a row before the first position sees nothing
        scores = scores.softmax(-1).nan_to_num_(0.0) if rows > length else scores.softmax(-1)
    else:
        scores = scores.softmax(-1)
    mixed = torch.matmul(scores, values.float().permute(1, 0, 2))
    by_row = mixed.view(heads, group, rows, values.shape[2]).permute(2, 0, 1, 3)
    return by_row.reshape(rows, heads * group, values.shape[2]).to(query.dtype)
