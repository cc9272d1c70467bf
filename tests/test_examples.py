# SPDX-License-Identifier: MIT OR Apache-2.0
"""The examples run and print what they say."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrale_caps import QUERIES, LayerCapabilities, audit_layer

if TYPE_CHECKING:
    import pytest

_EXAMPLES = Path(__file__).parents[1] / "examples"


def test_own_layer_changes_the_routes_and_not_the_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """The layer is named in the decisions it changed, counts each sequence on its own, and both answers are right."""
    runpy.run_path(str(_EXAMPLES / "own_layer.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("batched_decode: one sequence at a time (hc_perseq)")
    assert "layer 2 " in lines[0]
    assert "layer 2 " in lines[1]
    assert sum("layer 2 saw" in line for line in lines) == 2
    assert lines[-2] == "The capital of France is Paris."
    assert lines[-1].startswith("The sea is a vast and mysterious realm")


def test_own_layer_passes_the_audit() -> None:
    """Around a layer that does nothing, so that all findings are its own."""
    counting: Any = runpy.run_path(str(_EXAMPLES / "own_layer.py"))["CountingLayer"]
    layer = counting(object())
    assert audit_layer(layer).findings == ()
    assert LayerCapabilities.of(layer).decode_rollback_unsupported  # a count knows no way back


def test_plugin_layer_answers_as_its_readme_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table has all ten queries, each with the answer that the layer gives and whether it declares it."""
    folder = _EXAMPLES / "plugin_layer"
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    from metrale_sliding_window import example

    capabilities = LayerCapabilities.of(example())
    declared = {
        name: ", declared" if source.value == "declared" else "" for name, source in capabilities.sources.items()
    }
    readme = (folder / "README.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| `(\w+)` \| (\w+(?:, declared)?) \|", readme, re.MULTILINE))
    assert said == {name: f"{capabilities.answer(name)}{declared[name]}" for name in QUERIES}
