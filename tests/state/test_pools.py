# SPDX-License-Identifier: MIT OR Apache-2.0
"""Blocks and slots: what is held is held once, what is refused changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrale_caps.errors import SlotError
from metrale_caps.state.blocks import BlockPool
from metrale_caps.state.slots import SlotPool


@given(st.lists(st.tuples(st.sampled_from(["acquire", "share", "release"]), st.integers(0, 5)), max_size=40))
def test_references_are_the_holders(steps: list[tuple[str, int]]) -> None:
    """Through any sequence of steps a block's count is its holders, and free blocks are those without one."""
    pool = BlockPool(8, 16)
    holders: list[list[int]] = []
    for step, number in steps:
        if step == "acquire":
            before = pool.free
            blocks = pool.acquire(number)
            assert (blocks is None) == (number > before)
            if blocks is None:
                assert pool.free == before
            else:
                holders.append(blocks)
        elif holders:
            blocks = holders[number % len(holders)]
            if step == "share":
                pool.share(blocks)
                holders.append(list(blocks))
            else:
                holders.remove(blocks)
                pool.release(blocks)
        held = [block for blocks in holders for block in blocks]
        assert [pool.references(block) for block in range(8)] == [held.count(block) for block in range(8)]
        assert pool.free == 8 - len(set(held))


def test_handles_are_plain_and_stay_as_they_were() -> None:
    """A list of blocks given out does not change when others are freed."""
    pool = BlockPool(4, 16)
    first, second = pool.acquire(2), pool.acquire(2)
    assert first == [0, 1]
    assert second is not None
    assert second == [2, 3]
    pool.release(second)
    assert first == [0, 1]


def test_free_block_is_neither_released_nor_shared() -> None:
    """Mistakes of the holder are errors."""
    pool = BlockPool(2, 16)
    with pytest.raises(ValueError, match="block 0 is already free"):
        pool.release([0])
    with pytest.raises(ValueError, match="block 1 is free"):
        pool.share([1])


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_tokens_need_whole_blocks(tokens: int, blocks: int) -> None:
    """A block more exactly where a border is crossed."""
    assert BlockPool(8, 16).blocks_for(tokens) == blocks


def test_slots_are_claimed_once_and_the_dummy_never() -> None:
    """The lowest free slot is given out; a double release is an error; the dummy is past the last."""
    pool = SlotPool(2)
    assert [pool.claim(), pool.claim(), pool.claim()] == [0, 1, None]
    assert pool.dummy == 2
    pool.release(0)
    with pytest.raises(SlotError, match="slot 0 is not claimed"):
        pool.release(0)
    assert pool.claim() == 0
