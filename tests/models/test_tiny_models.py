# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tiny models with linear attention are the oracles they are said to be, whatever else is installed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.tiny_models import (
    FOREIGN_KERNELS,
    HYBRIDS,
    PROMPT,
    cached_states,
    foreign_functions,
    full_logits,
    hidden_packages,
    hybrid_classes,
    make_hybrid,
    make_tiny,
    shared_tiny,
)

if TYPE_CHECKING:
    from pathlib import Path

# computed once by `transformers` 5.24 in fp32, from weights that were saved and loaded again
TOKENS = {
    "qwen3_next": [83, 97, 14, 77, 7, 75, 79, 36, 97, 25, 37, 96, 70, 88, 82, 57],
    "qwen3_5": [111, 127, 125, 70, 11, 58, 37, 94, 28, 120, 96, 27, 1, 85, 42, 7],
    "kimi_linear": [46, 92, 59, 60, 60, 26, 101, 96, 103, 74, 16, 97, 16, 9, 53, 48],
}
STATES = {
    "qwen3_next": ([0, 1, 2], (160, 4), (4, 16, 24)),
    "qwen3_5": ([0, 1, 2], (160, 4), (4, 16, 24)),
    "kimi_linear": ([0, 1, 3], (192, 4), (4, 16, 16)),
}
# bounds of what cached and uncached passes differ by in fp32: the most seen, over 150 tokens, is 5e-5
TOLERANCE = 2e-4

_FAKE_KERNELS = """
def {name}(*args, **kwargs):
    raise RuntimeError("0 active drivers ([])")
"""
_IMPORTED_BEFORE = """
import transformers.models.qwen3_next.modeling_qwen3_next
from tests.tiny_models import hybrid_classes
hybrid_classes("qwen3_next")
"""


@pytest.fixture(params=list(HYBRIDS))
def name(request: pytest.FixtureRequest) -> str:
    """Each hybrid in turn."""
    return request.param


def test_greedy_tokens_are_the_known_ones(name: str) -> None:
    """The library's own `generate`, with its cache, continues the prompt as it did when the seeds were chosen."""
    prompt = torch.tensor([PROMPT])
    result: torch.Tensor = shared_tiny(name).generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False
    )
    assert torch.equal(result[0, len(PROMPT) :], torch.tensor(TOKENS[name]))


def test_full_logits_choose_the_same_tokens_far_from_ties(name: str) -> None:
    """A pass without a cache chooses the tokens of the one with a cache, by more than any rounding could change."""
    logits = full_logits(shared_tiny(name), PROMPT + TOKENS[name])
    assert logits.shape == (len(PROMPT) + 16, 128)
    assert logits.dtype == torch.float32
    best = logits[len(PROMPT) - 1 : -1].topk(2)
    assert torch.equal(best.indices[:, 0], torch.tensor(TOKENS[name]))
    assert float((best.values[:, 0] - best.values[:, 1]).min()) > 100 * TOLERANCE


def test_cached_states_are_those_of_the_linear_layers(name: str) -> None:
    """Each layer with linear attention, and no other, shows its convolution's last inputs and its state."""
    layers, conv, recurrent = STATES[name]
    states = cached_states(shared_tiny(name), PROMPT)
    assert list(states) == layers
    for window, state in states.values():
        assert (window.shape, state.shape, state.dtype) == (conv, recurrent, torch.float32)
        assert float(window.abs().min()) > 0
        assert float(state.abs().max()) > 0.1


def test_cached_states_are_carried_from_token_to_token(name: str) -> None:
    """A pass that was cut leaves the states of one that was not, though the two are computed in different ways."""
    from transformers import DynamicCache

    model = shared_tiny(name)
    whole = cached_states(model, PROMPT)
    cache: Any = DynamicCache(config=model.config)
    with torch.inference_mode():
        for tokens in (PROMPT[:7], *([token] for token in PROMPT[7:])):
            model(input_ids=torch.tensor([tokens]), cache=cache, use_cache=True)
    for index, (window, state) in whole.items():
        torch.testing.assert_close(cache.layers[index].conv_states[0][0], window, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(cache.layers[index].recurrent_states[0][0], state, rtol=0, atol=TOLERANCE)


def test_a_step_keeps_most_of_the_state(name: str) -> None:
    """The decay alone, for an input of zero, keeps more than half and less than all of each state."""
    for layer in shared_tiny(name).model.layers:
        mixer = getattr(layer, "linear_attn", None) or getattr(layer.self_attn, "forget_gate", None)
        if mixer is None:
            continue
        scale = mixer.A_log.detach().exp().flatten()
        step = torch.nn.functional.softplus(mixer.dt_bias.detach()).view(len(scale), -1)
        kept = torch.exp(-scale[:, None] * step)
        assert float(kept.min()) > 0.5
        assert float(kept.max()) < 0.99


def test_models_are_made_from_their_seed_alone(name: str) -> None:
    """Two made one after the other are equal, another seed gives another, and the global generator stays as it was."""
    before = torch.get_rng_state()
    again, other = make_tiny(name), make_hybrid(name, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    weights = shared_tiny(name).state_dict()
    assert again is not shared_tiny(name)
    for key, value in again.state_dict().items():
        assert torch.equal(value, weights[key]), key
        assert not torch.equal(value, other.state_dict()[key]), key


def test_hidden_packages_cannot_be_imported_and_come_back() -> None:
    """Inside, neither a package nor a module of it is found; afterwards each is the very object it was before."""
    package, inner = ModuleType("fla"), ModuleType("fla.ops")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "fla", package)
        patch.setitem(sys.modules, "fla.ops", inner)
        patch.delitem(sys.modules, "causal_conv1d", raising=False)
        with hidden_packages(*FOREIGN_KERNELS):
            for hidden in ("fla", "fla.ops", "causal_conv1d"):
                with pytest.raises(ModuleNotFoundError):
                    importlib.import_module(hidden)
            sys.modules["fla.left_behind"] = ModuleType("fla.left_behind")
        assert sys.modules["fla"] is package
        assert sys.modules["fla.ops"] is inner
        assert "fla.left_behind" not in sys.modules
        assert "causal_conv1d" not in sys.modules


def test_hidden_packages_come_back_after_an_error() -> None:
    """An error inside leaves nothing hidden."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "fla", ModuleType("fla"))
        with pytest.raises(KeyError), hidden_packages("fla"):
            raise KeyError
        assert importlib.import_module("fla") is sys.modules["fla"]


def test_models_use_no_function_of_another_package(name: str) -> None:
    """What computes the oracles is plain torch, whether or not other kernels are installed."""
    _, model_class = hybrid_classes(name)
    assert foreign_functions(sys.modules[model_class.__module__], *FOREIGN_KERNELS) == []


def test_a_modeling_module_that_bound_other_kernels_is_refused(tmp_path: Path) -> None:
    """If another import came first, so that oracles would die on their first token, the cause is told at once."""
    package = tmp_path / "fla"
    inner = package / "ops" / "gated_delta_rule"
    inner.mkdir(parents=True)
    kernels = "".join(
        _FAKE_KERNELS.format(name=name) for name in ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")
    )
    (package / "__init__.py").touch()
    (package / "ops" / "__init__.py").touch()
    (inner / "__init__.py").write_text(kernels)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    run = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", _IMPORTED_BEFORE],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "modeling_qwen3_next was imported before with the kernels" in run.stderr
    assert "chunk_gated_delta_rule (fla.ops.gated_delta_rule)" in run.stderr
