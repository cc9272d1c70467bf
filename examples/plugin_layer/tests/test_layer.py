# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the layer does in a running model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from metrale_sliding_window import build, example
from metrale_sliding_window.layer import SlidingWindowLayer
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from metrale_caps import audit_layer
from metrale_caps.engine import Engine
from metrale_caps.plugins import BlockSource, load_plugins

PROMPTS = [[5, 17, 99, 42, 8, 61, 120, 33, 74, 19, 50, 7], [3, 90, 45] * 6, [11]]
NEW = 12
SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
ROTATIONS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
}


def _make(config: Any, model_class: Any) -> Any:
    """A model whose attention matters: with the usual small weights every window would give the same tokens."""
    random = torch.Generator().manual_seed(7)
    model: Any = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=2.0 * parameter.shape[1] ** -0.5, generator=random)
    return model


def _generate(model: Any, layers: Any = None, **options: Any) -> list[tuple[int, ...]]:
    engine = Engine.from_pretrained(model, kernels="naive", layers=layers, **options)
    return [output.token_ids for output in engine.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)]


@pytest.fixture(scope="module", name="llama", params=ROTATIONS)
def make_llama(request: pytest.FixtureRequest) -> Any:
    """A small Llama with random weights, for each way to rotate positions."""
    return _make(LlamaConfig(**SIZES, rope_parameters=ROTATIONS[request.param]), LlamaForCausalLM)


def test_a_window_over_the_whole_context_changes_nothing(llama: Any) -> None:
    """Several sequences at once, prompts in chunks: the tokens are those of the engine's own layers."""
    assert _generate(llama, build, prefill_chunk=5) == _generate(llama)


def test_a_short_window_changes_the_answer(llama: Any) -> None:
    """Tokens that the window has left behind are not seen, however the steps are cut."""

    def build_narrow(source: BlockSource) -> object:
        return SlidingWindowLayer(source, window=4)

    narrow = _generate(llama, build_narrow)
    assert narrow != _generate(llama)
    assert narrow == _generate(llama, build_narrow, prefill_chunk=3, max_slots=1)


@pytest.mark.parametrize("full", [0, 1])
def test_tokens_of_a_model_with_windows_are_those_of_transformers(full: int) -> None:
    """Windows of 8 in all blocks, or in all but the first, which is then the engine's own layer."""
    config = Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=full)
    model = _make(config, Qwen3ForCausalLM)
    for prompt, tokens in zip(PROMPTS, _generate(model, build), strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0]
        assert tuple(logits.argmax(1)[len(prompt) - 1 : -1].tolist()) == tokens


def test_the_layer_is_found_and_sound() -> None:
    """The installed entry point leads here, and the audit has nothing to say about the example."""
    assert isinstance(load_plugins(strict=True).layer("sliding_window").example(), SlidingWindowLayer)
    assert audit_layer(example()).findings == ()


@pytest.mark.parametrize(("window", "rotation", "message"), [(0, "default", "at least 1"), (4, "dynamic", "'dynamic'")])
def test_what_cannot_be_computed_is_refused(window: int, rotation: str, message: str) -> None:
    """An empty window, and rotations that change while a prompt grows."""
    config = LlamaConfig(**SIZES, rope_parameters={"rope_type": rotation, "rope_theta": 10000.0, "factor": 2.0})
    block: Any = LlamaForCausalLM(config).model.layers[0]
    with pytest.raises(ValueError, match=message):
        SlidingWindowLayer(BlockSource(block=block, config=config, index=0, context_tokens=64), window)
