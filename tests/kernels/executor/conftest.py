# SPDX-License-Identifier: MIT OR Apache-2.0
"""Notes which operations the generator emitted, if a test asks for it by naming a file in the environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

RECORD = "METRALE_CAPS_EMITTED_OPERATIONS"


@pytest.fixture(scope="session", autouse=True)
def _record_of_emitted_operations() -> object:
    """Write the names of all emitted operations to the named file when the session ends."""
    target = os.environ.get(RECORD)
    if target is None:
        yield None
        return
    from metrale_caps.kernels.executor import writer  # noqa: PLC0415 - not needed where nothing is noted

    emitted: set[str] = set()
    original = writer.Writer.emit

    def emit(self: writer.Writer, operation: object) -> None:
        original(self, operation)
        emitted.update(self.emitted)

    writer.Writer.emit = emit
    yield None
    writer.Writer.emit = original
    Path(target).write_text("\n".join(sorted(emitted)))


del settings
