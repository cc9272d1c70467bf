# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hybrid models from checkpoint folders, and what is refused of them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch

from metrale_caps.cli import main
from metrale_caps.engine import Engine
from metrale_caps.errors import ConfigurationError, UnsupportedArchitectureError
from metrale_caps.kernels.operations import operations
from metrale_caps.models.registry import build_decoder, supported_architectures
from metrale_caps.models.stack import SUPPORTED
from tests.tiny_models import HYBRIDS, PROMPT, hybrid_classes, make_hybrid, shared_tiny

if TYPE_CHECKING:
    from pathlib import Path


def _tokens(model: Any, **options: Any) -> tuple[int, ...]:
    engine = Engine.from_pretrained(model, kernels="naive", **options)
    return engine.generate([PROMPT], max_new_tokens=16, ignore_eos=True)[0].token_ids


@pytest.mark.parametrize("name", HYBRIDS)
def test_folder_gives_the_tokens_of_the_model_object(name: str, tmp_path: Path) -> None:
    """The names of saved weights differ from those of the modules; the answers do not."""
    model = shared_tiny(name)
    model.save_pretrained(tmp_path)
    assert _tokens(tmp_path) == _tokens(model)


def test_text_part_of_a_model_with_images_is_read_from_its_folder(tmp_path: Path) -> None:
    """Qwen3.5 is published so; the object with its vision tower is refused with what to do."""
    text = shared_tiny("qwen3_5")
    hybrid_classes("qwen3_5")
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    vision: dict[str, Any] = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "patch_size": 4}
    config = Qwen3_5Config(text_config=text.config.to_dict(), vision_config={**vision, "out_hidden_size": 64})
    whole: Any = Qwen3_5ForConditionalGeneration(config).eval()
    whole.model.language_model.load_state_dict(text.model.state_dict())
    whole.lm_head.load_state_dict(text.lm_head.state_dict())
    whole.save_pretrained(tmp_path)
    assert _tokens(tmp_path) == _tokens(text)
    with pytest.raises(ConfigurationError, match="takes more than text; give its checkpoint folder"):
        build_decoder(whole, operations("naive"), consume=False)


@pytest.mark.parametrize("name", HYBRIDS)
def test_explanation_needs_no_weights(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan of a skeleton names the layers that run in phases."""
    shared_tiny(name).save_pretrained(tmp_path)
    capsys.readouterr()
    assert main(["explain", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    indices = "0-1, 3" if name == "kimi_linear" else "0-2"
    assert f"3 layers ({indices}): metrale_caps.layers.delta_net.DeltaNetLayer" in text
    assert "long_prefill: in three phases on the layers that have them" in text


@pytest.mark.parametrize("name", HYBRIDS)
def test_consumed_model_gives_the_same_tokens(name: str) -> None:
    """Weights are taken out of a checkpoint's model while they are packed; a model object keeps its own."""
    model = make_hybrid(name)
    before = copy.deepcopy(model.state_dict())
    kept = build_decoder(model, operations("naive"), consume=False)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    expected = Engine(kept).generate([PROMPT], max_new_tokens=4, ignore_eos=True)[0].token_ids
    consumed = build_decoder(model, operations("naive"), consume=True)
    assert Engine(consumed).generate([PROMPT], max_new_tokens=4, ignore_eos=True)[0].token_ids == expected
    assert sum(key in model.state_dict() for key in before) < len(before)


def test_queries_of_low_rank_are_refused() -> None:
    """Kimi Linear may be configured with them; no published model is."""
    model = make_hybrid("kimi_linear", q_lora_rank=24)
    with pytest.raises(UnsupportedArchitectureError, match="q_lora_rank is 24"):
        build_decoder(model, operations("naive"), consume=False)


def test_convolution_with_a_bias_or_a_hook_is_refused() -> None:
    """Its own term would be lost without a word."""
    model = make_hybrid("qwen3_next")
    convolution = model.model.layers[0].linear_attn.conv1d
    convolution.bias = torch.nn.Parameter(torch.zeros(convolution.out_channels))
    with pytest.raises(ConfigurationError, match="a convolution is Conv1d, which does more than its weight says"):
        build_decoder(model, operations("naive"), consume=False)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("qwen3_next", "layers.0.mlp.gate"),
        ("qwen3_next", "layers.2.mlp.experts"),
        ("qwen3_next", "layers.0.linear_attn"),
        ("qwen3_next", "layers.3.self_attn"),
        ("kimi_linear", "layers.0.self_attn.forget_gate"),
        ("kimi_linear", "layers.2.self_attn"),
        ("kimi_linear", "layers.1.mlp"),
    ],
)
def test_module_with_a_hook_is_refused_wherever_it_stands(name: str, where: str) -> None:
    """Only its weights are read, so what the hook does would be lost without a word."""
    model = make_hybrid(name)

    def hook(*_: Any) -> None:
        """Change nothing, which nobody can know."""

    model.model.get_submodule(where).register_forward_hook(hook)
    with pytest.raises(ConfigurationError, match="with hooks, which does more than its weight says"):
        build_decoder(model, operations("naive"), consume=False)


def test_every_architecture_that_can_be_built_is_named_in_errors() -> None:
    """The list in messages and the table of builders are one."""
    assert tuple(SUPPORTED) == supported_architectures()
