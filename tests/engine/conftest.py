# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tiny random models as `transformers` has them, and the real weights of the default model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from metrale_caps.engine import Engine
from metrale_caps.models.checkpoint import find_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

_IDS: dict[str, Any] = {"vocab_size": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
PROMPT = [5, 17, 99, 42, 8, 61, 120, 33, 74, 19, 50, 7]


def _reinitialise(model: Any, seed: int) -> None:
    """Give every parameter a value that matters, so that a fault in its use shows."""
    generator = torch.Generator().manual_seed(seed)

    def noise(like: torch.Tensor, std: float) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator) * std

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_tokens" in name:
                parameter.copy_(noise(parameter, 1.0))
            elif "lm_head" in name:
                parameter.copy_(noise(parameter, 4.0 / math.sqrt(parameter.shape[1])))
            elif parameter.dim() > 1:
                parameter.copy_(noise(parameter, 1.0 / math.sqrt(parameter.shape[1])))
            else:
                parameter.add_(noise(parameter, 0.2))


def make_model(architecture: str, seed: int, **values: Any) -> Any:
    """Build a tiny model in fp32 from its seed; `values` override its configuration."""
    import transformers

    kinds: dict[str, tuple[Any, Any]] = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }
    config, model_class = kinds[architecture]
    model = model_class(config(**{**_IDS, **_SIZES, **values})).eval()
    _reinitialise(model, seed)
    return model


TINY: dict[str, tuple[str, int, dict[str, Any]]] = {
    "llama": ("llama", 14, {"rms_norm_eps": 1e-5}),
    "llama-biases": ("llama", 5, {"rms_norm_eps": 1e-5, "attention_bias": True}),
    "qwen3": ("qwen3", 3, {"head_dim": 24}),
}


def make_tiny(name: str) -> Any:
    """Build one of the tiny models."""
    architecture, seed, values = TINY[name]
    return make_model(architecture, seed, **values)


@pytest.fixture(scope="session", params=list(TINY))
def tiny_model(request: pytest.FixtureRequest) -> Any:
    """Each tiny model in turn, in fp32."""
    return make_tiny(request.param)


@pytest.fixture(scope="session")
def tiny_llama() -> Any:
    """The tiny Llama, in fp32."""
    return make_tiny("llama")


@pytest.fixture(scope="session")
def reference_logits() -> Callable[[Any, list[int]], torch.Tensor]:
    """Logits `[tokens, vocabulary]` of a full pass of `transformers`, without a cache."""

    @torch.inference_mode()
    def logits(model: Any, tokens: list[int]) -> torch.Tensor:
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float()

    return logits


@pytest.fixture(scope="session")
def smollm2_reference() -> Any:
    """SmolLM2 in fp32, as `transformers` reads it from the GGUF file itself."""
    from transformers import AutoModelForCausalLM

    checkpoint = find_checkpoint(None)
    auto: Any = AutoModelForCausalLM
    return auto.from_pretrained(checkpoint.folder, gguf_file=checkpoint.gguf_file, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def make_smollm2() -> Callable[..., Engine]:
    """Make an engine over the default model; the first call converts the GGUF file, later ones read the conversion."""

    def make(**options: Any) -> Engine:
        return Engine.from_pretrained(**options)

    return make
