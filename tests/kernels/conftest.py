# SPDX-License-Identifier: MIT OR Apache-2.0
"""Both implementations of every operation, new tensors full of NaN, and the tile sizes of a GPU on a CPU."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import torch

from metrale_caps.kernels import (
    activation,
    attention,
    causal_conv,
    combine,
    gated_rms_norm,
    l2_norm,
    latent_attention,
    latent_store,
    rms_norm,
    rope,
    store_kv_fp8,
)
from metrale_caps.kernels.architecture import Architecture, assume_architecture
from metrale_caps.kernels.operations import operations
from tests.kernels.delta_inputs import gpu_tiles

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from metrale_caps.kernels.operations import Operations


@pytest.fixture(scope="session")
def kernels() -> Operations:
    """The Triton kernels, which the executor runs here."""
    return operations("triton")


@pytest.fixture(scope="session")
def twins() -> Operations:
    """The plain-torch twins."""
    return operations("naive")


@pytest.fixture(scope="session", params=["triton", "naive"])
def each(request: pytest.FixtureRequest) -> Operations:
    """Kernels and twins in turn."""
    return operations(request.param)


def _poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def allocate_poison(*arguments: Any, **named: Any) -> torch.Tensor:
        tensor = allocate(*arguments, **named)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    return allocate_poison


@pytest.fixture(scope="module")
def poisoned_empty() -> Generator[None]:
    """Fill what `torch.empty` returns with NaN, so that a cell nobody writes shows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", _poisoned(torch.empty))
        patch.setattr(torch, "empty_like", _poisoned(torch.empty_like))
        yield


_TILED = {
    activation: ("elementwise_tile",),
    attention: ("attention_tile",),
    causal_conv: ("conv_tile",),
    combine: ("whole_row_tile",),
    gated_rms_norm: ("whole_heads_tile",),
    l2_norm: ("whole_heads_tile",),
    latent_attention: ("latent_tile",),
    latent_store: ("whole_row_tile",),
    rms_norm: ("whole_row_tile",),
    rope: ("head_tile",),
    store_kv_fp8: ("head_tile",),
}


def _for_gpu(choose: Callable[..., Any]) -> Callable[..., Any]:
    def choose_for_gpu(_device: torch.device, *arguments: Any, **named: Any) -> Any:
        with assume_architecture(Architecture("nvidia", generation=9, multiprocessors=132)):
            return choose(torch.device("meta"), *arguments, **named)

    return choose_for_gpu


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def tile_sizes(request: pytest.FixtureRequest) -> Generator[None]:
    """Run kernels with the tiles that a CPU or an H100 gets: a GPU's are smaller, so there are more programs."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "gpu":
            for module, names in _TILED.items():
                for name in names:
                    patch.setattr(module, name, _for_gpu(getattr(module, name)))
        with gpu_tiles() if request.param == "gpu" else contextlib.nullcontext():
            yield
