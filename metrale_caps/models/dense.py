# SPDX-License-Identifier: MIT OR Apache-2.0
"""Dense decoder stacks: `llama` and `qwen3`, built over the weights of a `transformers` model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from metrale_caps.errors import UnsupportedArchitectureError
from metrale_caps.kernels.rotary import RotaryTable
from metrale_caps.layers.attention import AttentionShape, AttentionWeights, GroupedQueryAttentionLayer
from metrale_caps.layers.feed_forward import SwiGlu
from metrale_caps.layers.projection import Projection
from metrale_caps.models.decoder import Decoder
from metrale_caps.models.memory import page_out

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.kernels.operations import Operations

SUPPORTED = ("llama", "qwen3")


def build_dense(model: Any, operations: Operations, *, context_tokens: int, consume: bool) -> Decoder:
    """Build the decoder of a `LlamaForCausalLM` or `Qwen3ForCausalLM`.

    Args:
        model: the `transformers` model. Norms, embedding and head are shared with it.
        operations: kernels or their twins.
        context_tokens: positions to prepare rotations for.
        consume: take the model's projection weights out of it while they are packed, so that the weights are never
            in memory twice. The model cannot be used afterwards.

    Raises:
        UnsupportedArchitectureError: the configuration asks for something these layers do not compute.
    """
    config = model.config
    _check(config)
    rotary = _rotary_table(model, context_tokens)
    layers = tuple(_layer(block, config, rotary, operations, consume=consume) for block in model.model.layers)
    return Decoder(
        layers=layers,
        embedding=model.model.embed_tokens.weight.detach(),
        final_norm=model.model.norm.weight.detach(),
        norm_eps=config.rms_norm_eps,
        head=_projection(model.lm_head),
        context_tokens=context_tokens,
        stop_token_ids=frozenset[int](),
        operations=operations,
    )


def _check(config: Any) -> None:
    def refuse(detail: str) -> UnsupportedArchitectureError:
        return UnsupportedArchitectureError(config.model_type, SUPPORTED, detail)

    if config.hidden_act not in {"silu", "swish"}:
        raise refuse(f"hidden_act is {config.hidden_act!r}, only 'silu' is computed")
    if getattr(config, "use_sliding_window", False) and config.sliding_window is not None:
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
        input_norm=block.input_layernorm.weight.detach(),
        post_attention_norm=block.post_attention_layernorm.weight.detach(),
        norm_eps=config.rms_norm_eps,
        operations=operations,
    )


def _norm_weight(module: Any, name: str) -> Tensor | None:
    norm = getattr(module, name, None)
    return None if norm is None else norm.weight.detach()


def _projection(linear: Any) -> Projection:
    _check_linear(linear)
    return Projection(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())


def _packed(linears: tuple[Any, ...], *, consume: bool) -> Projection:
    for linear in linears:
        _check_linear(linear)
    weight = torch.cat([linear.weight.detach() for linear in linears])
    bias = None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])
    if consume:
        for linear in linears:
            page_out(linear.weight)
            linear.weight = None
    return Projection(weight, bias)


def _check_linear(linear: Any) -> None:
    """Refuse what only looks like a linear map: an adapter's own term would be lost without a word."""
    hooks = linear._forward_hooks or linear._forward_pre_hooks  # noqa: SLF001 - torch has no public way to ask
    if type(linear) is not torch.nn.Linear or hooks:
        what = "a Linear with hooks" if type(linear) is torch.nn.Linear else type(linear).__qualname__
        raise UnsupportedArchitectureError(
            "llama", SUPPORTED, f"a projection is {what}; only plain torch.nn.Linear is computed: merge adapters first"
        )
