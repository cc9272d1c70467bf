# SPDX-License-Identifier: MIT OR Apache-2.0
"""Output that cannot be written: how the command ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_output_that_cannot_be_written_is_one_sentence(unbuffered: str) -> None:
    """A full disk is told, whether it is met while writing or at the end."""
    done = _list_to("/dev/full", unbuffered)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["metrale-caps: [Errno 28] No space left on device"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_who_left_before_the_end_is_no_error(unbuffered: str) -> None:
    """Nobody is told of what nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = _list_to(writer, unbuffered)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def _list_to(output: str | int, unbuffered: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "metrale_caps", "list"]
    with open(output, "w", encoding="utf-8", closefd=isinstance(output, str)) as stdout:
        return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, env=environment)  # noqa: S603
