# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every entry of the table of operations is used by a kernel of these tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from metrale_caps.kernels.executor.operations import OPERATIONS

HERE = Path(__file__).parent
RECORD = "METRALE_CAPS_EMITTED_OPERATIONS"


def test_every_operation_is_emitted_by_a_test(tmp_path: Path) -> None:
    """The tests of operations run once more, with few examples, in a process that notes what is generated.

    A process of its own, because what this one has run so far depends on the order of the tests.
    """
    record = tmp_path / "emitted"
    modules = [
        HERE / name
        for name in (
            "test_integer_operations.py",
            "test_float_operations.py",
            "test_conversions.py",
            "test_tensor_operations.py",
            "test_memory_operations.py",
            "test_control_flow.py",
        )
    ]
    options = ["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider"]
    ended = subprocess.run(  # noqa: S603 - this interpreter, on files of this directory
        [sys.executable, "-P", "-m", "pytest", *options, *map(str, modules)],
        env={**os.environ, RECORD: str(record)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    emitted = set(record.read_text().split())
    assert not sorted(set(OPERATIONS) - emitted), "no test kernel uses these entries"
    assert emitted <= set(OPERATIONS)
