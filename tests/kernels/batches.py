# SPDX-License-Identifier: MIT OR Apache-2.0
"""Batches over paged caches in which every cell that a kernel need not read is NaN, and their attention in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from metrale_caps.kernels.operations import Operations

NO_BLOCK = 10**6
"""What entries of a block table hold that belong to no key: far outside of every pool here."""

SLACK = {torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.float16: 1e-5}
"""Error of attention in fp32: scores are sums of up to 256 products of magnitude 1, each rounded by 2^-24."""


class Heads(NamedTuple):
    """Heads of queries and of keys and values, and their widths."""

    query: int
    key_value: int
    key_width: int
    value_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Arguments of paged attention, and the keys and values of each sequence as dense tensors."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    lengths: Tensor
    row_starts: Tensor
    sequences: tuple[tuple[int, int], ...]
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None

    @property
    def scale(self) -> float:
        return self.query.shape[2] ** -0.5

    def attend(
        self,
        operations: Operations,
        *,
        window: int | None = None,
        splits: int | None = None,
        more_rows: int = 0,
    ) -> Tensor:
        """Run paged attention; `more_rows` loosens the upper bound of the rows."""
        return operations.paged_attention(
            self.query,
            self.key_cache,
            self.value_cache,
            self.block_tables,
            self.lengths,
            self.row_starts,
            scale=self.scale,
            max_rows=max(rows for _, rows in self.sequences) + more_rows,
            max_length=max(history + rows for history, rows in self.sequences),
            window=window,
            splits=splits,
            key_scale=self.key_scale,
            value_scale=self.value_scale,
        )

    def exact(self, window: int | None = None) -> Exact:
        """The attention of each row over its visible keys, one row at a time, in float64."""
        mixed = torch.zeros(*self.query.shape[:2], self.value_cache.shape[3], dtype=torch.float64)
        magnitude = torch.zeros_like(mixed)
        at = 0
        for (history, rows), keys, values in zip(self.sequences, self.keys, self.values, strict=True):
            group = self.query.shape[1] // self.key_cache.shape[2]
            for position in range(history, history + rows):
                first = 0 if window is None else max(0, position - window + 1)
                if position >= 0:
                    k = keys[first : position + 1].double().repeat_interleave(group, dim=1)
                    v = values[first : position + 1].double().repeat_interleave(group, dim=1)
                    scores = torch.einsum("hd,nhd->hn", self.query[at].double(), k) * self.scale
                    weights = scores.softmax(-1)
                    mixed[at] = torch.einsum("hn,nhd->hd", weights, v)
                    magnitude[at] = torch.einsum("hn,nhd->hd", weights, v.abs())
                at += 1
        return Exact(mixed, magnitude, self.query.dtype)


class Exact(NamedTuple):
    """Attention in float64, and the same of the values' magnitudes."""

    mixed: Tensor
    magnitude: Tensor
    dtype: torch.dtype

    def check(self, output: Tensor, *, weights_rounded: bool) -> None:
        """Require an output to be as exact as its dtype allows.

        The output is rounded once, by half a unit in the last place. A kernel also rounds the softmax weights to the
        dtype of the values, each by half a unit, which moves the sum by at most that share of the magnitudes.
        """
        assert output.dtype == self.dtype
        unit = torch.finfo(self.dtype).eps / 2
        bound = unit * self.mixed.abs()
        if weights_rounded:
            bound += unit * self.magnitude
        # rounding is of the computed value rather than of the exact one: a second-order share
        bound = bound * (1 + 2 * unit) + SLACK[self.dtype]
        error = (output.double() - self.mixed).abs()
        assert not error.isnan().any(), "something that is not visible was read, or a cell was not written"
        assert bool((error <= bound).all()), f"error {error.max():.3g} is {(error / bound).max():.3g} of the bound"


class Cache(NamedTuple):
    """Paged keys and values as strided views of storages that are larger than both."""

    storages: tuple[Tensor, ...]
    key: Tensor
    value: Tensor


def make_cache(
    blocks: int,
    block_size: int,
    heads: Heads,
    dtype: torch.dtype,
    *,
    fill: float = float("nan"),
    guards: int = 1,
) -> Cache:
    """Return key and value caches.

    Without guards they are what the engine has: `kv.unbind(1)` of `[blocks, 2, block_size, heads, width]`. With guards
    there are spare heads and channels between, and values lie in a storage of another layout, tokens within heads.
    """
    widest = max(heads.key_width, heads.value_width) + 4 * guards
    pairs = torch.full((blocks, 2, block_size, heads.key_value + guards, widest), fill, dtype=dtype)
    inner = slice(None, heads.key_value)
    key, value = pairs.unbind(1)
    storages = (pairs,)
    if guards:
        by_head = torch.full((blocks, heads.key_value + guards, block_size, widest), fill, dtype=dtype)
        value = by_head.transpose(1, 2)
        storages = (pairs, by_head)
    return Cache(storages, key[:, :, inner, : heads.key_width], value[:, :, inner, : heads.value_width])


def check_same_roundings(first: Tensor, second: Tensor) -> None:
    """Require two results to be equal in all but one in a hundred of their elements, and one.

    Two computations that round at the same places differ only where fp32 noise falls on a tie of the narrow dtype;
    leave one rounding out, and about every third element differs.
    """
    assert int((first != second).sum()) <= 1 + first.numel() // 100


def make_batch(
    sequences: Sequence[tuple[int, int]],
    heads: Heads,
    *,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    spare_columns: int = 0,
    guards: int = 1,
    hidden_before: Sequence[int] | None = None,
    scales: tuple[float, float] | None = None,
    seed: int = 0,
) -> Batch:
    """Return a batch of sequences with random contents.

    Args:
        sequences: history and rows of each; a negative history makes rows that see nothing.
        heads: numbers and widths of heads.
        block_size: tokens of a block.
        dtype: of queries, and of keys and values unless there are scales.
        spare_columns: columns of the block table beyond the longest sequence's blocks.
        guards: 1 to put NaN between heads and between tables, 0 for views as the engine has them.
        hidden_before: for each sequence, the position of the first key that any row may see; keys before it are NaN
            and blocks before its block are not in the table.
        scales: of keys and values whose pages are FP8, or None.
        seed: of the contents.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = [history + rows for history, rows in sequences]
    needed = [-(-length // block_size) for length in lengths]
    order = torch.randperm(sum(needed) + 3, generator=generator)
    pages = dtype if scales is None else torch.float8_e4m3fn
    cache = make_cache(len(order), block_size, heads, pages, guards=guards)
    wide = torch.full((len(lengths), max(1, *needed) + spare_columns + 2 * guards), NO_BLOCK, dtype=torch.int32)
    tables = wide[:, guards : wide.shape[1] - guards]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    taken = 0
    for index, length in enumerate(lengths):
        blocks = order[taken : taken + needed[index]]
        taken += needed[index]
        key = torch.randn(length, heads.key_value, heads.key_width, generator=generator)
        value = torch.randn(length, heads.key_value, heads.value_width, generator=generator)
        first = 0 if hidden_before is None else hidden_before[index]
        positions = torch.arange(first, length)
        cell = (blocks[positions // block_size], positions % block_size)
        for dense, part, scale, known in zip(
            (key, value), (cache.key, cache.value), scales or (None, None), (keys, values), strict=True
        ):
            held = dense.to(dtype) if scale is None else (dense / scale).clamp(-448, 448).to(pages)
            part[cell] = held[first:]
            known.append(held if scale is None else held.double() * scale)
        tables[index, first // block_size : needed[index]] = blocks[first // block_size :].int()
    counts = [rows for _, rows in sequences]
    packed = torch.full((sum(counts) + 2, heads.query + 2, heads.key_width), float("nan"), dtype=dtype)
    query = packed[1 : 1 + sum(counts), : heads.query]
    query.copy_(torch.randn(query.shape, generator=generator))
    return Batch(
        query=query,
        key_cache=cache.key,
        value_cache=cache.value,
        block_tables=tables,
        lengths=torch.tensor(lengths, dtype=torch.int32),
        row_starts=torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        sequences=tuple(sequences),
        keys=tuple(keys),
        values=tuple(values),
        key_scale=None if scales is None else torch.tensor(scales[:1]),
        value_scale=None if scales is None else torch.tensor(scales[1:]),
    )
