# SPDX-License-Identifier: MIT OR Apache-2.0
"""Our delta rules and flash-linear-attention's kernels, which run unmodified on the same executor, agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kernels.foreign_scripts import TOLERANCES, run_script


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What the script measured, in a process of its own."""
    return run_script(Path(__file__).with_name("peer_delta_rule.py"))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    "rule",
    ["fused_recurrent_gated_delta_rule", "chunk_gated_delta_rule", "fused_recurrent_kda", "chunk_kda"],
)
def test_outputs_and_states_are_the_peers(results: dict[str, Any], rule: str, dtype: str) -> None:
    """For several rows, heads and widths, a state that was there before, and value heads that share a key head."""
    for output, state in results["differences"][rule][dtype]:
        assert output <= TOLERANCES[dtype]
        assert state <= TOLERANCES[dtype]


def test_peers_kernels_were_really_executed(results: dict[str, Any]) -> None:
    """The wrappers did not fall back on plain torch."""
    assert len(results["launched"]) >= 7, results["launched"]
