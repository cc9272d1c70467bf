# SPDX-License-Identifier: MIT OR Apache-2.0
"""Layers of others in a model: where they stand, what they are handed, and what comes out when building one fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from metrale_caps.engine import Engine
from metrale_caps.errors import (
    ConfigurationError,
    LayerContractError,
    MetraleError,
    UnknownPluginError,
    UnsupportedArchitectureError,
)
from metrale_caps.kernels.operations import operations
from metrale_caps.layers.attention import GroupedQueryAttentionLayer
from metrale_caps.models import replacements
from metrale_caps.models.registry import build_decoder
from metrale_caps.plugins import LayerPlugins, PluginLayer, PluginOrigin
from tests.tiny_models import PROMPT, make_model, make_tiny

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps import DecodeContext
    from metrale_caps.plugins import BlockSource

_ORIGIN = PluginOrigin("halver", "halver:register", "halver-layers", "1.2")


class HalvingLayer:
    """Halves its rows, so that a stack with one gives other logits than a stack without."""

    def decode(self, hidden: torch.Tensor, _context: DecodeContext, /) -> torch.Tensor:
        """Halve one row."""
        return hidden * 0.5

    def decode_verify_multi_unsupported(self) -> bool:
        """No verify is written."""
        return True


class Builder:
    """Replaces the blocks of given indices, and keeps what it was handed."""

    def __init__(self, *replaced: int) -> None:
        self.replaced = replaced
        self.sources: list[BlockSource] = []
        self.weights: list[torch.Tensor] = []

    def __call__(self, source: BlockSource) -> object | None:
        self.sources.append(source)
        self.weights.append(source.block.self_attn.q_proj.weight)
        return HalvingLayer() if source.index in self.replaced else None


def _fail_at_one(source: BlockSource) -> object | None:
    if source.index == 1:
        raise ValueError("no such block")
    return None


def _install(patch: pytest.MonkeyPatch, build: Callable[[BlockSource], object | None]) -> None:
    layer = PluginLayer("halving", build, HalvingLayer, _ORIGIN)
    patch.setattr(replacements, "load_plugins", lambda: LayerPlugins({"halving": layer}, (), (_ORIGIN,)))


def _tokens(model: Any, layers: Any = None) -> tuple[int, ...]:
    engine = Engine.from_pretrained(model, kernels="naive", layers=layers)
    return engine.generate([PROMPT], max_new_tokens=6, ignore_eos=True)[0].token_ids


@pytest.mark.parametrize("replaced", [(), (0,), (1,), (0, 1)])
def test_a_builder_decides_for_each_block(tiny_llama: Any, replaced: tuple[int, ...]) -> None:
    """Its layers stand where it made one, the engine's own where it returned None."""
    decoder = build_decoder(tiny_llama, operations("naive"), consume=False, layers=Builder(*replaced))
    expected = [HalvingLayer if index in replaced else GroupedQueryAttentionLayer for index in range(2)]
    assert [type(layer) for layer in decoder.layers] == expected


def test_a_builder_of_no_layers_changes_nothing_and_one_of_some_does(tiny_llama: Any) -> None:
    """The layers that are in the stack are the ones that run."""
    plain = _tokens(tiny_llama)
    assert _tokens(tiny_llama, Builder()) == plain
    assert _tokens(tiny_llama, Builder(0)) != plain


@pytest.mark.parametrize("replaced", [(), (1,)])
def test_a_builder_sees_every_block_before_weights_are_taken(replaced: tuple[int, ...]) -> None:
    """In order, with the model's own module, configuration and context; a replaced block keeps its weights for good."""
    model = make_tiny("llama")
    builder = Builder(*replaced)
    build_decoder(model, operations("naive"), context_tokens=100, consume=True, layers=builder)
    blocks = list(model.model.layers)
    assert [source.block for source in builder.sources] == blocks
    assert [(source.index, source.context_tokens) for source in builder.sources] == [(0, 100), (1, 100)]
    assert all(source.config is model.config for source in builder.sources)
    assert all(isinstance(weight, torch.Tensor) and weight.shape == (64, 64) for weight in builder.weights)
    kept = [block.self_attn.q_proj.weight is not None for block in blocks]
    assert kept == [index in replaced for index in range(2)]


def test_what_a_builder_raises_comes_out_with_its_name_and_the_block(tiny_llama: Any) -> None:
    """The error is the builder's own; the note says which function it was and where it stood."""
    with pytest.raises(ValueError, match="no such block") as raised:
        Engine.from_pretrained(tiny_llama, layers=_fail_at_one)
    assert raised.value.__notes__ == [f"raised by {__name__}._fail_at_one while it was built for block 1"]


def test_a_failing_builder_leaves_the_model_whole() -> None:
    """Even a model that may be consumed has lost nothing when a later block's layer cannot be built."""
    model = make_tiny("llama")
    with pytest.raises(ValueError, match="no such block"):
        build_decoder(model, operations("naive"), consume=True, layers=_fail_at_one)
    assert _tokens(model) == _tokens(make_tiny("llama"))


def test_a_name_is_looked_up_among_the_plugins(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin's layers are in the stack."""
    _install(monkeypatch, Builder(0))
    engine = Engine.from_pretrained(tiny_llama, kernels="naive", layers="halving")
    assert [type(layer) for layer in engine.plan.layers] == [HalvingLayer, GroupedQueryAttentionLayer]


def test_a_plugin_that_cannot_build_is_named(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note gives the layer, the distribution with its version, and the block."""
    _install(monkeypatch, _fail_at_one)
    with pytest.raises(ValueError, match="no such block") as raised:
        Engine.from_pretrained(tiny_llama, layers="halving")
    (note,) = raised.value.__notes__
    assert all(part in note for part in ("'halving'", "halver-layers 1.2", "block 1")), note


def test_an_unknown_name_is_refused_with_what_there_is(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt layer is not replaced by the engine's own."""
    _install(monkeypatch, Builder())
    with pytest.raises(UnknownPluginError, match="halving"):
        Engine.from_pretrained(tiny_llama, layers="halvign")


def test_an_unknown_name_is_refused_before_anything_is_loaded() -> None:
    """Nobody waits for weights to be told of a typing mistake."""
    told: list[str] = []
    with pytest.raises(UnknownPluginError):
        Engine.from_pretrained(layers="no such layer", progress=lambda stage, _done=0, _total=0: told.append(stage))
    assert told == []


@pytest.mark.parametrize("layers", [3, [HalvingLayer()], HalvingLayer()], ids=["number", "list", "layer"])
def test_what_is_neither_a_name_nor_a_function_is_refused(tiny_llama: Any, layers: Any) -> None:
    """A layer itself, or a list of them, is not taken for a builder."""
    with pytest.raises(ConfigurationError, match="BlockSource"):
        Engine.from_pretrained(tiny_llama, layers=layers)


@pytest.mark.parametrize(
    "made", [False, "layer", 0, object(), HalvingLayer], ids=["false", "text", "zero", "object", "class"]
)
def test_what_is_no_layer_is_refused_and_not_replaced(tiny_llama: Any, made: object) -> None:
    """Only None leaves a block to the engine; anything else must be a layer."""
    with pytest.raises(MetraleError):
        Engine.from_pretrained(tiny_llama, layers=lambda _source: made)


def test_a_layer_is_held_to_its_contract(tiny_llama: Any) -> None:
    """A built layer that lacks a forward method it must have is refused by name when the model is built."""

    class Careless:
        def decode(self, hidden: torch.Tensor, _context: DecodeContext, /) -> torch.Tensor:
            return hidden

    with pytest.raises(LayerContractError, match="decode_verify_multi"):
        Engine.from_pretrained(tiny_llama, layers=lambda _source: Careless())


def test_what_the_own_layers_do_not_compute_is_asked_of_the_blocks_they_stand_for() -> None:
    """A model with a sliding window is refused as soon as one such block is left to the engine, and no sooner."""
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    model = make_model("qwen3", 3, head_dim=24, **windows)
    assert model.config.layer_types == ["full_attention", "sliding_attention"]
    assert _tokens(model, Builder(1)) != ()
    for left in (Builder(), Builder(0)):
        with pytest.raises(UnsupportedArchitectureError, match="sliding"):
            Engine.from_pretrained(model, layers=left)
