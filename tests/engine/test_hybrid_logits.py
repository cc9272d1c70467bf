# SPDX-License-Identifier: MIT OR Apache-2.0
"""Logits of hybrid models equal those of `transformers` in fp32, for every way of getting to a position."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from metrale_caps.engine.scheduler import Chunk
from tests.engine.steps import TEXT, Steps, make_decoder
from tests.tiny_models import cached_states, full_logits

_TOLERANCE = 1e-4
BOTH = pytest.mark.parametrize("kernels", ["naive", "triton"])


def _steps(model: Any, kernels: Any, number: float = torch.nan, **options: Any) -> Steps:
    """A runner whose pages hold NaN, and whose slots of recurrent state hold `number` from an earlier sequence."""
    steps = Steps(make_decoder(model, kernels), **options)
    _overwrite(steps, number)
    return steps


def _overwrite(steps: Steps, number: float) -> None:
    for state in steps.runner.pool.layers:
        if state is not None:
            state.convolution.fill_(number)
            state.recurrent.fill_(number)


def _close(logits: torch.Tensor | None, expected: torch.Tensor) -> None:
    assert logits is not None
    torch.testing.assert_close(logits, expected, atol=_TOLERANCE, rtol=0)


@BOTH
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16, 64])
def test_chunks_and_decode_steps_equal_transformers(tiny_hybrid: Any, kernels: str, chunk: int) -> None:
    """Wherever a prompt of 41 tokens is cut, its logits and those of 8 steps after it are those of a full pass."""
    expected = full_logits(tiny_hybrid, TEXT[:49])
    steps = _steps(tiny_hybrid, kernels)
    sequence = steps.begin(1, TEXT[:41])
    _close(steps.prefill(sequence, chunk), expected[40:41])
    for at in range(41, 49):
        logits, _ = steps.decode([1], [TEXT[at]])
        _close(logits, expected[at : at + 1])


@BOTH
@pytest.mark.parametrize("length", [1, 2, 3, 4, 63, 64, 65, 129])
def test_prompts_of_any_length_equal_transformers(tiny_hybrid: Any, kernels: str, length: int) -> None:
    """Shorter than the convolution's window, and around the chunks of the delta rule."""
    expected = full_logits(tiny_hybrid, TEXT[: length + 2])
    steps = _steps(tiny_hybrid, kernels, block_size=32)
    sequence = steps.begin(0, TEXT[:length])
    _close(steps.prefill(sequence, 256), expected[length - 1 : length])
    for at in range(length, length + 2):
        logits, _ = steps.decode([0], [TEXT[at]])
        _close(logits, expected[at : at + 1])


@BOTH
@pytest.mark.parametrize("chunk", [7, 16, 64])
def test_split_prefill_and_decode_steps_equal_transformers(tiny_hybrid: Any, kernels: str, chunk: int) -> None:
    """A prompt in phases: projections chunk by chunk, the recurrence once over all of it."""
    expected = full_logits(tiny_hybrid, TEXT[:73])
    steps = _steps(tiny_hybrid, kernels, prefill_chunk=chunk)
    sequence = steps.begin(0, TEXT[:70])
    logits, route = steps.runner.prefill(Chunk(sequence, 70, split=True))
    assert "in three phases" in route.route
    sequence.cursor = 70
    _close(logits, expected[69:70])
    for at in range(70, 73):
        logits, _ = steps.decode([0], [TEXT[at]])
        _close(logits, expected[at : at + 1])


@BOTH
def test_batch_of_different_lengths_equals_transformers(tiny_hybrid: Any, kernels: str) -> None:
    """Three sequences, padded to four rows, decode together; each row has the logits of its own full pass."""
    texts = [TEXT[index : index + 40] for index in range(3)]
    lengths = [33, 1, 16]
    steps = _steps(tiny_hybrid, kernels)
    for slot, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        steps.start(slot, text[:length])
    expected = [full_logits(tiny_hybrid, text) for text in texts]
    for step in range(5):
        logits, routes = steps.decode([2, 0, 1], [texts[slot][lengths[slot] + step] for slot in (2, 0, 1)])
        assert "all sequences in one pass" in routes[0].route
        for row, slot in enumerate((2, 0, 1)):
            _close(logits[row], expected[slot][lengths[slot] + step])


@BOTH
@pytest.mark.parametrize("number", [torch.nan, 1e4])
@pytest.mark.parametrize("chunks", [(1, 4), (1, 1, 3), (5,)])
def test_first_chunk_of_one_token_starts_from_zeros(
    tiny_hybrid: Any, kernels: str, number: float, chunks: tuple[int, ...]
) -> None:
    """It is prefill, however short: nothing of the slot's last tenant shows."""
    expected = full_logits(tiny_hybrid, TEXT[:6])
    steps = _steps(tiny_hybrid, kernels, number)
    steps.start(3, TEXT[100:140])
    steps.finish(3)
    _overwrite(steps, number)
    sequence = steps.begin(3, TEXT[:5])
    logits = None
    for rows in chunks:
        logits, route = steps.runner.prefill(Chunk(sequence, sequence.cursor + rows))
        assert route.step == "prefill"
        sequence.cursor += rows
    _close(logits, expected[4:5])
    logits, _ = steps.decode([3], [TEXT[5]])
    _close(logits, expected[5:6])


@BOTH
@pytest.mark.parametrize("resumed_in", [[2], [0], [2, 5]])
def test_resumed_sequence_goes_on_as_if_never_preempted(tiny_hybrid: Any, kernels: str, resumed_in: list[int]) -> None:
    """Forty tokens and five steps, then from position 0 again, in the same slot, in another, or twice."""
    expected = full_logits(tiny_hybrid, TEXT[:55])
    steps = _steps(tiny_hybrid, kernels)
    steps.start(2, TEXT[:40])
    for at in range(40, 45):
        steps.decode([2], [TEXT[at]])
    slot = 2
    for again in resumed_in:
        steps.finish(slot)
        slot = again
        steps.start(slot, TEXT[:45])
    for at in range(45, 55):
        logits, _ = steps.decode([slot], [TEXT[at]])
        _close(logits, expected[at : at + 1])


@BOTH
def test_states_equal_those_of_transformers(tiny_hybrid: Any, kernels: str) -> None:
    """After a prompt and steps the pool holds the convolution's inputs and the recurrence's state of each layer."""
    steps = _steps(tiny_hybrid, kernels)
    steps.start(4, TEXT[:65])
    for at in range(65, 73):
        steps.decode([4], [TEXT[at]])
    found = 0
    for index, (inputs, recurrent) in cached_states(tiny_hybrid, TEXT[:73]).items():
        state = steps.runner.pool.layers[index]
        assert state is not None
        window = state.convolution.shape[1]
        torch.testing.assert_close(state.convolution[4], inputs[:, -window:].t(), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(state.recurrent[4], recurrent.mT, atol=1e-4, rtol=1e-4)
        found += 1
    assert found == 3
