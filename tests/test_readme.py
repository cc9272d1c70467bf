# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the README shows is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from metrale_caps import QUERIES, audit_layer

_README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```python\n(.*?)^```", _README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", _BLOCKS, ids=lambda block: block.splitlines()[0])
def test_examples_run(block: str) -> None:
    """Each Python example runs, with its assertions."""
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)  # noqa: S102 - the file is ours


def test_layers_that_can_run_pass_the_audit() -> None:
    """What a reader copies whole has no finding; the others show one thing each and cannot decode."""
    names: dict[str, Any] = {}
    for block in _BLOCKS:
        if "class " in block:
            exec(compile(block, "README.md", "exec"), names)  # noqa: S102 - the file is ours
    whole = [cls for cls in names.values() if isinstance(cls, type) and "decode" in vars(cls)]
    assert [cls.__name__ for cls in whole] == ["SparseAttention"]
    assert [finding for cls in whole for finding in audit_layer(cls()).findings] == []


def test_table_of_queries_is_the_table() -> None:
    """Every row says what `QUERIES` says, in its order."""
    [section] = re.findall(r"^## The ten queries\n(.*?)^## ", _README, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|$", section, re.MULTILINE)
    shown = [
        (name, *(cell.replace("**", "").replace("\\|", "|") for cell in re.split(r" (?<!\\)\| ", cells)))
        for name, cells in rows
    ]
    assert shown == [
        (row.name, row.answer_type, str(row.default), row.fold.value, row.asked.value) for row in QUERIES.values()
    ]
