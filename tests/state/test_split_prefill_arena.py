# SPDX-License-Identifier: MIT OR Apache-2.0
"""The memory of a split prefill: bounded, shared by the layers one after another, and cut into what each asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import ConfigurationError
from metrale_caps.layer import RowBuffer, SsmStateSpec
from metrale_caps.state.split_prefill_arena import SplitPrefillArena

if TYPE_CHECKING:
    from metrale_caps.layer import PrefillContext

WIDE = (RowBuffer("mixed", (40,)), RowBuffer("gates", (4, 2), float32=True))
NARROW = (RowBuffer("mixed", (3,)),)


class _Asking:
    def __init__(self, asked: tuple[RowBuffer, ...]) -> None:
        self._asked = asked

    def split_prefill_buffers(self) -> tuple[RowBuffer, ...]:
        return self._asked


class _Chunk:
    """As much of a context as is looked at."""

    def __init__(self, start: int, rows: int) -> None:
        self.chunk_start, self.max_rows = start, rows


def _chunk(start: int, rows: int) -> PrefillContext:
    return cast("PrefillContext", _Chunk(start, rows))


def _arena(*, most_tokens: int = 100, most_bytes: int | None = None) -> SplitPrefillArena:
    layers = {2: _Asking(WIDE), 5: _Asking(NARROW), 6: object()}
    device = torch.device("cpu")
    return SplitPrefillArena(
        layers, most_tokens=most_tokens, most_bytes=most_bytes, dtype=torch.bfloat16, device=device
    )


@settings(max_examples=20, derandomize=True, deadline=None)
@given(rows=st.integers(1, 100), start=st.integers(0, 50), cut=st.integers(0, 100))
def test_buffers_have_the_rows_of_the_range_and_never_overlap(rows: int, start: int, cut: int) -> None:
    """Each has its own type and shape; chunks are views of the whole."""
    buffers = _arena().buffers(2, start, rows)
    mixed, gates = buffers.whole("mixed"), buffers.whole("gates")
    assert (mixed.shape, mixed.dtype) == ((rows, 40), torch.bfloat16)
    assert (gates.shape, gates.dtype) == ((rows, 4, 2), torch.float32)
    mixed.fill_(1.0)
    gates.fill_(2.0)
    assert bool((mixed == 1.0).all())
    first = min(cut, rows)
    buffers.chunk("gates", _chunk(start + first, rows - first)).fill_(3.0)
    assert bool((gates[:first] == 2.0).all())
    assert bool((gates[first:] == 3.0).all())


def test_layers_use_the_same_memory_one_after_another() -> None:
    """The arena is as large as the largest layer's buffers, not as all of them."""
    arena = _arena()
    row_bytes = 40 * 2 + 8 * 4
    assert arena.tokens == 100
    assert 100 * row_bytes <= arena.num_bytes <= 100 * row_bytes + 2 * 256
    assert arena.buffers(5, 0, 7).whole("mixed").data_ptr() == arena.buffers(2, 0, 7).whole("mixed").data_ptr()
    assert arena.buffers(6, 0, 7).rows == {}


def test_bound_of_bytes_bounds_the_tokens() -> None:
    """So many tokens as fit are taken, and never more memory."""
    arena = _arena(most_bytes=5000)
    assert 0 < arena.tokens < 100
    assert arena.num_bytes <= 5000
    arena.buffers(2, 0, arena.tokens).whole("gates").zero_()
    with pytest.raises(ConfigurationError, match="may take 100 bytes, but one row of the largest takes 112"):
        _arena(most_bytes=100)


def test_layer_finds_nothing_there_that_it_has_not_written() -> None:
    """What was right for one prompt must not pass for another's."""
    arena = _arena()
    arena.buffers(2, 0, 9).whole("gates").fill_(1.0)
    assert arena.buffers(5, 0, 9).whole("mixed").isnan().all()
    assert arena.buffers(2, 0, 5).whole("gates").isnan().all()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            None,
            r"layer 3 \(_Asking\): `split_prefill_buffers` returned NoneType; it must return a tuple",
        ),
        (RowBuffer("a", (1,)), r"returned RowBuffer; it must return a tuple"),
        ((("a", (1,)),), r"returned a tuple with tuple; it must return a tuple of `RowBuffer`"),
        ((RowBuffer("a", (1,)), RowBuffer("a", (2,))), r"returned two buffers named 'a'; each needs a name of its own"),
    ],
)
def test_what_is_no_row_buffer_is_refused(asked: Any, message: str) -> None:
    """When the engine is built, naming the layer."""
    with pytest.raises(ConfigurationError, match=message):
        SplitPrefillArena(
            {3: _Asking(asked)}, most_tokens=5, most_bytes=None, dtype=torch.float32, device=torch.device("cpu")
        )


@pytest.mark.parametrize("shape", [7, [3], (-1, 4), (2.0,), (True,)])
def test_shape_that_is_none_is_refused_where_it_is_written(shape: Any) -> None:
    """For row buffers and for states alike."""
    with pytest.raises(ConfigurationError, match=r"the shape of the row buffer 'a' is .*; it must be a tuple of sizes"):
        RowBuffer("a", shape)
    with pytest.raises(ConfigurationError, match=r"recurrent is .*; it must be a tuple of sizes"):
        SsmStateSpec((0,), shape)


def test_buffer_that_was_not_asked_for_is_named() -> None:
    """With those that were."""
    with pytest.raises(LookupError, match=r"no row buffer 'gate'; .* asked for 'mixed', 'gates'"):
        _arena().buffers(2, 0, 3).whole("gate")


def test_stack_without_phases_takes_no_memory() -> None:
    """Then no prompt is split either."""
    arena = SplitPrefillArena({}, most_tokens=10, most_bytes=None, dtype=torch.float32, device=torch.device("cpu"))
    assert (arena.tokens, arena.num_bytes) == (0, 0)
