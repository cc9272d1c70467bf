# SPDX-License-Identifier: MIT OR Apache-2.0
"""Dense decoder stacks: `llama` and `qwen3`, built over the weights of a `transformers` model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from metrale_caps.errors import ConfigurationError, UnsupportedArchitectureError
from metrale_caps.kernels.rotary import RotaryTable
from metrale_caps.layers.attention import AttentionShape, AttentionWeights, GroupedQueryAttentionLayer
from metrale_caps.layers.feed_forward import SwiGlu
from metrale_caps.layers.projection import Projection
from metrale_caps.models.decoder import Decoder
from metrale_caps.models.memory import page_out
from metrale_caps.models.replacements import build_replacements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from metrale_caps.kernels.operations import Operations
    from metrale_caps.models.replacements import LayerBuilder

SUPPORTED = ("llama", "qwen3")


def build_dense(
    model: Any, operations: Operations, *, context_tokens: int, consume: bool, layers: LayerBuilder | None = None
) -> Decoder:
    """Build the decoder of a `LlamaForCausalLM` or `Qwen3ForCausalLM`.

    Args:
        model: the `transformers` model. Norms, embedding and head are shared with it.
        operations: kernels or their twins.
        context_tokens: positions to prepare rotations for.
        consume: take the model's projection weights out of it while they are packed, so that the weights are never
            in memory twice. The model cannot be used afterwards.
        layers: makes the layers of some or all blocks; it is handed each block with its weights.

    Raises:
        UnsupportedArchitectureError: the configuration asks for something that the layers of this package, where
            they are to be built, do not compute.
        ConfigurationError: a module of the model does more than its weight says, as adapters do.
        Exception: whatever `layers` raises.
    """
    blocks = model.model.layers
    stack = build_replacements(layers, blocks, model.config, context_tokens)
    if any(layer is None for layer in stack):
        _check(model.config, [index for index, layer in enumerate(stack) if layer is None])
        rotary = _rotary_table(model, context_tokens)
        stack = tuple(
            _layer(block, model.config, rotary, operations, consume=consume) if layer is None else layer
            for block, layer in zip(blocks, stack, strict=True)
        )
    return Decoder(
        layers=stack,
        embedding=_weight(model.model.embed_tokens, "the embedding"),
        final_norm=_weight(model.model.norm, "a norm"),
        norm_eps=model.config.rms_norm_eps,
        head=_projection(model.lm_head),
        context_tokens=context_tokens,
        stop_token_ids=frozenset[int](),
        operations=operations,
    )


def _check(config: Any, own: Sequence[int]) -> None:
    """Refuse what the layers of this package, which are to stand at the places `own`, do not compute."""

    def refuse(detail: str) -> UnsupportedArchitectureError:
        return UnsupportedArchitectureError(config.model_type, SUPPORTED, detail)

    if config.hidden_act not in {"silu", "swish"}:
        raise refuse(f"hidden_act is {config.hidden_act!r}, only 'silu' is computed")
    if getattr(config, "use_sliding_window", False) and config.sliding_window is not None:
        kinds = getattr(config, "layer_types", None)
        if kinds is None or any(kinds[index] != "full_attention" for index in own):
            raise refuse("it uses a sliding window")
    if getattr(config, "is_causal", True) is False:
        raise refuse("it does not attend causally")
    if config.num_attention_heads % config.num_key_value_heads:
        raise refuse(f"{config.num_attention_heads} query heads over {config.num_key_value_heads} key-value heads")


def _rotary_table(model: Any, context_tokens: int) -> RotaryTable:
    """Compute rotations in fp32 from the configuration: a model's own frequencies are rounded with its weights."""
    rotary = model.model.rotary_emb
    kind = getattr(rotary, "rope_type", "default")
    if kind not in {"default", "linear", "llama3", "yarn"}:
        raise UnsupportedArchitectureError(model.config.model_type, SUPPORTED, f"its rotation is of kind {kind!r}")
    device = model.model.embed_tokens.weight.device
    utilities: Any = importlib.import_module("transformers.modeling_rope_utils")
    initialise = rotary.compute_default_rope_parameters if kind == "default" else utilities.ROPE_INIT_FUNCTIONS[kind]
    frequencies, scaling = initialise(model.config, device=device)
    return RotaryTable.build(frequencies, context_tokens, scaling=float(scaling), device=device)


def _layer(
    block: Any, config: Any, rotary: RotaryTable, operations: Operations, *, consume: bool
) -> GroupedQueryAttentionLayer:
    attention, feed_forward = block.self_attn, block.mlp
    head_dim = int(attention.head_dim)
    weights = AttentionWeights(
        query_key_value=_packed((attention.q_proj, attention.k_proj, attention.v_proj), consume=consume),
        output=_projection(attention.o_proj),
        query_norm=_norm_weight(attention, "q_norm"),
        key_norm=_norm_weight(attention, "k_norm"),
    )
    return GroupedQueryAttentionLayer(
        attention=weights,
        feed_forward=SwiGlu(
            _packed((feed_forward.gate_proj, feed_forward.up_proj), consume=consume),
            _projection(feed_forward.down_proj),
        ),
        shape=AttentionShape(
            query_heads=config.num_attention_heads,
            key_value_heads=config.num_key_value_heads,
            head_dim=head_dim,
            scale=float(attention.scaling),
        ),
        rotary=rotary,
        input_norm=_weight(block.input_layernorm, "a norm"),
        post_attention_norm=_weight(block.post_attention_layernorm, "a norm"),
        norm_eps=config.rms_norm_eps,
        operations=operations,
    )


def _norm_weight(module: Any, name: str) -> Tensor | None:
    norm = getattr(module, name, None)
    return None if norm is None else _weight(norm, "a norm")


def _weight(module: Any, role: str) -> Tensor:
    """Return the weight of a norm or an embedding that does nothing besides."""
    plain = type(module) is torch.nn.Embedding or type(module).__name__.endswith("RMSNorm")
    _require_plain(module, role, plain=plain)
    return module.weight.detach()


def _projection(linear: Any) -> Projection:
    _require_plain(linear, "a projection", plain=type(linear) is torch.nn.Linear)
    return Projection(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())


def _packed(linears: tuple[Any, ...], *, consume: bool) -> Projection:
    parts = [_projection(linear) for linear in linears]
    weight = torch.cat([part.weight for part in parts])
    biases = [part.bias for part in parts if part.bias is not None]
    if consume:
        for linear in linears:
            page_out(linear.weight)
            linear.weight = None
    return Projection(weight, torch.cat(biases) if biases else None)


def _require_plain(module: Any, role: str, *, plain: bool) -> None:
    """Refuse a module that only looks like what it stands for: an adapter's own term would be lost without a word."""
    hooked = module._forward_hooks or module._forward_pre_hooks  # noqa: SLF001 - torch has no public way to ask
    if not plain or hooked:
        what = f"{type(module).__qualname__}{' with hooks' if hooked else ''}"
        raise ConfigurationError(
            f"{role} is {what}, which does more than its weight says; merge adapters and remove hooks before"
        )
