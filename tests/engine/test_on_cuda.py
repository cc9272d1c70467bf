# SPDX-License-Identifier: MIT OR Apache-2.0
"""On a GPU: steps captured as CUDA graphs, with the kernels compiled, and the same rules as on a CPU."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch

from metrale_caps.errors import StaleGraphError
from tests.engine.steps import TEXT, Steps, make_decoder, with_layer
from tests.engine.test_decode_graphs import OwnsBuffers, SyncsOnHost

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def cuda_llama(tiny_llama: Any) -> Any:
    """The tiny Llama on a GPU, in fp32."""
    return copy.deepcopy(tiny_llama).cuda()


@pytest.mark.parametrize("options", [{}, {"kv_dtype": "fp8", "fp8_calibration_tokens": 8}], ids=["fp32", "fp8"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_replay_equals_eager_to_the_bit(cuda_llama: Any, count: int, options: dict[str, Any]) -> None:
    """Forty steps; sequences end, and others take over their slots and blocks."""
    replayed = Steps(make_decoder(cuda_llama, "triton"), **options)
    eager = Steps(make_decoder(cuda_llama, "triton"), decode_graphs=False, **options)
    for steps in (replayed, eager):
        steps.runner.warm_up()
        for slot in range(count):
            steps.start(slot, TEXT[slot : slot + 9 + slot])
    for step in range(40):
        if step in {11, 27}:
            for steps in (replayed, eager):
                steps.finish(0)
                steps.start(0, TEXT[step : step + 7])
        slots = list(range(count)) if step % 5 else list(reversed(range(count)))
        tokens = [TEXT[50 + 5 * step + slot] for slot in slots]
        assert torch.equal(replayed.decode(slots, tokens)[0], eager.decode(slots, tokens)[0]), step
    assert replayed.counters.graph_replays > 30


def test_capture_that_fails_is_closed_and_the_step_is_right(cuda_llama: Any) -> None:
    """The driver ends a capture that reads on the host; the stream works on, and later steps are eager."""
    decoder, _ = with_layer(make_decoder(cuda_llama, "triton"), 1, SyncsOnHost)
    steps, plain = Steps(decoder), Steps(make_decoder(cuda_llama, "triton"), decode_graphs=False)
    for each in (steps, plain):
        each.runner.warm_up()
        each.start(0, TEXT[:9])
    for at in range(4):
        logits, (route,) = steps.decode([0], [TEXT[at]])
        assert torch.equal(logits, plain.decode([0], [TEXT[at]])[0])
        assert "eager" in route.route
    assert steps.counters.capture_failures == 1


class OwnsBuffersOnCuda(OwnsBuffers):
    """The same, there."""

    def alloc_state(self) -> dict[str, Tensor]:  # pyright: ignore[reportImplicitOverride]
        return {"sum": torch.zeros(64, device="cuda")}


def test_guard_catches_a_state_that_was_replaced(cuda_llama: Any) -> None:
    """Before the launch."""
    decoder, _ = with_layer(make_decoder(cuda_llama, "triton"), 0, OwnsBuffersOnCuda)
    steps = Steps(decoder)
    kept = steps.start(0, TEXT[:4]).layer_states
    for at in range(3):
        steps.decode([0], [TEXT[at]])
    state = dict(kept)
    steps.finish(0)
    steps.start(0, TEXT[:4])
    del state
    with pytest.raises(StaleGraphError, match="layer 0"):
        steps.decode([0], [5])
