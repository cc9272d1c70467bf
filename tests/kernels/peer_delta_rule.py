# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs flash-linear-attention's gated delta rules, unmodified, on the executor beside ours on the same inputs.

A script for the reason that the script it shares the diversion with is one. Prints one JSON object: for each rule and
shape the largest differences of outputs and states, relative to the peer's largest magnitude.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from metrale_caps.kernels import delta_rule
from tests.kernels.executor.foreign_kernels import divert_launches, launched, relative_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class Case(NamedTuple):
    """One sequence: rows, heads of keys and of values, widths."""

    rows: int
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int


CASES = (Case(80, 2, 2, 32, 32), Case(130, 2, 4, 64, 32), Case(97, 3, 3, 48, 64))


def inputs(case: Case, dtype: torch.dtype, *, per_channel: bool) -> dict[str, Tensor]:
    """What the peer takes, `[1, rows, heads, width]`, and a state `[1, heads, key_dim, value_dim]`."""
    generator = torch.Generator().manual_seed(0)
    keys = (1, case.rows, case.key_heads, case.key_dim)
    channels = (case.key_dim,) if per_channel else ()
    query, key = (functional.normalize(torch.randn(keys, generator=generator), dim=-1).to(dtype) for _ in range(2))
    return {
        "q": query,
        "k": key,
        "v": torch.randn(1, case.rows, case.heads, case.value_dim, generator=generator).to(dtype),
        "g": -0.2 * torch.rand(1, case.rows, case.heads, *channels, generator=generator),
        "beta": torch.rand(1, case.rows, case.heads, generator=generator).to(dtype),
        "initial_state": torch.randn(1, case.heads, case.key_dim, case.value_dim, generator=generator),
    }


def differences(peer: Callable[..., Any], rule: Callable[..., Tensor], given: dict[str, Tensor]) -> list[float]:
    """Differences of the outputs and of the final states."""
    expected, final = peer(**given, output_final_state=True)
    rows, key_dim = given["q"].shape[1], given["q"].shape[3]
    states = given["initial_state"].transpose(2, 3).contiguous()
    output = rule(
        given["q"][0],
        given["k"][0],
        given["v"][0],
        given["g"][0],
        given["beta"][0].float(),
        states,
        torch.tensor([0], dtype=torch.int32),
        torch.tensor([0, rows], dtype=torch.int32),
        scale=key_dim**-0.5,
        max_rows=rows,
    )
    return [relative_error(output[None], expected), relative_error(states.transpose(2, 3), final)]


def main() -> None:
    """Run every rule and shape in both precisions."""
    divert_launches()
    gated, attention = import_module("fla.ops.gated_delta_rule"), import_module("fla.ops.kda")
    chunked, recurrent = delta_rule.chunked_delta_rule, delta_rule.recurrent_delta_rule
    rules: dict[str, tuple[Callable[..., Any], Callable[..., Tensor], bool]] = {
        "chunk_gated_delta_rule": (gated.chunk_gated_delta_rule, chunked, False),
        "fused_recurrent_gated_delta_rule": (gated.fused_recurrent_gated_delta_rule, recurrent, False),
        "chunk_kda": (attention.chunk_kda, chunked, True),
        "fused_recurrent_kda": (attention.fused_recurrent_kda, recurrent, True),
    }
    with torch.no_grad():
        found = {
            name: {
                str(dtype): [differences(peer, rule, inputs(case, dtype, per_channel=per_channel)) for case in CASES]
                for dtype in (torch.float32, torch.bfloat16)
            }
            for name, (peer, rule, per_channel) in rules.items()
        }
    sys.stdout.write(json.dumps({"differences": found, "launched": sorted(launched)}))


if __name__ == "__main__":
    main()
