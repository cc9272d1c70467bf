# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernels that others wrote for GPUs run unmodified, and agree with their authors' own plain-torch references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kernels.foreign_scripts import TOLERANCES, run_script


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What the script of foreign kernels measured, in a process of its own."""
    return run_script(Path(__file__).with_name("foreign_kernels.py"))


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
