# SPDX-License-Identifier: MIT OR Apache-2.0
"""Giving pages back changes no value."""

from __future__ import annotations

from pathlib import Path

import torch

from metrale_caps.models.memory import page_out


def _resident_file_kilobytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssFile"))


def test_pages_of_a_mapped_file_leave_and_come_back_unchanged(tmp_path: Path) -> None:
    """A file-backed tensor is no longer resident afterwards, and reads as before."""
    expected = torch.arange(1 << 22, dtype=torch.float32)
    (tmp_path / "weights").write_bytes(expected.numpy().tobytes())
    tensor = torch.from_file(str(tmp_path / "weights"), shared=False, size=1 << 22, dtype=torch.float32)
    assert torch.equal(tensor, expected)
    touched = _resident_file_kilobytes()
    page_out(tensor)
    assert touched - _resident_file_kilobytes() > 8 << 10
    assert torch.equal(tensor, expected)


def test_ordinary_memory_keeps_its_content() -> None:
    """The advice is harmless for memory that no file backs, and for tensors of any size."""
    for size in (0, 1, 1 << 20):
        tensor = torch.full((size,), 3.0)
        page_out(tensor)
        assert bool((tensor == 3.0).all())
