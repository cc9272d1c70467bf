# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernels that others wrote for GPUs run unmodified, and agree with their authors' own plain-torch references."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
TOLERANCES = {"torch.float32": 2e-6, "torch.bfloat16": 8e-3}
"""Relative to the largest magnitude: float32 sums in another order, and a few roundings to bfloat16's 8 bits."""


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What the script of foreign kernels measured, in a process of its own."""
    if importlib.util.find_spec("fla") is None:
        pytest.skip("flash-linear-attention is not installed")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    ended = subprocess.run(  # noqa: S603 - this interpreter, on files of this directory
        [sys.executable, str(Path(__file__).with_name("foreign_kernels.py"))],
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
    "case",
    [
        "fused_recurrent_gated_delta_rule",
        "chunk_gated_delta_rule",
        "fused_recurrent_kda",
        "chunk_kda",
        "causal_conv1d",
    ],
)
def test_foreign_kernels_agree_with_their_reference(results: dict[str, Any], case: str, dtype: str) -> None:
    """The kernels' outputs, and the final state where there is one."""
    assert results["errors"][case][dtype] <= TOLERANCES[dtype]


def test_foreign_kernels_were_really_executed(results: dict[str, Any]) -> None:
    """The wrappers did not fall back on plain torch."""
    assert len(results["launched"]) >= 8, results["launched"]
