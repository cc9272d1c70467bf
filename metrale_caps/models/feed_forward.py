# SPDX-License-Identifier: MIT OR Apache-2.0
"""Builds the feed-forward half of a block: a SwiGLU, or a mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metrale_caps.layers.feed_forward import SwiGlu
from metrale_caps.layers.mixture_of_experts import MixtureOfExperts, SigmoidRouter, SoftmaxRouter
from metrale_caps.layers.projection import Projection
from metrale_caps.models.weights import packed, projection, require_unhooked

if TYPE_CHECKING:
    from metrale_caps.layers.feed_forward import FeedForward


def feed_forward(module: Any, *, consume: bool) -> FeedForward:
    """Return what a block's `mlp` computes; experts' weights are shared with it, packed projections copied.

    Raises:
        ConfigurationError: a module does more than its weights say.
    """
    for name in ("", "gate", "experts", "shared_expert", "shared_experts"):
        part = module if not name else getattr(module, name, None)
        if part is not None:
            require_unhooked(part, name or "a feed-forward")
    if not hasattr(module, "experts"):
        return _swiglu(module, consume=consume)
    if hasattr(module, "shared_expert_gate"):
        return _softmax_experts(module, consume=consume)
    return _sigmoid_experts(module, consume=consume)


def _swiglu(module: Any, *, consume: bool) -> SwiGlu:
    return SwiGlu(packed((module.gate_proj, module.up_proj), consume=consume), projection(module.down_proj))


def _softmax_experts(module: Any, *, consume: bool) -> MixtureOfExperts:
    gate = module.gate
    return MixtureOfExperts(
        router=SoftmaxRouter(Projection(gate.weight.detach()), gate.top_k, normalise=gate.norm_topk_prob),
        gate_up=module.experts.gate_up_proj.detach(),
        down=module.experts.down_proj.detach(),
        shared_expert=_swiglu(module.shared_expert, consume=consume),
        shared_expert_gate=projection(module.shared_expert_gate),
    )


def _sigmoid_experts(module: Any, *, consume: bool) -> MixtureOfExperts:
    gate = module.gate
    router = SigmoidRouter(
        Projection(gate.weight.detach().float()),
        gate.e_score_correction_bias.detach().float(),
        gate.top_k,
        groups=gate.num_group,
        groups_per_row=gate.topk_group,
        normalise=gate.norm_topk_prob,
        scale=float(gate.routed_scaling_factor),
    )
    return MixtureOfExperts(
        router=router,
        gate_up=module.experts.gate_up_proj.detach(),
        down=module.experts.down_proj.detach(),
        shared_expert=_swiglu(module.shared_experts, consume=consume),
    )
