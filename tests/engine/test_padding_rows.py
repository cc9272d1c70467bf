# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rows that pad a batch belong to nobody: they are zeros, write nothing that is read, and change no other row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from metrale_caps.engine import decoding
from tests.engine.steps import BLOCKS_EACH, TEXT, Steps, make_decoder, with_layer
from tests.engine.wrapped import Wrapped

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps import DecodeContext

_GRAPHS = pytest.mark.parametrize("decode_graphs", [True, False], ids=["replayed", "eager"])
_KERNELS = pytest.mark.parametrize("kernels", ["naive", "triton"])


class PoisonsPadding(Wrapped):
    """Makes NaN of what has no length, as a sum over no key divided by its weight does."""

    def decode_multi_seq(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        hidden = self.inner.decode_multi_seq(hidden, context)
        lengths = context.lengths[:, None].float()
        return hidden * (lengths / lengths)


class ScalesByBatch(Wrapped):
    """Rounds to a grid that the largest number of the whole batch sets, and keeps that number."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.largest = torch.zeros(())

    def decode_multi_seq(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        self.largest.copy_(hidden.abs().max())
        return self.inner.decode_multi_seq((hidden / self.largest * 448).round() * self.largest / 448, context)


def _three_of_five(decoder: Any, **options: Any) -> Steps:
    """Every slot live; three of them are to decode."""
    steps = Steps(decoder, **options)
    for slot in range(8):
        steps.start(slot, TEXT[3 * slot : 3 * slot + 5 + slot])
    return steps


@_GRAPHS
@_KERNELS
def test_padding_poisons_no_reduction_over_the_batch(
    tiny_llama: Any, kernels: str, decode_graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of length 0 that come out of one layer as NaN are zeros for the next, which takes a maximum over all."""

    def run() -> tuple[Tensor, float]:
        decoder, _ = with_layer(make_decoder(tiny_llama, kernels), 0, PoisonsPadding)
        decoder, layer = with_layer(decoder, 1, ScalesByBatch)
        steps = _three_of_five(decoder, decode_graphs=decode_graphs)
        steps.decode([6, 0, 7], TEXT[:3])
        logits, _ = steps.decode([6, 0, 7], TEXT[3:6])
        return logits, layer.largest.item()

    padded, largest = run()
    monkeypatch.setattr(decoding, "padded_rows", int)
    alone, expected = run()
    assert padded.isfinite().all()
    assert largest == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(padded, alone, atol=1e-4, rtol=0)


@_GRAPHS
@_KERNELS
@pytest.mark.parametrize("slots", [[6, 1, 3], [1, 2, 3, 4, 5], [0, 7, 3]])
def test_padding_touches_no_block_of_a_live_sequence(
    tiny_llama: Any, kernels: str, decode_graphs: bool, slots: list[int]
) -> None:
    """Of those that sit out a padded step, the first and the last slot among them, no byte changes."""
    steps = _three_of_five(make_decoder(tiny_llama, kernels), decode_graphs=decode_graphs)
    parked = [slot for slot in range(8) if slot not in slots]
    blocks = [BLOCKS_EACH * slot + block for slot in parked for block in range(BLOCKS_EACH)]
    before = [tensor[blocks] for tensor in steps.pages()]
    for step in range(3):
        steps.decode(slots, TEXT[step : step + len(slots)])
    for ours, theirs in zip(before, (tensor[blocks] for tensor in steps.pages()), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0, equal_nan=True)


class SeesRows(Wrapped):
    """Keeps what it was handed, and leaves rubbish in all rows of padding."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.seen: list[tuple[Tensor, DecodeContext]] = []

    def decode_multi_seq(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:  # pyright: ignore[reportImplicitOverride]
        self.seen.append((hidden.clone(), context))
        out = self.inner.decode_multi_seq(hidden, context)
        return torch.cat([out[:-1], torch.full_like(out[-1:], torch.inf)]) if context.padding_rows else out


def test_layer_is_handed_zeros_and_dummies_in_rows_of_padding(tiny_llama: Any) -> None:
    """Whatever the layer before it left there."""
    decoder, first = with_layer(make_decoder(tiny_llama), 0, SeesRows)
    decoder, second = with_layer(decoder, 1, SeesRows)
    steps = _three_of_five(decoder, decode_graphs=False)
    steps.decode([6, 0, 7], TEXT[:3])
    for layer in (first, second):
        ((hidden, context),) = layer.seen
        assert hidden.shape[0] == 4
        assert context.padding_rows == 1
        assert hidden[3].eq(0).all()
        assert hidden[:3].isfinite().all()
        assert context.cache_slots[3] == -1
        assert context.lengths.tolist()[3] == 0
        assert context.sequence_slots.tolist() == [6, 0, 7, 8]
        assert context.block_tables[3, 0] == 8 * BLOCKS_EACH


@_GRAPHS
@_KERNELS
def test_rows_that_moved_read_their_own_slots(tiny_llama: Any, kernels: str, decode_graphs: bool) -> None:
    """[A, B, C], then [C, B] without A, padded or not: each is advanced once, and A's blocks stay as they were."""
    steps = _three_of_five(make_decoder(tiny_llama, kernels), decode_graphs=decode_graphs)
    alone = _three_of_five(make_decoder(tiny_llama, kernels), decode_graphs=False)
    for slots in ([0, 1, 2], [2, 1], [5, 4, 3, 2, 1], [1, 2, 5]):
        before = steps.pages()
        logits, _ = steps.decode(slots, TEXT[: len(slots)])
        expected = torch.cat([alone.decode([slot], [token])[0] for slot, token in zip(slots, TEXT, strict=False)])
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        still = [block for slot in range(8) if slot not in slots for block in range(6 * slot, 6 * slot + 6)]
        for was, now in zip(before, steps.pages(), strict=True):
            torch.testing.assert_close(was[still], now[still], atol=0, rtol=0, equal_nan=True)
