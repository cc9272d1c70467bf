# SPDX-License-Identifier: MIT OR Apache-2.0
"""Our delta rules and flash-linear-attention's kernels, which run unmodified on the same executor, agree."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOLERANCES = {"torch.float32": 2e-6, "torch.bfloat16": 8e-3}
"""Relative to the largest magnitude: float32 sums in another order, and a few roundings to bfloat16's 8 bits."""


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What the script measured, in a process of its own."""
    if importlib.util.find_spec("fla") is None:
        pytest.skip("flash-linear-attention is not installed")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    ended = subprocess.run(  # noqa: S603 - this interpreter, on files of this directory
        [sys.executable, str(Path(__file__).with_name("peer_delta_rule.py"))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "FLA_CACHE_RESULTS": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


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
