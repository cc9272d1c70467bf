# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs a script over kernels of flash-linear-attention in a process of its own, and returns what it found."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
TOLERANCES = {"torch.float32": 2e-6, "torch.bfloat16": 8e-3}
"""Relative to the largest magnitude: float32 sums in another order, and a few roundings to bfloat16's 8 bits."""


def run_script(script: Path) -> dict[str, Any]:
    """Return the JSON object that a script prints; the test is skipped where the foreign package is not installed."""
    if importlib.util.find_spec("fla") is None:
        pytest.skip("flash-linear-attention is not installed")
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    ended = subprocess.run(  # noqa: S603 - this interpreter, on files of this directory
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "FLA_CACHE_RESULTS": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found
