# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tiny random models as `transformers` has them: the oracles of the layers and models of this package.

Each is built from a seed, in fp32, with weights drawn so that a fault in the use of any one of them changes tokens:
the library's own initialisation leaves norms, biases and decays at values that hide faults. The seeds were picked for
wide gaps between the best two tokens of `PROMPT`'s greedy continuation.

The hybrid models need care at import. Where the package `fla` is importable, `transformers` binds its Triton kernels
when a modeling module is imported, and those refuse tensors of a CPU. So these modules are imported here, with `fla`
hidden. A test that imports one of them otherwise must call `hybrid_classes` before.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import sys
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import ModuleType

    from torch import Tensor

PROMPT = [5, 17, 99, 42, 8, 61, 120, 33, 74, 19, 50, 7]

_IDS: dict[str, Any] = {"vocab_size": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}

TINY: dict[str, tuple[str, int, dict[str, Any]]] = {
    "llama": ("llama", 14, {"rms_norm_eps": 1e-5}),
    "llama-biases": ("llama", 5, {"rms_norm_eps": 1e-5, "attention_bias": True}),
    "qwen3": ("qwen3", 3, {"head_dim": 24}),
}
"""The dense models: architecture, seed, and what differs in the configuration."""

# keys and values differ in width, so that a transposed state shows
_GATED_DELTA_NET: dict[str, Any] = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
}
_QWEN3_NEXT: dict[str, Any] = {
    **_GATED_DELTA_NET,
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 32,
    "mlp_only_layers": [1],
}
_KIMI_LINEAR: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "linear_conv_kernel_dim": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
}

HYBRIDS: dict[str, tuple[int, dict[str, Any]]] = {
    "qwen3_next": (20, _QWEN3_NEXT),
    "qwen3_5": (14, {**_GATED_DELTA_NET, "head_dim": 32}),
    "kimi_linear": (11, _KIMI_LINEAR),
}
"""The models with linear attention: seed, and what differs in the configuration. All have four layers, one of them
with full attention: the last, and the third of `kimi_linear`."""

_HYBRID_CLASSES = {
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM"),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
    "kimi_linear": ("KimiLinearConfig", "KimiLinearForCausalLM"),
}
FOREIGN_KERNELS = ("fla", "causal_conv1d")
"""The packages whose kernels `transformers` binds where it can import them."""


def make_model(architecture: str, seed: int, **values: Any) -> Any:
    """Build a tiny dense model in fp32 from its seed; `values` override its configuration."""
    import transformers

    kinds: dict[str, tuple[Any, Any]] = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }
    config, model_class = kinds[architecture]
    model = model_class(config(**{**_IDS, **_SIZES, **values})).eval()
    _reinitialise(model, seed)
    return model


def make_hybrid(name: str, seed: int | None = None, **values: Any) -> Any:
    """Build one of `HYBRIDS` in fp32; `values` override its configuration, and `seed` the one that it is listed with.

    Raises:
        RuntimeError: as `hybrid_classes`.
    """
    config, model_class = hybrid_classes(name)
    listed, own = HYBRIDS[name]
    state = torch.get_rng_state()  # the constructor draws, and what it draws is overwritten
    model = model_class(config(**{**_IDS, **_SIZES, "num_hidden_layers": 4, **own, **values}))
    torch.set_rng_state(state)
    model = model.to(torch.float32).eval()
    _reinitialise_hybrid(model, listed if seed is None else seed)
    return model


def make_tiny(name: str) -> Any:
    """Build one of `TINY` or `HYBRIDS` anew, for a test that takes weights out of it or changes it."""
    if name in HYBRIDS:
        return make_hybrid(name)
    architecture, seed, values = TINY[name]
    return make_model(architecture, seed, **values)


@functools.cache
def shared_tiny(name: str) -> Any:
    """Return one of `TINY` or `HYBRIDS`, built once in a process; whoever asks must leave it as it is."""
    return make_tiny(name)


def hybrid_classes(name: str) -> tuple[Any, Any]:
    """Import the configuration class and the model class of one of `HYBRIDS`, bound to plain torch.

    Raises:
        RuntimeError: the modeling module was imported before, with kernels of another package, which a CPU cannot run.
    """
    module = f"transformers.models.{name}.modeling_{name}"
    with hidden_packages(*FOREIGN_KERNELS):
        imported = importlib.import_module(module)
    bound = foreign_functions(imported, *FOREIGN_KERNELS)
    if bound:
        raise RuntimeError(
            f"{module} was imported before with the kernels {', '.join(bound)}, which refuse tensors of a CPU; import "
            "it first through `tests.tiny_models.hybrid_classes`"
        )
    config, model_class = _HYBRID_CLASSES[name]
    return getattr(imported, config), getattr(imported, model_class)


@contextlib.contextmanager
def hidden_packages(*packages: str) -> Generator[None]:
    """Make packages impossible to import inside a `with` block, and `sys.modules` as it was for them afterwards."""
    modules = cast("dict[str, Any]", sys.modules)

    def present() -> list[str]:
        return [name for name in modules if name.partition(".")[0] in packages]

    before = {name: modules.pop(name) for name in present()}
    modules.update(dict.fromkeys(packages))
    try:
        yield
    finally:
        for name in present():
            del modules[name]
        modules.update(before)


def foreign_functions(module: ModuleType, *packages: str) -> list[str]:
    """Return the functions of a module that stand in for ones of these packages, each as `name (package.module)`.

    A decorator of `transformers` hides what it chose behind the name of its own reference, so that only what the
    function closes over tells.
    """
    found: list[str] = []
    for name, function in vars(module).items():
        for cell in getattr(function, "__closure__", None) or ():
            home = str(getattr(cell.cell_contents, "__module__", None))
            if home.partition(".")[0] in packages:
                found.append(f"{name} ({home})")
    return sorted(set(found))


@torch.inference_mode()
def full_logits(model: Any, tokens: Sequence[int]) -> Tensor:
    """Return logits `[tokens, vocabulary]`, fp32, of one pass of `transformers` over all tokens, without a cache."""
    return model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0].float()


@torch.inference_mode()
def cached_states(model: Any, tokens: Sequence[int]) -> dict[int, tuple[Tensor, Tensor]]:
    """Return what each layer with linear attention keeps after one pass over all tokens, by the layer's index.

    Returns:
        The last inputs of its convolution, `[channels, kernel_size]`, the oldest first, and its state,
        `[heads, key_head_dim, value_head_dim]`, fp32. Layers with full attention have no entry.
    """
    from transformers import DynamicCache

    cache: Any = DynamicCache(config=model.config)
    model(input_ids=torch.tensor([list(tokens)]), cache=cache, use_cache=True)
    return {
        index: (layer.conv_states[0][0].clone(), layer.recurrent_states[0][0].clone())
        for index, layer in enumerate(cache.layers)
        if hasattr(layer, "recurrent_states")
    }


def _reinitialise(model: Any, seed: int) -> None:
    """Give every parameter a value that matters, so that a fault in its use shows."""
    generator = torch.Generator().manual_seed(seed)

    def noise(like: Tensor, std: float) -> Tensor:
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


@torch.no_grad()
def _reinitialise_hybrid(model: Any, seed: int) -> None:
    """Give every parameter, and the routers' correction biases, a value that matters.

    Drawn in the order of their names, and for each a normal and a uniform tensor, whichever is used: the tokens that
    the tests know come from this very order.
    """
    generator = torch.Generator().manual_seed(seed)
    named = dict(model.named_parameters())
    named.update({name: buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")})
    for name in sorted(named):
        normal = torch.randn(named[name].shape, generator=generator)
        uniform = torch.rand(named[name].shape, generator=generator)
        named[name].copy_(_value(name, named[name], normal, uniform))


def _value(name: str, old: Tensor, normal: Tensor, uniform: Tensor) -> Tensor:
    """Return a parameter's value; `A_log` and `dt_bias` such that a step keeps about 0.55 to 0.98 of the state.

    The gated delta net's are called `linear_attn`. With the library's own, a step keeps nothing.
    """
    gated_delta_net = "linear_attn" in name
    if name.endswith("embed_tokens.weight"):
        return normal
    if name.endswith("A_log"):
        return ((0.05 + 0.35 * uniform) if gated_delta_net else (0.3 + 1.2 * uniform)).log()
    if name.endswith("dt_bias"):
        return (-0.5 + uniform) if gated_delta_net else (-3.0 + 2.0 * uniform)
    if name.endswith("e_score_correction_bias"):
        return 0.1 * normal
    if old.dim() >= 2:
        return normal * (4.0 if name.endswith("lm_head.weight") else 1.0) / math.sqrt(old.shape[-1])
    return old + 0.2 * normal
