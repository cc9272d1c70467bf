# SPDX-License-Identifier: MIT OR Apache-2.0
"""Twins of the delta rule: the recurrence itself, and chunks whose decays are computed pair by pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from metrale_caps.kernels.delta_arguments import NOBODY, check_delta_rule, check_gates, check_intermediates
from metrale_caps.kernels.host import host_integers
from metrale_caps.kernels.recording import recordable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

_CHUNK = 64
_CHANNEL_CHUNK = 16
"""Rows of a chunk with decays of channels, where a number for each pair of rows and channel is held."""


def delta_gates(decay_input: Tensor, beta_input: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return log decay and beta; see the kernel's launcher of the same name."""
    check_gates(decay_input, beta_input, a_log, dt_bias)
    rate = a_log.float().exp()
    rate = rate[:, None] if decay_input.dim() > beta_input.dim() else rate
    steps = functional.softplus(decay_input.float() + dt_bias.float())
    return steps.mul_(rate).neg_(), beta_input.float().sigmoid()


def _mixed(_query: object, _key: object, value: Tensor, *_: object, **__: Any) -> Tensor:
    return torch.empty_like(value, memory_format=torch.contiguous_format)


@recordable(_mixed)
def recurrent_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    sequence_slots: Tensor,
    row_starts: Tensor,
    *,
    scale: float,
    max_rows: int,
    dummy_slot: int | None = None,
    intermediates: Tensor | None = None,
) -> Tensor:
    """Advance states in place and return the rows; see the kernel's launcher of the same name."""
    shape = check_delta_rule(query, key, value, log_decay, beta, states, sequence_slots, row_starts)
    check_intermediates(intermediates, states, max_rows)
    output = torch.zeros_like(value, memory_format=torch.contiguous_format)
    for slot, rows in _live(sequence_slots, row_starts, dummy_slot):
        q = query[rows].float().repeat_interleave(shape.group, 1)
        k = key[rows].float().repeat_interleave(shape.group, 1)
        decay = log_decay[rows].exp()
        decay = decay[:, :, None] if shape.per_channel else decay[:, :, None, None]
        v, state = value[rows].float(), states[slot]
        for row in range(q.shape[0]):
            state.mul_(decay[row])
            said = torch.matmul(state, k[row][:, :, None])[..., 0]
            state += (beta[rows][row][:, None] * (v[row] - said))[..., None] * k[row][:, None]
            output[rows][row] = torch.matmul(state, q[row][:, :, None] * scale)[..., 0]
            if intermediates is not None:
                intermediates[slot, row] = state
    return output


@recordable(_mixed)
def chunked_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    sequence_slots: Tensor,
    row_starts: Tensor,
    *,
    scale: float,
    max_rows: int,
    dummy_slot: int | None = None,
) -> Tensor:
    """Advance states in place and return the rows; see the kernel's launcher of the same name."""
    del max_rows
    shape = check_delta_rule(query, key, value, log_decay, beta, states, sequence_slots, row_starts)
    output = torch.zeros_like(value, memory_format=torch.contiguous_format)
    size = _CHANNEL_CHUNK if shape.per_channel else _CHUNK
    decays = log_decay if shape.per_channel else log_decay[..., None]
    for slot, rows in _live(sequence_slots, row_starts, dummy_slot):
        for first in range(rows.start, rows.stop, size):
            chunk = slice(first, min(first + size, rows.stop))
            q, k = (one[chunk].float().repeat_interleave(shape.group, 1).transpose(0, 1) for one in (query, key))
            v, g = value[chunk].float().transpose(0, 1), decays[chunk].transpose(0, 1)
            mixed = _chunk(q * scale, k, v, g, beta[chunk].t()[..., None], states[slot])
            output[chunk] = mixed.transpose(0, 1)
    return output


def _chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """Advance the state `[heads, value_dim, key_dim]` in place over a chunk, all tensors `[heads, rows, width]`."""
    rows = q.shape[1]
    after = torch.ones(rows, rows, dtype=torch.bool, device=q.device).tril(-1)
    # [heads, i, j, width]: the sum of g over rows j + 1 to i
    between = torch.where(after[:, :, None], g[:, :, None], 0.0).cumsum(1).exp_()
    products, scores = (_decayed_products(rows_of, k, between) for rows_of in (k, q))
    since = g.cumsum(1).exp()
    until = between[:, -1]
    unit = (beta * products).tril(-1)
    right = torch.cat([v, k * since], dim=-1) * beta
    linalg: Any = torch.linalg  # torch leaves the solver's type open
    solved: Tensor = linalg.solve_triangular(unit, right, upper=False, unitriangular=True)
    u, w = solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]
    corrected = u - torch.matmul(w, state.mT)
    mixed = torch.matmul(q * since, state.mT) + torch.matmul(scores.tril(), corrected)
    state.mul_(since[:, -1:]).add_(torch.matmul(corrected.mT, k * until))
    return mixed


def _decayed_products(rows: Tensor, k: Tensor, between: Tensor) -> Tensor:
    if between.shape[-1] == 1:
        return torch.matmul(rows, k.mT) * between[..., 0]
    return (rows[:, :, None] * k[:, None] * between).sum(-1)


def _live(sequence_slots: Tensor, row_starts: Tensor, dummy_slot: int | None) -> Iterator[tuple[int, slice]]:
    """Yield the slot and the rows of each sequence that is somebody's and has any."""
    starts = host_integers(row_starts)
    for sequence, slot in enumerate(host_integers(sequence_slots)):
        rows = slice(starts[sequence], starts[sequence + 1])
        if slot not in {NOBODY, dummy_slot} and rows.start < rows.stop:
            yield slot, rows
