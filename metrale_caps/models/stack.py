# SPDX-License-Identifier: MIT OR Apache-2.0
"""Builds a decoder from the blocks of a `transformers` model, whatever the blocks are."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from metrale_caps.errors import UnsupportedArchitectureError
from metrale_caps.kernels.rotary import RotaryTable
from metrale_caps.layers.block import BlockParts
from metrale_caps.models.decoder import Decoder
from metrale_caps.models.feed_forward import feed_forward
from metrale_caps.models.replacements import build_replacements
from metrale_caps.models.weights import projection, weight_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from metrale_caps.kernels.operations import Operations
    from metrale_caps.models.replacements import LayerBuilder


def build_stack(
    model: Any,
    operations: Operations,
    *,
    make_layers: Callable[[Sequence[int]], dict[int, object]],
    context_tokens: int,
    layers: LayerBuilder | None,
    final_norm: Callable[[Any], Tensor] | None = None,
) -> Decoder:
    """Build a decoder.

    Args:
        model: a causal language model with `model.layers`, `model.norm`, `model.embed_tokens` and `lm_head`.
        operations: kernels or their twins.
        make_layers: makes this package's layers for the blocks with these indices; called unless there are none.
        context_tokens: positions to prepare for.
        layers: makes the layers of some or all blocks; it is handed each block with its weights.
        final_norm: reads the weight of the last norm, if it is not as it stands.

    Raises:
        ConfigurationError: a module of the model does more than its weight says, as adapters do.
        Exception: whatever `layers` or `make_layers` raises.
    """
    stack = list(build_replacements(layers, model.model.layers, model.config, context_tokens))
    own = [index for index, layer in enumerate(stack) if layer is None]
    if own:
        for index, layer in make_layers(own).items():
            stack[index] = layer
    return Decoder(
        layers=tuple(stack),
        embedding=weight_of(model.model.embed_tokens, "the embedding"),
        final_norm=(final_norm or _plain_norm)(model.model.norm),
        norm_eps=model.config.rms_norm_eps,
        head=projection(model.lm_head),
        context_tokens=context_tokens,
        stop_token_ids=frozenset[int](),
        operations=operations,
    )


def _plain_norm(module: Any) -> Tensor:
    return weight_of(module, "a norm")


def block_parts(
    block: Any,
    config: Any,
    operations: Operations,
    *,
    consume: bool,
    norm: Callable[[Any], Tensor] | None = None,
) -> BlockParts:
    """Return a block but for its mixer; `norm` reads the weights of its norms, if they are not as they stand."""
    read = norm or _plain_norm
    return BlockParts(
        input_norm=read(block.input_layernorm),
        post_attention_norm=read(block.post_attention_layernorm),
        norm_eps=config.rms_norm_eps,
        feed_forward=feed_forward(block.mlp, consume=consume),
        operations=operations,
    )


def rotary_table(model: Any, context_tokens: int) -> RotaryTable:
    """Compute rotations in fp32 from the configuration: a model's own frequencies are rounded with its weights.

    Raises:
        UnsupportedArchitectureError: the rotation is of a kind that depends on more than the position.
    """
    rotary = model.model.rotary_emb
    kind = getattr(rotary, "rope_type", "default")
    if kind not in {"default", "linear", "llama3", "yarn"}:
        raise unsupported(model.config, f"its rotation is of kind {kind!r}")
    device = model.model.embed_tokens.weight.device
    utilities: Any = importlib.import_module("transformers.modeling_rope_utils")
    initialise = rotary.compute_default_rope_parameters if kind == "default" else utilities.ROPE_INIT_FUNCTIONS[kind]
    frequencies, scaling = initialise(model.config, device=device)
    return RotaryTable.build(frequencies, context_tokens, scaling=float(scaling), device=device)


def check_activation(config: Any) -> None:
    """Refuse an activation that the layers here do not compute.

    Raises:
        UnsupportedArchitectureError: naming it.
    """
    if config.hidden_act not in {"silu", "swish"}:
        raise unsupported(config, f"hidden_act is {config.hidden_act!r}, only 'silu' is computed")


def unsupported(config: Any, detail: str) -> UnsupportedArchitectureError:
    """Return the error for a configuration that asks for something which the layers here do not compute."""
    return UnsupportedArchitectureError(config.model_type, SUPPORTED, detail)


SUPPORTED = ("kimi_linear", "llama", "qwen3", "qwen3_5", "qwen3_5_text", "qwen3_next")
"""Every `model_type` that can be built."""
