# SPDX-License-Identifier: MIT OR Apache-2.0
"""Verify steps of pool-backed delta rule layers: any number of rows can be kept, as if the others had never been."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from metrale_caps.kernels.operations import operations
from metrale_caps.layer import DecodeContext, SsmLayerState, VerifyContext
from metrale_caps.models.registry import build_decoder
from metrale_caps.state.ssm_pool import SsmPool
from tests.tiny_models import shared_tiny

if TYPE_CHECKING:
    from metrale_caps.layers.delta_net import DeltaNetLayer

HISTORY = 6
ROWS = torch.randn(3, 12, 64, generator=torch.Generator().manual_seed(5))
SLOTS = [2, 0, 3]


def _layer(name: str, kernels: Any) -> DeltaNetLayer:
    decoder = build_decoder(shared_tiny(name), operations(kernels), context_tokens=64, consume=False)
    return cast("DeltaNetLayer", decoder.layers[0])


def _pool(layer: DeltaNetLayer, verify_rows: int) -> tuple[SsmPool, SsmLayerState]:
    pool = SsmPool(
        [layer.ssm_state_spec()], 4, dtype=torch.float32, device=torch.device("cpu"), verify_rows=verify_rows
    )
    for slot in SLOTS:
        pool.claim(slot)
    (state,) = pool.layers
    assert state is not None
    return pool, state


def _context(kind: Any, counts: list[int], state: SsmLayerState, slots: list[int]) -> Any:
    rows: dict[str, Any] = {"rows_per_sequence": tuple(counts)} if kind is VerifyContext else {}
    return kind(
        positions=torch.zeros(sum(counts), dtype=torch.int64),
        cache_slots=torch.full((sum(counts),), -1),
        block_tables=torch.zeros(len(counts), 1, dtype=torch.int32),
        lengths=torch.ones(len(counts), dtype=torch.int32),
        row_starts=torch.tensor([0, *counts]).cumsum(0).int(),
        sequence_slots=torch.tensor(slots, dtype=torch.int32),
        max_rows=max(counts),
        max_length=64,
        ssm=state,
        **rows,
    )


def _decode(layer: DeltaNetLayer, state: SsmLayerState, sequence: int, steps: range) -> list[torch.Tensor]:
    context = _context(DecodeContext, [1], state, [SLOTS[sequence]])
    return [layer.decode(ROWS[sequence, at : at + 1].clone(), context).clone() for at in steps]


@pytest.mark.parametrize("kernels", ["naive", "triton"])
@pytest.mark.parametrize("name", ["qwen3_next", "kimi_linear"])
@pytest.mark.parametrize("kept", [(0, 3, 1), (4, 0, 2), (1, 2, 2)])
def test_kept_rows_leave_the_state_of_plain_steps(name: str, kernels: str, kept: tuple[int, ...]) -> None:
    """Ragged drafts of three sequences in one call; after none, some or all of them the next steps go on alike."""
    layer = _layer(name, kernels)
    pool, state = _pool(layer, verify_rows=4)
    _, plain = _pool(layer, verify_rows=0)
    counts = [4, 3, 2]
    for sequence, slot in enumerate(SLOTS):
        _decode(layer, state, sequence, range(HISTORY))
        _decode(layer, plain, sequence, range(HISTORY))
        pool.checkpoint(slot, counts[sequence])
    rows = torch.cat([ROWS[index, HISTORY : HISTORY + count] for index, count in enumerate(counts)])
    verified = layer.decode_verify_multi(rows.clone(), _context(VerifyContext, counts, state, SLOTS))
    for sequence, (slot, count) in enumerate(zip(SLOTS, kept, strict=True)):
        pool.accept(slot, count)
        steps = _decode(layer, plain, sequence, range(HISTORY, HISTORY + count))
        first = sum(counts[:sequence])
        if steps:
            torch.testing.assert_close(verified[first : first + count], torch.cat(steps), atol=1e-5, rtol=0)
        assert torch.equal(state.convolution[slot], plain.convolution[slot])
        torch.testing.assert_close(state.recurrent[slot], plain.recurrent[slot], atol=1e-6, rtol=1e-6)
        after = range(HISTORY + count, HISTORY + count + 2)
        found, expected = _decode(layer, state, sequence, after), _decode(layer, plain, sequence, after)
        torch.testing.assert_close(torch.cat(found), torch.cat(expected), atol=1e-5, rtol=0)


def test_verify_without_room_for_rows_is_an_error_and_changes_nothing() -> None:
    """A silent step would leave the state past the accepted row."""
    layer = _layer("qwen3_5", "naive")
    _, state = _pool(layer, verify_rows=0)
    _decode(layer, state, 0, range(HISTORY))
    before = state.recurrent.clone(), state.convolution.clone()
    with pytest.raises(LookupError, match="no states of single rows"):
        layer.decode_verify(ROWS[0, :2].clone(), _context(VerifyContext, [2], state, SLOTS[:1]))
    assert torch.equal(state.recurrent, before[0])
    assert torch.equal(state.convolution, before[1])


def test_layer_outside_the_pool_says_what_is_missing() -> None:
    """A context without state names the method that asks for it."""
    layer = _layer("qwen3_5", "naive")
    _, state = _pool(layer, verify_rows=0)
    context = _context(DecodeContext, [1], state, [0]).for_layer(None, None, ())
    with pytest.raises(LookupError, match="must have an `ssm_state_spec` method"):
        layer.decode(ROWS[0, :1].clone(), context)
