# SPDX-License-Identifier: MIT OR Apache-2.0
"""Dense decoder stacks: `llama` and `qwen3`, built over the weights of a `transformers` model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metrale_caps.layers.attention import AttentionShape, AttentionWeights, GroupedQueryAttentionLayer
from metrale_caps.models.stack import block_parts, build_stack, check_activation, rotary_table, unsupported
from metrale_caps.models.weights import optional_norm, packed, projection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metrale_caps.kernels.operations import Operations
    from metrale_caps.kernels.rotary import RotaryTable
    from metrale_caps.models.decoder import Decoder
    from metrale_caps.models.replacements import LayerBuilder


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

    def make_layers(own: Sequence[int]) -> dict[int, object]:
        check_attention(model.config, own)
        rotary = rotary_table(model, context_tokens)
        blocks = model.model.layers
        return {index: _layer(blocks[index], model.config, rotary, operations, consume=consume) for index in own}

    return build_stack(model, operations, make_layers=make_layers, context_tokens=context_tokens, layers=layers)


def check_attention(config: Any, own: Sequence[int]) -> None:
    """Refuse what the layers of this package, which are to stand at the places `own`, do not compute.

    Raises:
        UnsupportedArchitectureError: naming it.
    """
    check_activation(config)
    if getattr(config, "use_sliding_window", False) and config.sliding_window is not None:
        kinds = getattr(config, "layer_types", None)
        if kinds is None or any(kinds[index] not in {"full_attention", "linear_attention"} for index in own):
            raise unsupported(config, "it uses a sliding window")
    if getattr(config, "is_causal", True) is False:
        raise unsupported(config, "it does not attend causally")
    if config.num_attention_heads % config.num_key_value_heads:
        heads = f"{config.num_attention_heads} query heads over {config.num_key_value_heads} key-value heads"
        raise unsupported(config, heads)


def _layer(
    block: Any, config: Any, rotary: RotaryTable, operations: Operations, *, consume: bool
) -> GroupedQueryAttentionLayer:
    attention = block.self_attn
    weights = AttentionWeights(
        query_key_value=packed((attention.q_proj, attention.k_proj, attention.v_proj), consume=consume),
        output=projection(attention.o_proj),
        query_norm=optional_norm(attention, "q_norm"),
        key_norm=optional_norm(attention, "k_norm"),
    )
    return GroupedQueryAttentionLayer(
        attention=weights,
        shape=AttentionShape(
            query_heads=config.num_attention_heads,
            key_value_heads=config.num_key_value_heads,
            head_dim=int(attention.head_dim),
            scale=float(attention.scaling),
        ),
        rotary=rotary,
        block=block_parts(block, config, operations, consume=consume),
    )
