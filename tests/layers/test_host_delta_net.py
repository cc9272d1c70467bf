# SPDX-License-Identifier: MIT OR Apache-2.0
"""A delta rule layer that owns its state: which copy is the state, what a snapshot holds, and what it answers."""

from __future__ import annotations

import functools
from typing import Any, cast

import pytest
import torch

from metrale_caps import LayerCapabilities
from metrale_caps.errors import SlotError, SnapshotError
from metrale_caps.kernels.operations import operations
from metrale_caps.layer import DecodeContext
from metrale_caps.layers.host_delta_net import HostDeltaState, HostStateDeltaNetLayer
from metrale_caps.models.kimi_linear import build_kimi_linear
from tests.tiny_models import shared_tiny

ROWS = torch.randn(12, 1, 64, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def layer() -> HostStateDeltaNetLayer:
    """The first layer of the tiny Kimi Linear."""
    decoder = build_kimi_linear(
        shared_tiny("kimi_linear"),
        operations("naive"),
        context_tokens=64,
        consume=False,
        delta_layer=HostStateDeltaNetLayer,
    )
    return cast("HostStateDeltaNetLayer", decoder.layers[0])


def _int32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _context(state: HostDeltaState, position: int) -> DecodeContext:
    return DecodeContext(
        positions=torch.tensor([position]),
        cache_slots=torch.tensor([-1]),
        block_tables=_int32(0)[None],
        lengths=_int32(position + 1),
        row_starts=_int32(0, 1),
        sequence_slots=_int32(5),
        max_rows=1,
        max_length=64,
        states=(state,),
    )


def _decode(layer: HostStateDeltaNetLayer, state: HostDeltaState, steps: range) -> list[torch.Tensor]:
    return [layer.decode(ROWS[at].clone(), _context(state, at)).clone() for at in steps]


def test_answers_follow_from_states_of_its_own(layer: HostStateDeltaNetLayer) -> None:
    """No graph, no batch, no pool, no rewinding; and it has no phases of its own."""
    answers = LayerCapabilities.of(layer)
    told = {name for name in answers.sources if answers.answer(name) is True}
    assert told == {
        "decode_graph_unsupported",
        "decode_multi_seq_unsupported",
        "decode_rollback_unsupported",
        "decode_verify_multi_unsupported",
        "graph_stale_on_new_sequence",
    }
    assert answers.answer("uses_ssm_pool") is False


def test_device_copy_is_the_state_once_it_exists(layer: HostStateDeltaNetLayer) -> None:
    """The host copy stays as the first step found it, and what is written there is not read."""
    state = layer.alloc_state()
    assert state.device is None
    _decode(layer, state, range(3))
    assert state.current is state.device
    assert state.host is not None
    assert not state.host.recurrent.any()
    state.host.recurrent.fill_(torch.nan)
    assert all(rows.isfinite().all() for rows in _decode(layer, state, range(3, 5)))


def test_state_that_is_brought_back_after_each_step_is_the_same(layer: HostStateDeltaNetLayer) -> None:
    """With or without a copy that stays on the device."""
    build = functools.partial(HostStateDeltaNetLayer, keeps_device_copy=False)
    decoder = build_kimi_linear(
        shared_tiny("kimi_linear"), operations("naive"), context_tokens=64, consume=False, delta_layer=build
    )
    moving = cast("HostStateDeltaNetLayer", decoder.layers[0])
    kept, moved = layer.alloc_state(), moving.alloc_state()
    expected = _decode(layer, kept, range(6))
    for at in range(6):
        (found,) = _decode(moving, moved, range(at, at + 1))
        assert torch.equal(found, expected[at])
        assert moved.device is None
        assert moved.host is not None
    assert kept.device is not None
    assert torch.equal(moved.current.recurrent, kept.current.recurrent)


def test_snapshot_restores_what_the_device_copy_held(layer: HostStateDeltaNetLayer) -> None:
    """A restored state goes on to the same rows, whatever it held before; its device copy is gone until then."""
    state, other = layer.alloc_state(), layer.alloc_state()
    _decode(layer, state, range(4))
    snapshot = layer.snapshot_aux(state)
    expected = _decode(layer, state, range(4, 8))
    _decode(layer, other, range(8, 12))
    for restored in (state, other, layer.alloc_state()):
        layer.restore_aux(restored, snapshot)
        assert restored.device is None
        found = _decode(layer, restored, range(4, 8))
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_snapshot_of_something_else_changes_nothing(layer: HostStateDeltaNetLayer) -> None:
    """Kind and geometry are looked at before anything is written."""
    from safetensors.torch import save

    state = layer.alloc_state()
    _decode(layer, state, range(3))
    before = layer.snapshot_aux(state)
    device = state.device
    shape = state.current.recurrent.shape
    foreign: list[tuple[bytes, str]] = [
        (b"not a snapshot", "cannot be read as safetensors"),
        (save({"recurrent": torch.zeros(shape)}), "but a state of this layer is"),
        (save({"convolution": torch.zeros(1, 3, 5), "recurrent": torch.zeros(shape)}), "but a state of this layer is"),
    ]
    for snapshot, message in foreign:
        with pytest.raises(SnapshotError, match=message):
            layer.restore_aux(state, snapshot)
    assert state.device is device
    assert layer.snapshot_aux(state) == before


def test_released_state_is_not_used_or_released_again(layer: HostStateDeltaNetLayer) -> None:
    """Both copies are dropped, and a mistake of the engine shows."""
    state = layer.alloc_state()
    _decode(layer, state, range(1))
    layer.release_state(state)
    assert (state.host, state.device) == (None, None)
    uses: list[Any] = [
        lambda: layer.release_state(state),
        lambda: _decode(layer, state, range(1)),
        lambda: layer.snapshot_aux(state),
    ]
    for use in uses:
        with pytest.raises(SlotError, match="was released"):
            use()
