# SPDX-License-Identifier: MIT OR Apache-2.0
"""What importing the contract costs beside importing what it is built on, in fresh interpreters that take turns."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.registry import RedError
from benchmarks.timing import Timings, target

NOTHING, TYPING, TORCH = "nothing", "typing", "torch"
BASIS, PACKAGE = "typing_extensions, dataclasses, inspect", "metrale_caps"
ASKING, NAMES = "capability_of from metrale_caps", "every public name of metrale_caps"
STATEMENTS = {
    NOTHING: "pass",
    TYPING: "import typing",
    BASIS: f"import {BASIS}",
    PACKAGE: f"import {PACKAGE}",
    ASKING: f"from {PACKAGE} import capability_of",
    NAMES: f"from {PACKAGE} import *",
    TORCH: "import torch",
}
HEAVY = {"torch", "triton", "numpy", "transformers"}
ROUNDS_OF_TORCH = 3
ROOT = Path(__file__).parents[1]


def _seconds(statement: str) -> float:
    # the package of this tree if none is installed
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))}
    started = time.perf_counter()
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", statement], capture_output=True, text=True, check=False, env=environment
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RedError(f"{statement!r} failed: {done.stderr.strip().splitlines()[-1:]}")
    return seconds


def import_times(rounds: int) -> list[str]:
    """Return the lines about imports: wall-clock time, less that of an interpreter that imports nothing.

    Raises:
        RedError: an import fails, or the contract loads a heavy library.
    """
    _seconds(f"from {PACKAGE} import *; import sys; heavy = {HEAVY!r} & sys.modules.keys(); assert not heavy, heavy")
    taken: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for turn in range(rounds):
        nothing = _seconds(STATEMENTS[NOTHING])
        for name, statement in STATEMENTS.items():
            if name == NOTHING:
                taken[name].append(nothing)
            elif name != TORCH or turn < ROUNDS_OF_TORCH:
                taken[name].append(_seconds(statement) - nothing)
    timings = Timings(taken)
    return [
        "",
        f"imports in fresh interpreters, ms, less the {timings[NOTHING] * 1e3:.0f} ms of one that imports nothing",
        *(f"    {name:40s}{timings.spread(name, 1e-3)}" for name in STATEMENTS if name != NOTHING),
        target(f"{PACKAGE} over {BASIS}", timings.ratio(PACKAGE, BASIS), most=1.3),
        target(f"{ASKING} over the same", timings.ratio(ASKING, BASIS), most=1.3),
        target(f"{NAMES} over the same", timings.ratio(NAMES, BASIS), most=1.3),
        target(f"torch over {PACKAGE}", timings[TORCH] / timings[PACKAGE], least=50),
    ]
