# SPDX-License-Identifier: MIT OR Apache-2.0
"""Shipped configurations of the kernels that recurrent layers call, at the shapes of Qwen3-Next and Kimi Linear."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from metrale_caps.kernels.causal_conv import causal_conv
from metrale_caps.kernels.configuration import BF16, FP32, META, SEQUENCES, Configuration, empty
from metrale_caps.kernels.delta_rule import chunked_delta_rule, delta_gates, recurrent_delta_rule
from metrale_caps.kernels.gated_rms_norm import gated_rms_norm
from metrale_caps.kernels.l2_norm import l2_norm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metrale_caps.kernels.gated_rms_norm import GateActivation

_SLOTS = 4096
_SLOT_NUMBERS = 2**24
"""Numbers between two slots: a slot holds the states of all layers."""
_CHUNK_ROWS = 512
_VERIFY_ROWS = 4


def _slots(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return states of a pool: contiguous inside a slot, with other layers' between slots."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    sizes = (_SLOTS, *shape)
    outer = (_SLOT_NUMBERS,) if len(strides) == len(shape) else (_SLOT_NUMBERS, strides[0] * shape[1])
    return torch.empty_strided(sizes, (*outer, *strides), dtype=dtype, device=META)


def _integers(count: int) -> torch.Tensor:
    return empty(count, dtype=torch.int32)


def _conv(rows: int, dtype: torch.dtype = BF16, *, channels: int = 8192, keeps_rows: bool = False) -> None:
    packed = empty(rows * SEQUENCES, channels + 4160, dtype=dtype)
    causal_conv(
        packed[:, :channels],
        empty(4, channels, dtype=dtype),
        _slots(3, channels, dtype=dtype),
        _integers(SEQUENCES),
        _integers(SEQUENCES + 1),
        max_rows=rows,
        dummy_slot=_SLOTS - 1,
        intermediates=_slots(rows, 3, channels, dtype=dtype) if keeps_rows else None,
    )


def _l2(heads: int, width: int) -> None:
    l2_norm(empty(SEQUENCES, 3 * heads, width)[:, :heads])


def _gated(heads: int, width: int, dtype: torch.dtype, activation: GateActivation) -> None:
    packed = empty(SEQUENCES, 3 * heads, width, dtype=dtype)
    x, weight = empty(SEQUENCES, heads, width, dtype=dtype), empty(width, dtype=dtype)
    gated_rms_norm(x, packed[:, heads : 2 * heads], weight, 1e-6, activation=activation)


def _gates(heads: int, key_dim: int | None) -> None:
    shape = (heads,) if key_dim is None else (heads, key_dim)
    packed = empty(SEQUENCES, 2 * heads)
    decay = packed[:, :heads] if key_dim is None else empty(SEQUENCES, *shape)
    delta_gates(decay, packed[:, heads:], empty(heads, dtype=FP32), empty(*shape, dtype=FP32))


def _delta(
    heads: tuple[int, int],
    width: int,
    rows: int,
    *,
    per_channel: bool = False,
    chunked: bool = False,
    dtype: torch.dtype = BF16,
    keeps_rows: bool = False,
) -> None:
    key_heads, value_heads = heads
    count = rows * SEQUENCES
    packed = empty(count, 2 * key_heads + value_heads, width, dtype=dtype)
    arguments = (
        packed[:, :key_heads],
        packed[:, key_heads : 2 * key_heads],
        packed[:, 2 * key_heads :],
        empty(count, value_heads, *((width,) if per_channel else ()), dtype=FP32),
        empty(count, value_heads, dtype=FP32),
        _slots(value_heads, width, width, dtype=FP32),
        _integers(SEQUENCES),
        _integers(SEQUENCES + 1),
    )
    if chunked:
        chunked_delta_rule(*arguments, scale=width**-0.5, max_rows=rows, dummy_slot=_SLOTS - 1)
        return
    kept = _slots(rows, value_heads, width, width, dtype=FP32) if keeps_rows else None
    recurrent_delta_rule(*arguments, scale=width**-0.5, max_rows=rows, dummy_slot=_SLOTS - 1, intermediates=kept)


def _delta_configurations() -> dict[str, Configuration]:
    found: dict[str, Configuration] = {}
    for kind, heads, per_channel in (("gated delta net", (16, 32), False), ("kimi delta", (32, 32), True)):
        delta = functools.partial(_delta, heads, per_channel=per_channel)
        found[f"{kind} decode bf16 d128 {heads[0]}/{heads[1]}"] = Configuration(
            "recurrent_delta_rule_kernel", functools.partial(delta, 128, 1)
        )
        found[f"{kind} verify bf16 d128 {heads[0]}/{heads[1]}"] = Configuration(
            "recurrent_delta_rule_kernel", functools.partial(delta, 128, _VERIFY_ROWS, keeps_rows=True)
        )
        for dtype, name, width in ((BF16, "bf16", 128), (BF16, "bf16", 64), (FP32, "fp32", 64)):
            chunks = functools.partial(delta, width, _CHUNK_ROWS, chunked=True, dtype=dtype)
            shape = f"{name} d{width} {heads[0]}/{heads[1]}"
            for part, kernel in (("prepare", "prepare_chunks_kernel"), ("scan", "scan_chunks_kernel")):
                found[f"{kind} {part} {shape}"] = Configuration(
                    kernel, chunks, multiplies=True, many_rows=dtype == BF16
                )
    return found


RECURRENT: Mapping[str, Configuration] = {
    "causal_conv decode bf16 8192": Configuration("causal_conv_kernel", lambda: _conv(1)),
    "causal_conv decode fp32 512": Configuration("causal_conv_kernel", lambda: _conv(1, FP32, channels=512)),
    "causal_conv verify bf16 8192": Configuration("causal_conv_kernel", lambda: _conv(_VERIFY_ROWS, keeps_rows=True)),
    "causal_conv prefill bf16 8192": Configuration("causal_conv_kernel", lambda: _conv(_CHUNK_ROWS)),
    "causal_conv states bf16 8192": Configuration("causal_conv_states_kernel", lambda: _conv(_CHUNK_ROWS)),
    "l2_norm bf16 32 x 128": Configuration("l2_norm_kernel", lambda: _l2(32, 128)),
    "gated_rms_norm silu bf16 32 x 128": Configuration("gated_rms_norm_kernel", lambda: _gated(32, 128, BF16, "silu")),
    "gated_rms_norm sigmoid bf16 32 x 128": Configuration(
        "gated_rms_norm_kernel", lambda: _gated(32, 128, BF16, "sigmoid")
    ),
    "delta_gates bf16 32": Configuration("delta_gates_kernel", lambda: _gates(32, None)),
    "delta_gates bf16 32 x 128": Configuration("delta_gates_kernel", lambda: _gates(32, 128)),
    **_delta_configurations(),
}
