# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the launchers of the delta rule and their twins are given, and its checks; without Triton, as the twins are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.checks import FLOATS, expect_contiguous, expect_dtype, expect_inner_contiguous, expect_shape

if TYPE_CHECKING:
    from torch import Tensor

NOBODY = -1
"""Slot of a sequence that is none."""


class DeltaShape(NamedTuple):
    """Sizes of one call.

    Attributes:
        rows: rows of all sequences.
        key_heads: heads of queries and keys.
        heads: heads of values, of the state and of the result.
        key_dim: width of a query and a key.
        value_dim: width of a value.
        per_channel: whether each key channel has a decay of its own.
    """

    rows: int
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    per_channel: bool

    @property
    def group(self) -> int:
        """Value heads that share a key head."""
        return self.heads // self.key_heads


def check_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    sequence_slots: Tensor,
    row_starts: Tensor,
) -> DeltaShape:
    """Check the tensors of a delta rule and return its sizes.

    Raises:
        LaunchError: a shape, dtype or stride does not fit; it is named.
    """
    expect_shape("query", query, rows=None, key_heads=None, key_dim=None)
    rows, key_heads, key_dim = query.shape
    expect_shape("key", key, rows=rows, key_heads=key_heads, key_dim=key_dim)
    expect_shape("value", value, rows=rows, heads=None, value_dim=None)
    _, heads, value_dim = value.shape
    if not key_heads or heads % key_heads:
        raise LaunchError(f"{heads} value heads cannot share {key_heads} key heads evenly")
    expect_shape("beta", beta, rows=rows, heads=heads)
    per_channel = log_decay.dim() == query.dim()
    channels = {"key_dim": key_dim} if per_channel else {}
    expect_shape("log_decay", log_decay, rows=rows, heads=heads, **channels)
    expect_shape("states", states, slots=None, heads=heads, value_dim=value_dim, key_dim=key_dim)
    expect_shape("sequence_slots", sequence_slots, sequences=None)
    expect_shape("row_starts", row_starts, sequences_and_one=sequence_slots.shape[0] + 1)
    expect_dtype("query", query, *FLOATS)
    for name, tensor in (("key", key), ("value", value)):
        expect_dtype(name, tensor, query.dtype)
    for name, tensor in (("log_decay", log_decay), ("beta", beta), ("states", states)):
        expect_dtype(name, tensor, torch.float32)
    for name, tensor in (("sequence_slots", sequence_slots), ("row_starts", row_starts)):
        expect_dtype(name, tensor, torch.int32)
        expect_inner_contiguous(name, tensor)
    named = {"query": query, "key": key, "value": value, "log_decay": log_decay, "beta": beta}
    for name, tensor in named.items():
        expect_inner_contiguous(name, tensor)
    if states.numel() and not states[0].is_contiguous():
        raise LaunchError(f"a slot of states must be contiguous, but the strides are {states.stride()}")
    return DeltaShape(rows, key_heads, heads, key_dim, value_dim, per_channel)


def check_intermediates(intermediates: Tensor | None, states: Tensor, max_rows: int) -> None:
    """Check the tensor that takes the state after each row.

    Raises:
        LaunchError: a shape, dtype or stride does not fit, or it has fewer rows than a sequence may have.
    """
    if intermediates is None:
        return
    slots, heads, value_dim, key_dim = states.shape
    sizes = {"slots": slots, "verify_rows": None, "heads": heads, "value_dim": value_dim, "key_dim": key_dim}
    expect_shape("intermediates", intermediates, **sizes)
    expect_dtype("intermediates", intermediates, torch.float32)
    if intermediates.numel() and not intermediates[0, 0].is_contiguous():
        raise LaunchError(f"a row of intermediates must be contiguous, but the strides are {intermediates.stride()}")
    if max_rows > intermediates.shape[1]:
        raise LaunchError(
            f"a sequence may have {max_rows} rows, but intermediates holds the states of {intermediates.shape[1]}"
        )


def check_gates(decay_input: Tensor, beta_input: Tensor, a_log: Tensor, dt_bias: Tensor) -> None:
    """Check the tensors of `delta_gates`.

    Raises:
        LaunchError: a shape, dtype or stride does not fit; it is named.
    """
    expect_shape("beta_input", beta_input, rows=None, heads=None)
    rows, heads = beta_input.shape
    channels = {} if decay_input.dim() == beta_input.dim() else {"key_dim": None}
    expect_shape("decay_input", decay_input, rows=rows, heads=heads, **channels)
    expect_shape("a_log", a_log, heads=heads)
    expect_shape("dt_bias", dt_bias, heads=heads, **(channels and {"key_dim": decay_input.shape[2]}))
    named = {"decay_input": decay_input, "beta_input": beta_input, "a_log": a_log, "dt_bias": dt_bias}
    for name, tensor in named.items():
        expect_dtype(name, tensor, *FLOATS)
        expect_inner_contiguous(name, tensor)
    expect_contiguous("dt_bias", dt_bias)
    if rows:
        expect_contiguous("a row of decay_input", decay_input[0])
