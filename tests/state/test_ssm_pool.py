# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pool of recurrent state: slots of fixed stride, zeroed when claimed, released once, and never mixed up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import ConfigurationError, SlotError
from metrale_caps.layer import SsmLayerState, SsmStateSpec
from metrale_caps.state.ssm_pool import SsmPool, ssm_specs

CPU = torch.device("cpu")
SPECS = (SsmStateSpec((3, 40), (4, 24, 16)), None, SsmStateSpec((3, 7), (1, 5, 3)))


def _pool(max_slots: int = 4, *, dtype: torch.dtype = torch.bfloat16, verify_rows: int = 0) -> SsmPool:
    return SsmPool(SPECS, max_slots, dtype=dtype, device=CPU, verify_rows=verify_rows)


def _states(pool: SsmPool) -> list[SsmLayerState]:
    return [layer for layer in pool.layers if layer is not None]


def _tensors(pool: SsmPool) -> list[torch.Tensor]:
    return [tensor for layer in _states(pool) for tensor in (layer.convolution, layer.recurrent)]


def _fill(pool: SsmPool, slot: int, number: float) -> None:
    for tensor in _tensors(pool):
        tensor[slot].fill_(number)


def _holds(pool: SsmPool, slot: int, number: float) -> bool:
    return all(bool((tensor[slot] == number).all()) for tensor in _tensors(pool))


def test_each_layer_sees_its_own_state_at_every_slot_and_the_dummy() -> None:
    """Shapes are what was asked for, with one slot more than can be claimed; types are the weights' and fp32."""
    pool = _pool()
    assert pool.layers[1] is None
    first, last = _states(pool)
    assert (first.convolution.shape, first.recurrent.shape) == ((5, 3, 40), (5, 4, 24, 16))
    assert (last.convolution.shape, last.recurrent.shape) == ((5, 3, 7), (5, 1, 5, 3))
    assert {first.convolution.dtype, last.convolution.dtype} == {torch.bfloat16}
    assert {first.recurrent.dtype, last.recurrent.dtype} == {torch.float32}
    assert first.dummy_slot == last.dummy_slot == pool.max_slots


def test_slots_have_one_stride_and_every_state_is_aligned() -> None:
    """What a kernel loads sixteen bytes at a time starts at sixteen bytes, in every slot."""
    pool = _pool()
    for tensor in _tensors(pool):
        assert tensor.stride(0) * tensor.itemsize == pool.bytes_per_slot
        start = tensor.data_ptr() - tensor.untyped_storage().data_ptr()
        assert start % 256 == pool.bytes_per_slot % 256 == 0
        assert tensor[0].is_contiguous()
    assert pool.bytes_per_slot >= sum(tensor[0].nbytes for tensor in _tensors(pool))
    assert pool.num_bytes == 5 * pool.bytes_per_slot


@settings(max_examples=30, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["claim", "release"]), st.integers(0, 3)), max_size=25))
def test_claimed_slots_start_as_zeros_and_touch_no_other(steps: list[tuple[str, int]]) -> None:
    """Through any claims and releases each slot holds what its sequence wrote, and addresses stay."""
    pool = _pool()
    addresses = [tensor.data_ptr() for tensor in _tensors(pool)]
    held: dict[int, float] = {}
    for number, (step, slot) in enumerate(steps, 1):
        if step == "claim" and slot not in held:
            _fill(pool, slot, torch.nan)
            pool.claim(slot)
            assert _holds(pool, slot, 0.0)
            _fill(pool, slot, number)
            held[slot] = number
        elif step == "release" and slot in held:
            pool.release(slot)
            del held[slot]
        else:
            with pytest.raises(SlotError, match=f"slot {slot} is"):
                (pool.claim if step == "claim" else pool.release)(slot)
        assert all(_holds(pool, one, value) for one, value in held.items())
    assert [tensor.data_ptr() for tensor in _tensors(pool)] == addresses


@pytest.mark.parametrize("slot", [-1, 4, 5])
def test_dummy_and_what_lies_outside_is_never_claimed(slot: int) -> None:
    """The error names the slots that there are."""
    with pytest.raises(SlotError, match=rf"slot {slot} cannot be claimed; slots go from 0 to 3"):
        _pool().claim(slot)


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
def test_kept_rows_bring_the_whole_state_to_where_they_left_it(rows: int) -> None:
    """After a verify step any number of its rows can be kept; with none the checkpoint comes back, in every layer."""
    pool = _pool(verify_rows=3)
    for slot in (0, 2):
        pool.claim(slot)
        _fill(pool, slot, 1.0)
        pool.checkpoint(slot, 3)
        _fill(pool, slot, 5.0)
    for layer in _states(pool):
        for kept in layer.intermediates():
            assert kept.shape[:2] == (5, 3)
            for row in range(3):
                kept[2, row].fill_(10.0 + row)
    pool.accept(2, rows)
    assert _holds(pool, 2, 9.0 + rows if rows else 1.0)
    assert _holds(pool, 0, 5.0)
    with pytest.raises(SlotError, match="slot 2 has no checkpoint"):
        pool.accept(2, rows)


def test_rows_of_an_earlier_step_or_tenant_are_never_kept() -> None:
    """What lies in the pool of them is out of reach."""
    pool = _pool(verify_rows=3)
    pool.claim(2)
    pool.checkpoint(2, 2)
    with pytest.raises(SlotError, match="3 rows of slot 2 cannot be kept; its verify step had 2"):
        pool.accept(2, 3)
    pool.release(2)
    pool.claim(2)
    with pytest.raises(SlotError, match="slot 2 has no checkpoint"):
        pool.accept(2, 0)
    with pytest.raises(SlotError, match="slot 1 is not claimed"):
        pool.accept(1, 1)


def test_pool_without_room_for_verify_rows_says_so() -> None:
    """A silent skip would leave the state past the accepted row."""
    pool = _pool()
    pool.claim(0)
    with pytest.raises(LookupError, match="no states of single rows"):
        _states(pool)[0].intermediates()
    with pytest.raises(SlotError, match="could not be taken back; the pool holds the states of 0 rows"):
        pool.checkpoint(0, 1)
    held = _pool(verify_rows=3)
    held.claim(0)
    with pytest.raises(SlotError, match="could not be taken back; the pool holds the states of 3 rows"):
        held.checkpoint(0, 4)


def test_layers_that_own_their_state_are_not_asked_for_one() -> None:
    """Only a layer that has a specification and answers True to `uses_ssm_pool` gets a part of the pool."""
    spec = SsmStateSpec((3, 40), (4, 24, 16))

    class Asking:
        def ssm_state_spec(self) -> SsmStateSpec:
            return spec

    assert ssm_specs([Asking(), object(), Asking()], own_state_layers=[2]) == (spec, None, None)


def test_state_that_is_none_is_refused_when_it_is_asked_for() -> None:
    """A tuple has sizes too, and says less."""

    class Asking:
        def ssm_state_spec(self) -> object:
            return (3, 40), (4, 24, 16)

    with pytest.raises(ConfigurationError, match=r"layer 1 \(.*Asking\): `ssm_state_spec` returned tuple"):
        ssm_specs([object(), Asking()], own_state_layers=[])


def test_stack_without_recurrent_layers_takes_no_memory() -> None:
    """Slots can be claimed and released all the same."""
    pool = SsmPool((None, None), 2, dtype=torch.float32, device=CPU)
    assert pool.num_bytes == 0
    pool.claim(1)
    pool.release(1)
