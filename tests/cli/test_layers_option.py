# SPDX-License-Identifier: MIT OR Apache-2.0
"""`--layers`: the layers of a plugin in a model that a command builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from metrale_caps.cli import main
from metrale_caps.models import replacements
from metrale_caps.plugins import LayerPlugins, PluginLayer, PluginOrigin

if TYPE_CHECKING:
    from pathlib import Path

    from metrale_caps.plugins import BlockSource

_ORIGIN = PluginOrigin("layers", "layers:register", "other-layers", "1.2")


class Halving:
    """Halves its rows."""

    def decode(self, hidden: Any, _context: Any, /) -> Any:
        """Halve one row."""
        return hidden * 0.5

    def decode_verify_multi_unsupported(self) -> bool:
        """No verify is written."""
        return True


def _second_only(source: BlockSource) -> object | None:
    return Halving() if source.index == 1 else None


def _failing(source: BlockSource) -> object | None:
    raise ValueError(f"no room in block {source.index}")


def _leaving(_source: BlockSource) -> object | None:
    raise SystemExit(7)


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers of one plugin."""
    builds = {"second_only": _second_only, "failing": _failing, "leaving": _leaving}
    layers = {name: PluginLayer(name, build, Halving, _ORIGIN) for name, build in builds.items()}
    monkeypatch.setattr(replacements, "load_plugins", lambda: LayerPlugins(layers, (), (_ORIGIN,)))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama without a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_hidden_layers=3
    )
    model: Any = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return folder


def test_explain_shows_the_layers_where_they_stand(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the engine's own, with what the mixture decides."""
    assert main(["explain", str(checkpoint), "--layers", "second_only"]) == 0
    text = capsys.readouterr().out
    assert "layer 1: " in text
    assert "Halving" in text
    assert "2 layers (0, 2): metrale_caps.layers.attention.GroupedQueryAttentionLayer" in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("failing", "building it for block 0 raised ValueError: no room in block 0"),
        ("leaving", "building it for block 0 raised SystemExit: 7"),
        ("second", "second_only"),
        ("", "second_only"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "run --model"])
def test_a_layer_that_is_not_there_or_cannot_be_built_is_one_sentence(
    checkpoint: Path, command: str, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the layer, and is never replaced by the engine's own."""
    assert main([*command.split(), str(checkpoint), "--layers", name]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_layer_has_no_other_layers(capsys: pytest.CaptureFixture[str]) -> None:
    """The option belongs to a model."""
    assert main(["explain", "metrale_caps:CompositeLayer", "--layers", "second_only"]) == 2
    assert "--layers" in capsys.readouterr().err
