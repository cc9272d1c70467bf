# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hybrid Qwen stacks: `qwen3_next` and the text part of `qwen3_5`, gated delta nets with gated attention in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from metrale_caps.layers.attention import AttentionShape, AttentionWeights, GroupedQueryAttentionLayer
from metrale_caps.layers.delta_net import DeltaNetLayer, DeltaNetShape, DeltaNetWeights, GatedDeltaNetProjection
from metrale_caps.models.dense import check_attention
from metrale_caps.models.stack import block_parts, build_stack, rotary_table
from metrale_caps.models.weights import centred_norm, convolution_taps, packed, projection, require_unhooked, weight_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from metrale_caps.kernels.operations import Operations
    from metrale_caps.kernels.rotary import RotaryTable
    from metrale_caps.layers.projection import Projection
    from metrale_caps.models.decoder import Decoder
    from metrale_caps.models.replacements import LayerBuilder


def build_qwen_hybrid(
    model: Any, operations: Operations, *, context_tokens: int, consume: bool, layers: LayerBuilder | None = None
) -> Decoder:
    """Build the decoder of a `Qwen3NextForCausalLM` or `Qwen3_5ForCausalLM`; arguments and errors as `build_dense`."""

    def make_layers(own: Sequence[int]) -> dict[int, object]:
        config, blocks = model.config, model.model.layers
        check_attention(config, own)
        rotary = rotary_table(model, context_tokens)
        return {
            index: _delta_layer(blocks[index], config, operations, consume=consume)
            if config.layer_types[index] == "linear_attention"
            else _attention_layer(blocks[index], config, rotary, operations, consume=consume)
            for index in own
        }

    return build_stack(
        model,
        operations,
        make_layers=make_layers,
        context_tokens=context_tokens,
        layers=layers,
        final_norm=centred_norm,
    )


def _delta_layer(block: Any, config: Any, operations: Operations, *, consume: bool) -> DeltaNetLayer:
    mixer = block.linear_attn
    require_unhooked(mixer, "a mixer")
    shape = DeltaNetShape(
        key_heads=mixer.num_k_heads,
        heads=mixer.num_v_heads,
        key_dim=mixer.head_k_dim,
        value_dim=mixer.head_v_dim,
        convolution_width=mixer.conv_kernel_size,
    )
    grouped = hasattr(mixer, "in_proj_qkvz")
    weights = DeltaNetWeights(
        inputs=GatedDeltaNetProjection(
            _grouped_inputs(mixer, shape, consume=consume) if grouped else _plain_inputs(mixer, consume=consume)
        ),
        convolution=convolution_taps(mixer.conv1d),
        a_log=mixer.A_log.detach(),
        dt_bias=mixer.dt_bias.detach(),
        output_norm=weight_of(mixer.norm, "a norm"),
        output_gate="silu",
        output=projection(mixer.out_proj),
    )
    return DeltaNetLayer(
        mixer=weights,
        shape=shape,
        block=block_parts(block, config, operations, consume=consume, norm=centred_norm),
    )


def _plain_inputs(mixer: Any, *, consume: bool) -> Projection:
    """Pack projections of their own (Qwen3.5): mixed, gate, beta, decay."""
    linears = (mixer.in_proj_qkv, mixer.in_proj_z, mixer.in_proj_b, mixer.in_proj_a)
    return packed(linears, consume=consume)


def _grouped_inputs(mixer: Any, shape: DeltaNetShape, *, consume: bool) -> Projection:
    """Pack two projections whose outputs are grouped by key head (Qwen3-Next), in the order of `_plain_inputs`."""
    group = shape.heads // shape.key_heads
    values = group * shape.value_dim
    wide = _columns_of_groups(shape.key_heads, [shape.key_dim, shape.key_dim, values, values])
    narrow = _columns_of_groups(shape.key_heads, [group, group])
    return packed((mixer.in_proj_qkvz, mixer.in_proj_ba), consume=consume, rows=(torch.cat(wide), torch.cat(narrow)))


def _columns_of_groups(groups: int, sizes: Sequence[int]) -> list[Tensor]:
    """Return, for each part of a group, which outputs hold it, all groups one after the other."""
    columns = torch.arange(groups * sum(sizes)).view(groups, sum(sizes))
    return [part.reshape(-1) for part in torch.split(columns, list(sizes), dim=1)]


def _attention_layer(
    block: Any, config: Any, rotary: RotaryTable, operations: Operations, *, consume: bool
) -> GroupedQueryAttentionLayer:
    attention = block.self_attn
    require_unhooked(attention, "an attention")
    head_dim = int(attention.head_dim)
    # each head's query is followed by its gate; all queries come first here, and all gates last
    query, gate = _columns_of_groups(config.num_attention_heads, [head_dim, head_dim])
    weights = AttentionWeights(
        query_key_value=packed(
            (attention.q_proj, attention.k_proj, attention.v_proj, attention.q_proj),
            consume=consume,
            rows=(query, None, None, gate),
        ),
        output=projection(attention.o_proj),
        query_norm=centred_norm(attention.q_norm),
        key_norm=centred_norm(attention.k_norm),
    )
    return GroupedQueryAttentionLayer(
        attention=weights,
        shape=AttentionShape(
            query_heads=config.num_attention_heads,
            key_value_heads=config.num_key_value_heads,
            head_dim=head_dim,
            scale=float(attention.scaling),
            is_gated=True,
        ),
        rotary=rotary,
        block=block_parts(block, config, operations, consume=consume, norm=centred_norm),
    )
