# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the README shows is true."""

from __future__ import annotations

import dataclasses
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
    assert [cls.__name__ for cls in whole] == ["SparseAttention", "MovingAverage"]
    assert [finding for cls in whole for finding in audit_layer(cls()).findings] == []


def test_recurrent_layer_of_the_readme_keeps_its_averages_in_the_pool() -> None:
    """It runs in a model as it stands there, alone and in a batch, from graphs too."""
    from metrale_caps.engine import Engine
    from metrale_caps.kernels.operations import operations
    from metrale_caps.models.registry import build_decoder
    from tests.tiny_models import shared_tiny

    names: dict[str, Any] = {}
    [block] = [block for block in _BLOCKS if "class MovingAverage" in block]
    exec(compile(block, "README.md", "exec"), names)  # noqa: S102 - the file is ours
    decoder = build_decoder(shared_tiny("llama"), operations("naive"), consume=False)
    engine = Engine(dataclasses.replace(decoder, layers=(*decoder.layers, names["MovingAverage"]())))
    prompts = [[5, 17, 99], [42, 8], [61, 120, 33, 74, 19]]
    together = engine.generate(prompts, max_new_tokens=8, ignore_eos=True)
    alone = [engine.generate([prompt], max_new_tokens=8, ignore_eos=True)[0] for prompt in prompts]
    assert [output.token_ids for output in together] == [output.token_ids for output in alone]
    assert engine.counters.graph_replays > 0
    assert engine.counters.capture_failures == 0


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
