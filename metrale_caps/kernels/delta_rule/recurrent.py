# SPDX-License-Identifier: MIT OR Apache-2.0
"""The delta rule row by row, for decode and verify: a program holds some value channels of one head's state.

The state is read and written once, its key channels neighbours, so that a warp moves whole lines.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from metrale_caps.kernels.architecture import architecture_of
from metrale_caps.kernels.delta_arguments import NOBODY, check_delta_rule, check_intermediates
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.tiles import next_power_of_two

_GPU_VALUES = 8
"""Value channels of a program: few, so that many programs keep enough bytes in flight between them."""


@triton.jit(do_not_specialize=["scale", "dummy_slot"])
def recurrent_delta_rule_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    log_decay: tl.tensor,
    beta: tl.tensor,
    states: tl.tensor,
    intermediates: tl.tensor,
    sequence_slots: tl.tensor,
    row_starts: tl.tensor,
    output: tl.tensor,
    scale: tl.tensor,
    dummy_slot: tl.tensor,
    stride_query_row: tl.tensor,
    stride_query_head: tl.tensor,
    stride_key_row: tl.tensor,
    stride_key_head: tl.tensor,
    stride_value_row: tl.tensor,
    stride_value_head: tl.tensor,
    stride_decay_row: tl.tensor,
    stride_decay_head: tl.tensor,
    stride_beta: tl.tensor,
    stride_slot: tl.tensor,
    stride_kept_slot: tl.tensor,
    stride_kept_row: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    KEEPS_ROWS: tl.constexpr,
):
    sequence = tl.program_id(0)
    start = tl.load(row_starts + sequence)
    end = tl.load(row_starts + sequence + 1)
    if start >= end:
        return
    slot = tl.load(sequence_slots + sequence).to(tl.int64)
    live = (slot >= 0) & (slot != dummy_slot)
    head = tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, KEYS)
    column = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    read = live & (channel < KEY_DIM)
    inside = live & (column < VALUE_DIM)[:, None] & (channel < KEY_DIM)[None, :]
    cell = (head * VALUE_DIM + column)[:, None] * KEY_DIM + channel[None, :]
    place = states + slot * stride_slot + cell
    state = tl.load(place, mask=inside, other=0.0)
    key_head = head // GROUP
    row = start.to(tl.int64)
    query_place = query + row * stride_query_row + key_head * stride_query_head + channel
    key_place = key + row * stride_key_row + key_head * stride_key_head + channel
    value_place = value + row * stride_value_row + head * stride_value_head + column
    decay_place = log_decay + row * stride_decay_row + head * stride_decay_head
    beta_place = beta + row * stride_beta + head
    output_place = output + (row * HEADS + head) * VALUE_DIM + column
    kept_place = intermediates + slot * stride_kept_slot + cell if KEEPS_ROWS else place
    for _ in range(start, end):
        k = tl.load(key_place, mask=read, other=0.0).to(tl.float32)
        v = tl.load(value_place, mask=live & (column < VALUE_DIM), other=0.0).to(tl.float32)
        b = tl.load(beta_place, mask=live, other=0.0)
        if PER_CHANNEL:
            state *= tl.exp(tl.load(decay_place + channel, mask=read, other=0.0))[None, :]
        else:
            state *= tl.exp(tl.load(decay_place, mask=live, other=0.0))
        said = tl.sum(state * k[None, :], 1)
        state += (b * (v - said))[:, None] * k[None, :]
        q = tl.load(query_place, mask=read, other=0.0).to(tl.float32)
        tl.store(output_place, tl.sum(state * q[None, :], 1) * scale, mask=column < VALUE_DIM)
        if KEEPS_ROWS:
            tl.store(kept_place, state, mask=inside)
            kept_place += stride_kept_row
        query_place += stride_query_row
        key_place += stride_key_row
        value_place += stride_value_row
        decay_place += stride_decay_row
        beta_place += stride_beta
        output_place += HEADS * VALUE_DIM
    tl.store(place, state, mask=inside)


def recurrent_delta_rule(
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
    intermediates: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run the delta rule over rows of packed sequences; each sequence's state is advanced in place.

    A sequence whose slot is -1 or `dummy_slot` is nobody's: its rows come out as zeros, and no state is touched.

    Args:
        query: `[rows, key_heads, key_dim]` fp32, fp16 or bf16, normalised; outer strides are free, as for `key`,
            `value`, `log_decay` and `beta`.
        key: likewise. Value head h has the key head `h // (heads // key_heads)`.
        value: `[rows, heads, value_dim]`, in the dtype of `query`.
        log_decay: `[rows, heads]`, or `[rows, heads, key_dim]` for a decay of each key channel; fp32, at most 0.
        beta: `[rows, heads]` fp32.
        states: `[slots, heads, value_dim, key_dim]` fp32; the stride of a slot is free.
        sequence_slots: `[sequences]` int32, where each sequence's state lies; no two the same, but for nobody's.
        row_starts: `[sequences + 1]` int32, the rows of each sequence.
        scale: factor of the queries.
        max_rows: upper bound of the rows of a sequence.
        dummy_slot: a slot that is nobody's, or None.
        intermediates: `[slots, verify_rows, heads, value_dim, key_dim]` fp32, to which the state after row i of a
            sequence is written at `[slot, i]`; the strides of slots and rows are free. None for none.

    Returns:
        `[rows, heads, value_dim]`, new, in the dtype of `query`.

    Raises:
        LaunchError: an argument does not fit; it is named.
    """
    shape = check_delta_rule(query, key, value, log_decay, beta, states, sequence_slots, row_starts)
    check_intermediates(intermediates, states, max_rows)
    output = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    values, warps = next_power_of_two(shape.value_dim), 1
    if not architecture_of(value.device).is_cpu:
        values = min(values, _GPU_VALUES)
    launch(
        recurrent_delta_rule_kernel,
        (sequence_slots.shape[0], shape.heads, triton.cdiv(shape.value_dim, values)),
        writes=("output", "states") if intermediates is None else ("output", "states", "intermediates"),
        num_warps=warps,
        num_stages=1,
        query=query,
        key=key,
        value=value,
        log_decay=log_decay,
        beta=beta,
        states=states,
        intermediates=intermediates,
        sequence_slots=sequence_slots,
        row_starts=row_starts,
        output=output,
        scale=scale,
        dummy_slot=NOBODY if dummy_slot is None else dummy_slot,
        stride_query_row=query.stride(0),
        stride_query_head=query.stride(1),
        stride_key_row=key.stride(0),
        stride_key_head=key.stride(1),
        stride_value_row=value.stride(0),
        stride_value_head=value.stride(1),
        stride_decay_row=log_decay.stride(0),
        stride_decay_head=log_decay.stride(1),
        stride_beta=beta.stride(0),
        stride_slot=states.stride(0),
        stride_kept_slot=0 if intermediates is None else intermediates.stride(0),
        stride_kept_row=0 if intermediates is None else intermediates.stride(1),
        HEADS=shape.heads,
        GROUP=shape.group,
        KEY_DIM=shape.key_dim,
        VALUE_DIM=shape.value_dim,
        KEYS=next_power_of_two(shape.key_dim),
        VALUES=values,
        PER_CHANNEL=shape.per_channel,
        KEEPS_ROWS=intermediates is not None,
    )
    return output
