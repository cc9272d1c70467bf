# SPDX-License-Identifier: MIT OR Apache-2.0
"""Notes which operations the generator emitted, if a test asks for it by naming a file in the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from metrale_caps.kernels.executor.ir import Operation

RECORD = "METRALE_CAPS_EMITTED_OPERATIONS"


@pytest.fixture(scope="session", autouse=True)
def record_of_emitted_operations() -> Generator[None]:
    """Write the names of all emitted operations to the named file when the session ends."""
    target = os.environ.get(RECORD)
    if target is None:
        yield
        return
    from metrale_caps.kernels.executor.writer import Writer

    emitted: set[str] = set()
    original = Writer.emit

    def emit(self: Writer, operation: Operation) -> None:
        original(self, operation)
        emitted.update(self.emitted)

    Writer.emit = emit
    yield
    Writer.emit = original
    Path(target).write_text("\n".join(sorted(emitted)))
