# SPDX-License-Identifier: MIT OR Apache-2.0
"""The registered cases, and the machine they ran on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Case:
    """A benchmark.

    Attributes:
        name: what to call it by.
        about: one line.
        run: measures, and returns the lines to print. It raises `RedError` where the results are wrong.
    """

    name: str
    about: str
    run: Callable[[list[str]], list[str]]


class RedError(Exception):
    """The measured code gives wrong results, so its times mean nothing."""


def spread(values: list[float]) -> str:
    """Return median, minimum and maximum."""
    return f"{median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def machine() -> list[str]:
    """Return the machine, versions and commit."""
    versions = ", ".join(f"{name} {_version(name)}" for name in ("torch", "triton", "transformers", "metrale-caps"))
    return [
        f"machine: {_processor()}, {os.cpu_count()} cores, {platform.platform()}, CPython {platform.python_version()}",
        f"versions: {versions}; commit {_commit()}",
    ]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "from the source tree"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)  # noqa: S603
    return done.stdout.strip() or "unknown"
