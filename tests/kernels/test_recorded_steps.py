# SPDX-License-Identifier: MIT OR Apache-2.0
"""A recorded step does at its replay what its code would do, and refuses what a GPU could not capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from metrale_caps.errors import CaptureError
from metrale_caps.kernels.graphs import capture
from metrale_caps.kernels.operations import operations
from metrale_caps.kernels.recording import active_recorder, is_capturing

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_CPU = torch.device("cpu")
_WEIGHT = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
_STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "multiplies": lambda x: functional.linear(x, _WEIGHT),
    "adds in place": lambda x: x.add_(1.5),
    "writes a view": lambda x: (x[1:].mul_(0.5), x)[1],
    "copies rows": lambda x: x.index_select(0, torch.arange(x.shape[0] - 1, -1, -1)),
    "splits": lambda x: torch.cat([part * scale for scale, part in enumerate(x.chunk(2, dim=1), 2)], dim=1),
    "normalises": lambda x: functional.layer_norm(x, (8,)),
    "softmax": lambda x: x.softmax(-1),
    "attends": lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None])[0],
    "masks": lambda x: x.masked_fill(x > 0.5, -1.0),
    "where": lambda x: torch.where(x < 0, x * 2, x),
    "top k": lambda x: x.scatter(1, x.topk(2, dim=1).indices, 0.0),
    "kernel": lambda x: operations("triton").rms_norm(x, torch.ones(8), 1e-5),
    "twin": lambda x: operations("naive").rms_norm(x, torch.ones(8), 1e-5),
    "fills": lambda x: torch.zeros_like(x).add_(x).clamp_(-1, 1),
    "type": lambda x: x.to(torch.bfloat16).float(),
}


@settings(max_examples=80, deadline=None)
@given(names=st.lists(st.sampled_from(sorted(_STEPS)), min_size=1, max_size=6), seed=st.integers(0, 2**16))
def test_replay_computes_what_the_code_computes(names: list[str], seed: int) -> None:
    """Any chain of operations, on numbers that came after the capture, to the bit; the capture writes nothing."""
    given_rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
    buffer = torch.full((4, 8), torch.nan)
    weights: list[Tensor] = [_WEIGHT.clone()]

    def body(x: Tensor) -> Tensor:
        for name in names:
            x = _STEPS[name](x)
        return x

    step = capture(lambda: body(buffer), _CPU)
    assert buffer.isnan().all()
    assert torch.equal(_WEIGHT, weights[0])
    for factor in (1.0, -3.0):
        buffer.copy_(given_rows * factor)
        step.replay()
        assert torch.equal(step.output, body(given_rows * factor))


def test_state_is_advanced_by_replays_alone() -> None:
    """A step that writes what it reads does so once for each replay, and not at the capture."""
    state, row = torch.zeros(3), torch.ones(3)
    step = capture(lambda: state.mul_(2).add_(row) + 0, _CPU)
    assert state.eq(0).all()
    for expected in (1.0, 3.0, 7.0):
        step.replay()
        assert state.eq(expected).all()
        assert step.output.eq(expected).all()


_HOST: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "branch": lambda x: x if x.sum() > 0 else -x,
    "int": lambda x: int(x[0, 0]),
    "tolist": lambda x: cast("Any", x).tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "write by mask": lambda x: x.__setitem__(x > 0, 0.0),
    "equal": lambda x: torch.equal(x, x),
    "unique": lambda x: cast("Any", x).unique(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "from the host": lambda x: x + torch.tensor([1.0] * 8),
    "repeat by counts": lambda x: x.repeat_interleave(x[:, 0].long().abs(), dim=0),
    "iterate": lambda x: [float(value) for value in x[0]],
}


@pytest.mark.parametrize("way", sorted(_HOST))
def test_value_that_is_taken_to_the_host_ends_the_capture(way: str) -> None:
    """With the layer named, the recorder gone, and nothing written."""
    x = torch.full((2, 8), 2.0)

    def body() -> Tensor:
        recorder = active_recorder()
        assert recorder is not None
        assert is_capturing()
        recorder.layer = 3
        _HOST[way](x)
        return x + 1

    with pytest.raises(CaptureError, match="in layer 3,") as caught:
        capture(body, _CPU)
    assert caught.value.layer_index == 3
    assert active_recorder() is None
    assert not is_capturing()
    assert x.eq(2.0).all()


def test_error_of_the_step_comes_out_as_itself() -> None:
    """And the capture is closed."""

    def body() -> Tensor:
        raise KeyError("the layer's own")

    with pytest.raises(KeyError, match="the layer's own"):
        capture(body, _CPU)
    assert active_recorder() is None


def test_memory_from_outside_is_noted_with_the_layer_that_used_it() -> None:
    """Once for each storage; what the step makes itself is not noted."""
    buffer, weight, state = torch.ones(4, 8), torch.ones(8), torch.zeros(4, 8)

    def body() -> Tensor:
        recorder = active_recorder()
        assert recorder is not None
        rows = buffer[1:] * 2
        recorder.layer = 1
        rows = operations("triton").rms_norm(rows, weight, 1e-5)
        state[1:].copy_(rows)
        recorder.layer = None
        return rows + buffer[1:]

    step = capture(body, _CPU)
    noted = {baked.storage: baked.layer for baked in step.baked}
    assert noted == {
        tensor.untyped_storage().data_ptr(): layer for tensor, layer in ((buffer, None), (weight, 1), (state, 1))
    }


def test_output_from_outside_is_memory_that_is_baked_too() -> None:
    """A step that only hands on a buffer holds its address."""
    buffer = torch.ones(2)
    (baked,) = capture(lambda: buffer, _CPU).baked
    assert baked.tensor is buffer
