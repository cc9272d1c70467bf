# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which architectures can be built, and the one function that builds them."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from metrale_caps.errors import ConfigurationError, UnsupportedArchitectureError
from metrale_caps.models.dense import build_dense
from metrale_caps.models.kimi_linear import build_kimi_linear
from metrale_caps.models.qwen_hybrid import build_qwen_hybrid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from metrale_caps.kernels.operations import Operations
    from metrale_caps.models.decoder import Decoder
    from metrale_caps.models.replacements import LayerBuilder

BUILDERS: Mapping[str, Callable[..., Decoder]] = MappingProxyType(
    {
        "kimi_linear": build_kimi_linear,
        "llama": build_dense,
        "qwen3": build_dense,
        "qwen3_5": build_qwen_hybrid,  # a checkpoint with images, of which the text part is read
        "qwen3_5_text": build_qwen_hybrid,
        "qwen3_next": build_qwen_hybrid,
    }
)
"""Builder of each `model_type`."""


def supported_architectures() -> tuple[str, ...]:
    """Return the `model_type`s that can be built."""
    return tuple(sorted(BUILDERS))


def check_architecture(config: Any) -> None:
    """Refuse a configuration whose architecture has no layers here.

    Raises:
        UnsupportedArchitectureError: naming it and the supported ones.
    """
    architecture = str(getattr(config, "model_type", None) or "unknown")
    if architecture not in BUILDERS:
        raise UnsupportedArchitectureError(architecture, supported_architectures())


def build_decoder(
    model: Any,
    operations: Operations,
    *,
    context_tokens: int | None = None,
    consume: bool,
    layers: LayerBuilder | None = None,
) -> Decoder:
    """Build the layers of a `transformers` causal language model over its weights.

    Args:
        model: the model, in evaluation mode, on its device and in its dtype.
        operations: kernels or their plain-torch twins.
        context_tokens: positions to prepare for; the configuration's by default.
        consume: whether the model's weights may be taken out of it.
        layers: makes a layer for a block, or returns None to leave the block to the engine's own. It is asked for
            every block in order, before any weight is taken.

    Raises:
        UnsupportedArchitectureError: there are no layers for it here.
        ConfigurationError: it is no such model.
        Exception: whatever `layers` raises, with a note that names it and the block.
    """
    config = getattr(model, "config", None)
    if config is None:
        raise ConfigurationError(
            f"a model is needed, and an object of type {type(model).__qualname__} came; give a transformers causal "
            "language model, a checkpoint folder or a GGUF file"
        )
    check_architecture(config)
    if getattr(model, "lm_head", None) is None:
        raise ConfigurationError(f"{type(model).__qualname__} has no language-model head; give the causal model")
    if getattr(config, "text_config", None) is not None:
        raise ConfigurationError(
            f"{type(model).__qualname__} takes more than text; give its checkpoint folder, of which the text part is "
            "read, or the causal model of the text part"
        )
    limit = int(config.max_position_embeddings)
    build = BUILDERS[config.model_type]
    tokens = min(context_tokens or limit, limit)
    decoder = build(model, operations, context_tokens=tokens, consume=consume, layers=layers)
    return dataclasses.replace(decoder, stop_token_ids=_stop_token_ids(model))


def _stop_token_ids(model: Any) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = model.config.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
