# SPDX-License-Identifier: MIT OR Apache-2.0
"""Variants of the supported architectures: computed as `transformers` does, or refused by name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from metrale_caps.engine import Engine
from metrale_caps.engine.counters import Counters
from metrale_caps.engine.options import EngineOptions
from metrale_caps.engine.runner import Runner
from metrale_caps.engine.scheduler import Chunk
from metrale_caps.errors import ConfigurationError, UnsupportedArchitectureError
from metrale_caps.kernels.operations import operations
from metrale_caps.models.registry import build_decoder
from metrale_caps.state.sequence import Sequence
from tests.tiny_models import make_model

_TOKENS = [(7 * index * index + 3 * index + 5) % 126 + 2 for index in range(90)]


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, "rope_type": kind, **values}}


_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
_YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
_COMPUTED: dict[str, tuple[str, dict[str, Any]]] = {
    "tied head": ("llama", {"tie_word_embeddings": True}),
    "biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "heads wider than hidden": ("llama", {"head_dim": 24}),
    "as many key heads": ("llama", {"num_key_value_heads": 4}),
    "one key head": ("llama", {"num_key_value_heads": 1}),
    "rope linear": ("llama", _rope("linear", factor=4.0)),
    "rope llama3": ("llama", _rope("llama3", **_LLAMA3)),
    "rope yarn": ("llama", _rope("yarn", **_YARN)),
    "rope yarn, scaled": ("llama", _rope("yarn", **_YARN, attention_factor=1.3)),
    "rope of half the channels": ("llama", _rope("default", partial_rotary_factor=0.5)),
    "qwen3, tied, biases": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 32}),
}
_REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "rope dynamic": ("llama", _rope("dynamic", factor=4.0), "rotation is of kind 'dynamic'"),
    "sliding window": ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, "sliding"),
    "another activation": ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
}


@torch.inference_mode()
def _logits(model: Any) -> torch.Tensor:
    """Logits of the last prompt row and of ten decode steps, over forced tokens."""
    decoder = build_decoder(model, operations("naive"), consume=False)
    runner = Runner(decoder, num_blocks=8, options=EngineOptions(), counters=Counters())
    sequence = Sequence(0, _TOKENS[:80], 80, max_new_tokens=16, slot=0, blocks=list(range(8)))
    first, _ = runner.prefill(Chunk(sequence, 80))
    assert first is not None
    rows = [first[0]]
    for token in _TOKENS[80:]:
        sequence.cursor = len(sequence.tokens)
        sequence.tokens.append(token)
        rows.append(runner.decode([sequence])[0][0])
    return torch.stack(rows)


@pytest.mark.parametrize("variant", list(_COMPUTED))
def test_variant_equals_transformers(variant: str, reference_logits: Any) -> None:
    """Prefill and decode have the logits of a full pass, past the positions that scaling starts from."""
    name, values = _COMPUTED[variant]
    model = make_model(name, seed=3, **values)
    torch.testing.assert_close(_logits(model), reference_logits(model, _TOKENS)[79:], atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", list(_REFUSED))
def test_variant_is_refused_by_name(variant: str) -> None:
    """What these layers do not compute is never computed wrongly."""
    name, values, says = _REFUSED[variant]
    with pytest.raises(UnsupportedArchitectureError, match=says):
        Engine.from_pretrained(make_model(name, seed=3, **values), kernels="naive")


def test_adapter_is_refused(tiny_llama: Any) -> None:
    """A projection that only looks like a linear map would lose its own term without a word."""

    class Adapted(torch.nn.Linear):
        pass

    model = copy.deepcopy(tiny_llama)
    model.model.layers[1].self_attn.q_proj.__class__ = Adapted
    with pytest.raises(ConfigurationError, match=r"a projection is .*Adapted"):
        Engine.from_pretrained(model, kernels="naive")


@pytest.mark.parametrize("place", ["embed_tokens", "norm"])
def test_adapted_embedding_or_norm_is_refused(tiny_llama: Any, place: str) -> None:
    """The same holds for every module whose weight is taken."""
    model = copy.deepcopy(tiny_llama)
    module: Any = getattr(model.model, place)
    plain: Any = module.__class__
    module.__class__ = type("Adapted", (plain,), {})
    with pytest.raises(ConfigurationError, match="is Adapted"):
        Engine.from_pretrained(model, kernels="naive")


def test_hooked_projection_is_refused(tiny_llama: Any) -> None:
    """So would one with hooks."""
    model = copy.deepcopy(tiny_llama)
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: None)  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(ConfigurationError, match="Linear with hooks"):
        Engine.from_pretrained(model, kernels="naive")


def test_rotations_are_those_of_fp32_whatever_the_weights_are(tiny_llama: Any) -> None:
    """A model that was converted to bfloat16 has rounded frequencies; its rotations here have not."""
    rounded = copy.deepcopy(tiny_llama).to(torch.bfloat16)
    exact = build_decoder(tiny_llama, operations("naive"), consume=False).layers[0]
    converted = build_decoder(rounded, operations("naive"), consume=False).layers[0]
    assert torch.equal(exact._rotary.cos, converted._rotary.cos)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_stays_near_fp32(tiny_llama: Any, reference_logits: Any, dtype: torch.dtype) -> None:
    """Kernels and twins in half precision are as far from fp32 as the format's rounding explains."""
    expected = reference_logits(tiny_llama, _TOKENS)[79:]
    logits = _logits(copy.deepcopy(tiny_llama).to(dtype))
    # ten roundings in a row, on logits of about 16
    torch.testing.assert_close(logits, expected, atol=16 * 10 * torch.finfo(dtype).eps, rtol=0)
