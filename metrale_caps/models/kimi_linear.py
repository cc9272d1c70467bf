# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kimi Linear stacks: Kimi delta attention, with multi-head latent attention without rotation in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metrale_caps.layers.delta_net import (
    DeltaNetBlock,
    DeltaNetLayer,
    DeltaNetShape,
    DeltaNetWeights,
    KimiDeltaProjection,
)
from metrale_caps.layers.latent_attention import LatentAttentionLayer, LatentAttentionShape, LatentAttentionWeights
from metrale_caps.models.stack import block_parts, build_stack, check_activation, unsupported
from metrale_caps.models.weights import convolution_taps, packed, projection, require_unhooked, weight_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metrale_caps.kernels.operations import Operations
    from metrale_caps.models.decoder import Decoder
    from metrale_caps.models.replacements import LayerBuilder


def build_kimi_linear(
    model: Any,
    operations: Operations,
    *,
    context_tokens: int,
    consume: bool,
    layers: LayerBuilder | None = None,
    delta_layer: Callable[..., DeltaNetBlock] = DeltaNetLayer,
) -> Decoder:
    """Build the decoder of a `KimiLinearForCausalLM`; errors as for `build_dense`.

    Args:
        model: the `transformers` model.
        operations: kernels or their twins.
        context_tokens: positions a sequence can have.
        consume: take the model's packed weights out of it.
        layers: makes the layers of some or all blocks.
        delta_layer: makes the delta attention layers; `HostStateDeltaNetLayer` for layers that own their state.
    """

    def make_layers(own: Sequence[int]) -> dict[int, object]:
        config, blocks = model.config, model.model.layers
        _check(config)
        return {
            index: _delta_layer(delta_layer, blocks[index], config, operations, consume=consume)
            if config.layer_types[index] == "linear_attention"
            else _latent_layer(blocks[index], config, operations, consume=consume)
            for index in own
        }

    return build_stack(model, operations, make_layers=make_layers, context_tokens=context_tokens, layers=layers)


def _check(config: Any) -> None:
    check_activation(config)
    if config.q_lora_rank is not None:
        raise unsupported(config, f"q_lora_rank is {config.q_lora_rank}; queries of low rank are not computed")


def _delta_layer(
    kind: Callable[..., DeltaNetBlock], block: Any, config: Any, operations: Operations, *, consume: bool
) -> DeltaNetBlock:
    mixer = block.self_attn
    require_unhooked(mixer, "a mixer")
    require_unhooked(mixer.forget_gate, "a forget gate")
    heads, width, decay = mixer.num_heads, mixer.head_dim, mixer.forget_gate
    linears = (mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.b_proj, decay.f_a_proj, mixer.g_a_proj)
    weights = DeltaNetWeights(
        inputs=KimiDeltaProjection(
            packed=packed(linears, consume=consume),
            decay=projection(decay.f_b_proj),
            gate=projection(mixer.g_b_proj),
        ),
        convolution=convolution_taps(mixer.conv1d),
        a_log=decay.A_log.detach().reshape(heads),
        dt_bias=decay.dt_bias.detach().view(heads, width),
        output_norm=weight_of(mixer.o_norm, "a norm"),
        output_gate="sigmoid",
        output=projection(mixer.o_proj),
    )
    return kind(
        mixer=weights,
        shape=DeltaNetShape(
            key_heads=heads,
            heads=heads,
            key_dim=width,
            value_dim=width,
            convolution_width=mixer.conv_kernel_size,
        ),
        block=block_parts(block, config, operations, consume=consume),
    )


def _latent_layer(block: Any, config: Any, operations: Operations, *, consume: bool) -> LatentAttentionLayer:
    attention = block.self_attn
    require_unhooked(attention, "an attention")
    heads, rank, nope_dim = attention.num_heads, attention.kv_lora_rank, attention.qk_nope_head_dim
    up = projection(attention.kv_b_proj).weight.view(heads, nope_dim + attention.v_head_dim, rank)
    weights = LatentAttentionWeights(
        query_latent=packed((attention.q_proj, attention.kv_a_proj_with_mqa), consume=consume),
        latent_norm=weight_of(attention.kv_a_layernorm, "a norm"),
        key_up=up[:, :nope_dim].contiguous(),
        value_up=up[:, nope_dim:].transpose(1, 2).contiguous(),
        output=projection(attention.o_proj),
    )
    return LatentAttentionLayer(
        attention=weights,
        shape=LatentAttentionShape(
            heads=heads,
            rank=rank,
            nope_dim=nope_dim,
            shared_dim=attention.qk_rope_head_dim,
            value_dim=attention.v_head_dim,
            scale=float(attention.scaling),
            latent_eps=float(attention.kv_a_layernorm.variance_epsilon),
        ),
        block=block_parts(block, config, operations, consume=consume),
    )
