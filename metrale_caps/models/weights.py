# SPDX-License-Identifier: MIT OR Apache-2.0
"""Takes weights out of modules of a `transformers` model, and refuses modules that do more than their weights say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from metrale_caps.errors import ConfigurationError
from metrale_caps.layers.projection import Projection
from metrale_caps.models.memory import page_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def weight_of(module: Any, role: str) -> Tensor:
    """Return the weight of a norm or an embedding that does nothing besides.

    Raises:
        ConfigurationError: it does.
    """
    plain = type(module) is torch.nn.Embedding or type(module).__name__.endswith(("RMSNorm", "RMSNormGated"))
    require_plain(module, role, plain=plain)
    return module.weight.detach()


def optional_norm(module: Any, name: str) -> Tensor | None:
    """Return the weight of a norm that a module may have, or None."""
    norm = getattr(module, name, None)
    return None if norm is None else weight_of(norm, "a norm")


def centred_norm(module: Any) -> Tensor:
    """Return 1 plus the weight of a norm whose weights are centred on zero, in fp32 as the model adds them."""
    return weight_of(module, "a norm").float() + 1.0


def projection(linear: Any) -> Projection:
    """Return a linear module's weights, shared with it.

    Raises:
        ConfigurationError: it is not plainly linear.
    """
    require_plain(linear, "a projection", plain=type(linear) is torch.nn.Linear)
    return Projection(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())


def packed(linears: Sequence[Any], *, consume: bool, rows: Sequence[Tensor | None] | None = None) -> Projection:
    """Return several linear modules as one projection, copied.

    Args:
        linears: the modules; one may stand there more than once, with other outputs each time.
        consume: take their weights out of them.
        rows: for each module, which of its outputs come, in order; None for all as they are.
    """
    parts = [projection(linear) for linear in linears]
    orders = rows or [None] * len(parts)
    weight = torch.cat([_ordered(part.weight, order) for part, order in zip(parts, orders, strict=True)])
    bias = None
    if any(part.bias is not None for part in parts):
        bias = torch.cat([_ordered(_bias(part), order) for part, order in zip(parts, orders, strict=True)])
    if consume:
        for linear in dict.fromkeys(linears):
            page_out(linear.weight)
            linear.weight = None
    return Projection(weight, bias)


def _bias(part: Projection) -> Tensor:
    return part.weight.new_zeros(part.weight.shape[0]) if part.bias is None else part.bias


def _ordered(rows: Tensor, order: Tensor | None) -> Tensor:
    return rows if order is None else rows.index_select(0, order.to(rows.device))


def convolution_taps(module: Any) -> Tensor:
    """Return the weight of a depthwise causal convolution, `[width, channels]`, copied.

    Raises:
        ConfigurationError: it has a bias, or is no such convolution.
    """
    weight = module.weight
    depthwise = type(module) is torch.nn.Conv1d and module.groups == module.in_channels == module.out_channels
    require_plain(module, "a convolution", plain=depthwise and module.bias is None)
    return weight.detach()[:, 0].t().contiguous()


def require_unhooked(module: Any, role: str) -> None:
    """Refuse a module of `transformers` with hooks.

    Raises:
        ConfigurationError: it has some.
    """
    require_plain(module, role, plain=type(module).__module__.startswith("transformers."))


def require_plain(module: Any, role: str, *, plain: bool) -> None:
    """Refuse a module that only looks like what it stands for: an adapter's own term would be lost without a word.

    Raises:
        ConfigurationError: `plain` is False, or the module has hooks.
    """
    hooked = module._forward_hooks or module._forward_pre_hooks  # noqa: SLF001 - torch has no public way to ask
    if not plain or hooked:
        what = f"{type(module).__qualname__}{' with hooks' if hooked else ''}"
        raise ConfigurationError(
            f"{role} is {what}, which does more than its weight says; merge adapters and remove hooks before"
        )
