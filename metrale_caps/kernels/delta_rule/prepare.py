# SPDX-License-Identifier: MIT OR Apache-2.0
"""The chunked delta rule's first launch: what can be known of each chunk before the state is, parallel over chunks.

No exponential here ever overflows: decays are sums of g over rows between two others, never a difference of two sums.
`T` comes from substitution row by row, since powers of `A` grow to 10^17 where neighbouring keys are alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from metrale_caps.kernels.delta_rule.chunk_tiles import SUBCHUNK
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.tiles import dot_precision

if TYPE_CHECKING:
    from metrale_caps.kernels.delta_arguments import DeltaShape
    from metrale_caps.kernels.delta_rule.chunk_tiles import ChunkTile


@triton.jit
def _decay_between(g: tl.tensor, lane: tl.tensor) -> tl.tensor:
    """Return G(i, j) for one decay of each row: `[i, j]`, 1 on the diagonal and above it."""
    after = lane[:, None] > lane[None, :]
    return tl.exp(tl.cumsum(tl.where(after, g[:, None], 0.0), 0))


@triton.jit
def _near_products(
    q: tl.tensor,
    k: tl.tensor,
    scores: tl.tensor,
    products: tl.tensor,
    keys_before: tl.tensor,
    decays_before: tl.tensor,
    stride_key: tl.tensor,
    stride_decay: tl.tensor,
    lane: tl.tensor,
    exists: tl.tensor,
    SUBCHUNK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Add the products of rows of one subchunk, each with the row `distance` before it, channel decays in between."""
    between = tl.full(k.shape, 0.0, tl.float32)
    for distance in range(SUBCHUNK):
        back = tl.cast(distance, tl.int64)
        valid = lane % SUBCHUNK >= distance
        mask = exists & valid[:, None]
        decayed = tl.load(keys_before - back * stride_key, mask=mask, other=0.0).to(tl.float32) * tl.exp(between)
        hit = (lane[None, :] == lane[:, None] - distance) & valid[:, None]
        products += tl.where(hit, tl.sum(k * decayed, 1)[:, None], 0.0)
        scores += tl.where(hit, tl.sum(q * decayed, 1)[:, None], 0.0)
        between += tl.load(decays_before - back * stride_decay, mask=mask, other=0.0)
    return scores, products


@triton.jit
def _far_products(
    q: tl.tensor,
    k: tl.tensor,
    scores: tl.tensor,
    products: tl.tensor,
    g: tl.tensor,
    g_next: tl.tensor,
    lane: tl.tensor,
    dtype: tl.constexpr,
    CHUNK: tl.constexpr,
    SUBCHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Add the products with all rows of earlier subchunks: each subchunk's first row is where both decays meet."""
    for block in tl.static_range(1, CHUNK // SUBCHUNK):
        first = block * SUBCHUNK
        since = tl.exp(tl.cumsum(tl.where((lane >= first)[:, None], g, 0.0), 0))
        until = tl.exp(tl.cumsum(tl.where((lane + 1 < first)[:, None], g_next, 0.0), 0, reverse=True))
        own = (lane // SUBCHUNK == block)[:, None]
        earlier = tl.trans(tl.where((lane < first)[:, None], k * until, 0.0).to(dtype))
        products = tl.dot(tl.where(own, k * since, 0.0).to(dtype), earlier, products, input_precision=PRECISION)
        scores = tl.dot(tl.where(own, q * since, 0.0).to(dtype), earlier, scores, input_precision=PRECISION)
    return scores, products


@triton.jit
def _inverse(lower: tl.tensor, lane: tl.tensor, rows: tl.tensor) -> tl.tensor:
    """Return `(I - lower)^-1` of a matrix with numbers below the diagonal alone, row by row."""
    found = lower
    for index in range(1, rows):
        is_row = (lane == index)[:, None]
        row = tl.sum(tl.where(is_row, found, 0.0), 0)
        row += tl.sum(row[:, None] * found, 0)
        found = tl.where(is_row, row[None, :], found)
    return found + tl.where(lane[:, None] == lane[None, :], 1.0, 0.0)


@triton.jit(do_not_specialize=["scale", "chunks"])
def prepare_chunks_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    log_decay: tl.tensor,
    beta: tl.tensor,
    row_starts: tl.tensor,
    weighted_keys: tl.tensor,
    corrected_values: tl.tensor,
    scores: tl.tensor,
    decayed_queries: tl.tensor,
    decayed_keys: tl.tensor,
    chunk_decays: tl.tensor,
    scale: tl.tensor,
    chunks: tl.tensor,
    stride_query_row: tl.tensor,
    stride_query_head: tl.tensor,
    stride_key_row: tl.tensor,
    stride_key_head: tl.tensor,
    stride_value_row: tl.tensor,
    stride_value_head: tl.tensor,
    stride_decay_row: tl.tensor,
    stride_decay_head: tl.tensor,
    stride_beta: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    SUBCHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    sequence = tl.program_id(0) // chunks
    first = (tl.program_id(0) % chunks) * CHUNK
    start = tl.load(row_starts + sequence)
    count = tl.load(row_starts + sequence + 1) - start - first
    if count <= 0:
        return
    head = tl.program_id(1).to(tl.int64)
    key_head = head // GROUP
    lane = tl.arange(0, CHUNK)
    live = lane < count
    row = (start + first + lane).to(tl.int64)
    cell = row * HEADS + head
    dtype = query.dtype.element_ty
    b = tl.load(beta + row * stride_beta + head, mask=live, other=0.0)

    inside_scores = tl.full((CHUNK, CHUNK), 0.0, tl.float32)
    products = tl.full((CHUNK, CHUNK), 0.0, tl.float32)
    for at in range(0, KEY_DIM, KEYS):
        channel = at + tl.arange(0, KEYS)
        exists = live[:, None] & (channel < KEY_DIM)[None, :]
        query_place = query + row[:, None] * stride_query_row + key_head * stride_query_head + channel[None, :]
        key_place = key + row[:, None] * stride_key_row + key_head * stride_key_head + channel[None, :]
        q = tl.load(query_place, mask=exists, other=0.0)
        k = tl.load(key_place, mask=exists, other=0.0)
        if PER_CHANNEL:
            decay_place = log_decay + row[:, None] * stride_decay_row + head * stride_decay_head + channel[None, :]
            g = tl.load(decay_place, mask=exists, other=0.0)
            followed = exists & (lane + 1 < count)[:, None] & (lane + 1 < CHUNK)[:, None]
            g_next = tl.load(decay_place + stride_decay_row, mask=followed, other=0.0)
            q, k = q.to(tl.float32), k.to(tl.float32)
            inside_scores, products = _near_products(
                q,
                k,
                inside_scores,
                products,
                key_place,
                decay_place,
                stride_key_row,
                stride_decay_row,
                lane,
                exists,
                SUBCHUNK,
            )
            inside_scores, products = _far_products(
                q, k, inside_scores, products, g, g_next, lane, dtype, CHUNK, SUBCHUNK, PRECISION
            )
        else:
            products = tl.dot(k, tl.trans(k), products, input_precision=PRECISION)
            inside_scores = tl.dot(q, tl.trans(k), inside_scores, input_precision=PRECISION)
    # unused where channels have decays of their own
    row_decay = tl.load(log_decay + row * stride_decay_row + head, mask=live & (not PER_CHANNEL), other=0.0)
    if not PER_CHANNEL:
        between = _decay_between(row_decay, lane)
        products *= between
        inside_scores *= between

    causal = lane[:, None] >= lane[None, :]
    tl.store(
        scores + cell[:, None] * CHUNK + lane[None, :],
        tl.where(causal, inside_scores * scale, 0.0),
        mask=live[:, None],
    )
    lower = tl.where(lane[:, None] > lane[None, :], -b[:, None] * products, 0.0)
    corrections = _inverse(lower, lane, tl.minimum(count, CHUNK)).to(dtype)
    for at in range(0, KEY_DIM, KEYS):
        channel = at + tl.arange(0, KEYS)
        exists = live[:, None] & (channel < KEY_DIM)[None, :]
        key_place = key + row[:, None] * stride_key_row + key_head * stride_key_head + channel[None, :]
        k = tl.load(key_place, mask=exists, other=0.0).to(tl.float32)
        own = cell[:, None] * KEY_DIM + channel[None, :]
        if PER_CHANNEL:
            decay_place = log_decay + row[:, None] * stride_decay_row + head * stride_decay_head + channel[None, :]
            g = tl.load(decay_place, mask=exists, other=0.0)
            followed = exists & ((lane + 1 < count) & (lane + 1 < CHUNK))[:, None]
            g_next = tl.load(decay_place + stride_decay_row, mask=followed, other=0.0)
            since = tl.exp(tl.cumsum(g, 0))
            until = tl.exp(tl.cumsum(g_next, 0, reverse=True))
            query_place = query + row[:, None] * stride_query_row + key_head * stride_query_head + channel[None, :]
            q = tl.load(query_place, mask=exists, other=0.0).to(tl.float32)
            tl.store(decayed_queries + own, q * since * scale, mask=exists)
            tl.store(decayed_keys + own, k * until, mask=exists)
            whole = (tl.program_id(0).to(tl.int64) * HEADS + head) * KEY_DIM + channel
            tl.store(chunk_decays + whole, tl.exp(tl.sum(g, 0)), mask=channel < KEY_DIM)
        else:
            since = tl.exp(tl.cumsum(row_decay, 0))[:, None]
        weighted = tl.dot(corrections, (k * since * b[:, None]).to(dtype), input_precision=PRECISION)
        tl.store(weighted_keys + own, weighted, mask=exists)
    for at in range(0, VALUE_DIM, VALUES):
        column = at + tl.arange(0, VALUES)
        exists = live[:, None] & (column < VALUE_DIM)[None, :]
        value_place = value + row[:, None] * stride_value_row + head * stride_value_head + column[None, :]
        v = tl.load(value_place, mask=exists, other=0.0).to(tl.float32) * b[:, None]
        corrected = tl.dot(corrections, v.to(dtype), input_precision=PRECISION)
        tl.store(corrected_values + cell[:, None] * VALUE_DIM + column[None, :], corrected, mask=exists)


class PreparedChunks(NamedTuple):
    """What the first launch leaves for the second, all in the dtype of the queries but the decays.

    Attributes:
        weighted_keys: `w`, `[rows, heads, key_dim]`.
        corrected_values: `u`, `[rows, heads, value_dim]`.
        scores: `P` times the scale, `[rows, heads, chunk]`.
        queries: `scale * G(i, start) q`, `[rows, heads, key_dim]`; without columns where a row has one decay.
        keys: `G(end, j) k`, likewise.
        chunk_decays: `G(end, start)` of each chunk, `[sequences * chunks, heads, key_dim]` fp32, likewise.
    """

    weighted_keys: torch.Tensor
    corrected_values: torch.Tensor
    scores: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    chunk_decays: torch.Tensor


def prepare_chunks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    row_starts: torch.Tensor,
    shape: DeltaShape,
    tile: ChunkTile,
    scale: float,
    sequences: int,
    chunks: int,
) -> PreparedChunks:
    """Launch it for checked arguments; see `chunked_delta_rule`."""

    def scratch(width: int) -> torch.Tensor:
        return torch.empty(shape.rows, shape.heads, width, dtype=query.dtype, device=query.device)

    # a decay of each row is applied to the products, which are narrower
    decayed = shape.key_dim if shape.per_channel else 0
    prepared = PreparedChunks(
        scratch(shape.key_dim),
        scratch(shape.value_dim),
        scratch(tile.chunk),
        scratch(decayed),
        scratch(decayed),
        torch.empty(sequences * chunks, shape.heads, decayed, dtype=torch.float32, device=query.device),
    )
    launch(
        prepare_chunks_kernel,
        (sequences * chunks, shape.heads),
        writes=(
            "weighted_keys",
            "corrected_values",
            "scores",
            *(("decayed_queries", "decayed_keys", "chunk_decays") if shape.per_channel else ()),
        ),
        num_warps=tile.prepare_warps,
        num_stages=tile.prepare_stages,
        query=query,
        key=key,
        value=value,
        log_decay=log_decay,
        beta=beta,
        row_starts=row_starts,
        weighted_keys=prepared.weighted_keys,
        corrected_values=prepared.corrected_values,
        scores=prepared.scores,
        decayed_queries=prepared.queries,
        decayed_keys=prepared.keys,
        chunk_decays=prepared.chunk_decays,
        scale=scale,
        chunks=chunks,
        stride_query_row=query.stride(0),
        stride_query_head=query.stride(1),
        stride_key_row=key.stride(0),
        stride_key_head=key.stride(1),
        stride_value_row=value.stride(0),
        stride_value_head=value.stride(1),
        stride_decay_row=log_decay.stride(0),
        stride_decay_head=log_decay.stride(1),
        stride_beta=beta.stride(0),
        HEADS=shape.heads,
        GROUP=shape.group,
        KEY_DIM=shape.key_dim,
        VALUE_DIM=shape.value_dim,
        CHUNK=tile.chunk,
        SUBCHUNK=SUBCHUNK,
        KEYS=tile.prepare_channels,
        VALUES=tile.prepare_channels,
        PER_CHANNEL=shape.per_channel,
        PRECISION=dot_precision(query.device, query.dtype),
    )
    return prepared
