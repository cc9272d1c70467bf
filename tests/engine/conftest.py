# SPDX-License-Identifier: MIT OR Apache-2.0
"""Models the engine is compared with: tiny random ones as `transformers` has them, and the default one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from metrale_caps.engine import Engine
from metrale_caps.models.checkpoint import find_checkpoint
from tests.tiny_models import HYBRIDS, TINY, full_logits, make_tiny, shared_tiny

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="session", params=list(TINY))
def tiny_model(request: pytest.FixtureRequest) -> Any:
    """Each tiny model in turn, in fp32."""
    return make_tiny(request.param)


@pytest.fixture(scope="session")
def tiny_llama() -> Any:
    """The tiny Llama, in fp32."""
    return make_tiny("llama")


@pytest.fixture(scope="session", params=list(HYBRIDS))
def tiny_hybrid(request: pytest.FixtureRequest) -> Any:
    """Each tiny model with linear attention in turn, in fp32; tests share it, and must not change it."""
    return shared_tiny(request.param)


@pytest.fixture(scope="session")
def reference_logits() -> Callable[[Any, list[int]], torch.Tensor]:
    """Logits `[tokens, vocabulary]` of a full pass of `transformers`, without a cache."""
    return full_logits


@pytest.fixture(scope="session")
def smollm2_reference() -> Any:
    """SmolLM2 in fp32, as `transformers` reads it from the GGUF file itself."""
    from transformers import AutoModelForCausalLM

    checkpoint = find_checkpoint(None)
    auto: Any = AutoModelForCausalLM
    return auto.from_pretrained(checkpoint.folder, gguf_file=checkpoint.gguf_file, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def make_smollm2() -> Callable[..., Engine]:
    """Make an engine over the default model; the first call converts the GGUF file, later ones read the conversion."""

    def make(**options: Any) -> Engine:
        return Engine.from_pretrained(**options)

    return make
