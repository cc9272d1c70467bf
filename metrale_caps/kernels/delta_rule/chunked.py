# SPDX-License-Identifier: MIT OR Apache-2.0
"""The delta rule 64 rows at a time, for prefill: two launches, the first parallel over chunks, the second along them.

Inside a chunk let G(i, j) be the decay between rows j and i, the product of exp(g) over rows j + 1 to i. With
`A_ij = beta_i G(i, j) k_i.k_j` below the diagonal and `T = (I + A)^-1`, all corrections of the chunk are known at once
(Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule"):

    u = T (beta v)      w = T (beta G(i, start) k)      P_ij = G(i, j) q_i.k_j up to the diagonal
    v' = u - w S        o = (G(i, start) q) S + P v'     S <- G(end, start) S + (G(end, j) k)^T v'
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from metrale_caps.kernels.delta_arguments import NOBODY, check_delta_rule
from metrale_caps.kernels.delta_rule.chunk_tiles import SUBCHUNK, chunk_tile
from metrale_caps.kernels.delta_rule.prepare import prepare_chunks
from metrale_caps.kernels.delta_rule.recurrent import recurrent_delta_rule
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.tiles import dot_precision, next_power_of_two


@triton.jit(do_not_specialize=["scale", "dummy_slot", "chunks"])
def scan_chunks_kernel(
    query: tl.tensor,
    key: tl.tensor,
    log_decay: tl.tensor,
    weighted_keys: tl.tensor,
    corrected_values: tl.tensor,
    scores: tl.tensor,
    chunk_decays: tl.tensor,
    states: tl.tensor,
    sequence_slots: tl.tensor,
    row_starts: tl.tensor,
    output: tl.tensor,
    scale: tl.tensor,
    dummy_slot: tl.tensor,
    chunks: tl.tensor,
    stride_query_row: tl.tensor,
    stride_query_head: tl.tensor,
    stride_key_row: tl.tensor,
    stride_key_head: tl.tensor,
    stride_decay_row: tl.tensor,
    stride_slot: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    sequence = tl.program_id(0)
    start = tl.load(row_starts + sequence)
    rows = tl.load(row_starts + sequence + 1) - start
    if rows <= 0:
        return
    slot = tl.load(sequence_slots + sequence).to(tl.int64)
    live_slot = (slot >= 0) & (slot != dummy_slot)
    head = tl.program_id(1).to(tl.int64)
    key_head = head // GROUP
    lane = tl.arange(0, CHUNK)
    channel = tl.arange(0, KEYS)
    column = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    dtype = query.dtype.element_ty
    kept = live_slot & (channel < KEY_DIM)[:, None] & (column < VALUE_DIM)[None, :]
    place = states + slot * stride_slot + (head * VALUE_DIM + column)[None, :] * KEY_DIM + channel[:, None]
    state = tl.load(place, mask=kept, other=0.0)
    for first in range(0, rows, CHUNK):
        live = first + lane < rows
        row = (start + first + lane).to(tl.int64)
        cell = row * HEADS + head
        exists = live[:, None] & (channel < KEY_DIM)[None, :]
        shown = live[:, None] & (column < VALUE_DIM)[None, :]
        rounded = state.to(dtype)
        w = tl.load(weighted_keys + cell[:, None] * KEY_DIM + channel[None, :], mask=exists, other=0.0)
        u = tl.load(corrected_values + cell[:, None] * VALUE_DIM + column[None, :], mask=shown, other=0.0)
        corrected = u.to(tl.float32) - tl.dot(w, rounded, input_precision=PRECISION)
        q = tl.load(
            query + row[:, None] * stride_query_row + key_head * stride_query_head + channel[None, :],
            mask=exists,
            other=0.0,
        )
        mixed = tl.dot(q, rounded, input_precision=PRECISION)
        if PER_CHANNEL:
            carried = corrected
            whole = ((sequence * chunks + first // CHUNK).to(tl.int64) * HEADS + head) * KEY_DIM + channel
            state *= tl.load(chunk_decays + whole, mask=channel < KEY_DIM, other=0.0)[:, None]
        else:
            g = tl.load(log_decay + row * stride_decay_row + head, mask=live, other=0.0)
            followed = (first + lane + 1 < rows) & (lane + 1 < CHUNK)
            g_next = tl.load(log_decay + (row + 1) * stride_decay_row + head, mask=followed, other=0.0)
            until = tl.exp(tl.cumsum(g_next, 0, reverse=True))
            mixed *= (tl.exp(tl.cumsum(g, 0)) * scale)[:, None]
            carried = corrected * until[:, None]
            state *= tl.exp(tl.sum(g, 0))
        inside = tl.load(scores + cell[:, None] * CHUNK + lane[None, :], mask=live[:, None], other=0.0)
        mixed = tl.dot(inside, corrected.to(dtype), mixed, input_precision=PRECISION)
        tl.store(output + cell[:, None] * VALUE_DIM + column[None, :], tl.where(live_slot, mixed, 0.0), mask=shown)
        k = tl.load(
            key + row[:, None] * stride_key_row + key_head * stride_key_head + channel[None, :],
            mask=exists,
            other=0.0,
        )
        state = tl.dot(tl.trans(k), carried.to(dtype), state, input_precision=PRECISION)
    tl.store(place, state, mask=kept)


def chunked_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    sequence_slots: torch.Tensor,
    row_starts: torch.Tensor,
    *,
    scale: float,
    max_rows: int,
    dummy_slot: int | None = None,
) -> torch.Tensor:
    """Run the delta rule over rows of packed sequences; each sequence's state is advanced in place.

    Arguments, result and errors are those of `recurrent_delta_rule`; the numbers differ by rounding: products of bf16
    and fp16 inputs are rounded to these types before they are multiplied again. While it runs it uses memory for
    `rows * heads * (key_dim + value_dim + 64)` numbers of the dtype of `query`, with `2 * key_dim` more where each
    channel has a decay of its own. On a GPU, heads wider than 128 (64 in fp32) do not fit its registers this way and go
    through the recurrence itself.
    """
    shape = check_delta_rule(query, key, value, log_decay, beta, states, sequence_slots, row_starts)
    tile = chunk_tile(query.device, query.dtype, shape)
    if tile is None:
        return recurrent_delta_rule(
            query,
            key,
            value,
            log_decay,
            beta,
            states,
            sequence_slots,
            row_starts,
            scale=scale,
            max_rows=max_rows,
            dummy_slot=dummy_slot,
        )
    sequences, chunks = sequence_slots.shape[0], triton.cdiv(max_rows, tile.chunk)
    prepared = prepare_chunks(query, key, value, log_decay, beta, row_starts, shape, tile, scale, sequences, chunks)
    if shape.per_channel:
        query, key = prepared.queries, prepared.keys
    output = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    launch(
        scan_chunks_kernel,
        (sequences, shape.heads, triton.cdiv(shape.value_dim, tile.scan_values)),
        writes=("output", "states"),
        num_warps=tile.scan_warps,
        num_stages=tile.scan_stages,
        query=query,
        key=key,
        log_decay=log_decay,
        weighted_keys=prepared.weighted_keys,
        corrected_values=prepared.corrected_values,
        scores=prepared.scores,
        chunk_decays=prepared.chunk_decays,
        states=states,
        sequence_slots=sequence_slots,
        row_starts=row_starts,
        output=output,
        scale=scale,
        dummy_slot=NOBODY if dummy_slot is None else dummy_slot,
        chunks=chunks,
        stride_query_row=query.stride(0),
        stride_query_head=query.stride(1),
        stride_key_row=key.stride(0),
        stride_key_head=key.stride(1),
        stride_decay_row=log_decay.stride(0),
        stride_slot=states.stride(0),
        HEADS=shape.heads,
        GROUP=1 if shape.per_channel else shape.group,
        KEY_DIM=shape.key_dim,
        VALUE_DIM=shape.value_dim,
        CHUNK=tile.chunk,
        KEYS=max(SUBCHUNK, next_power_of_two(shape.key_dim)),
        VALUES=tile.scan_values,
        PER_CHANNEL=shape.per_channel,
        PRECISION=dot_precision(query.device, query.dtype),
    )
    return output
