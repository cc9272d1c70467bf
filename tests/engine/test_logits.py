# SPDX-License-Identifier: MIT OR Apache-2.0
"""Logits equal those of `transformers` in fp32, for every way of getting to a position."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from metrale_caps.engine.counters import Counters
from metrale_caps.engine.options import EngineOptions
from metrale_caps.engine.runner import Runner
from metrale_caps.engine.scheduler import Chunk
from metrale_caps.kernels.operations import operations
from metrale_caps.models.registry import build_decoder
from metrale_caps.state.sequence import Sequence

_TOLERANCE = 1e-4
_BLOCK_SIZE = 16
_TOKENS = [(7 * index * index + 3 * index + 5) % 126 + 2 for index in range(60)]

BOTH = pytest.mark.parametrize("kernels", ["naive", "triton"])


def _make_runner(model: Any, kernels: Any, block_size: int = _BLOCK_SIZE) -> Runner:
    """A runner whose pages are full of NaN, so that a cell that is read before it is written shows."""
    runner = Runner(
        build_decoder(model, operations(kernels), consume=False),
        num_blocks=32,
        options=EngineOptions(block_size=block_size),
        counters=Counters(),
    )
    for pages in runner.pages:
        assert pages is not None
        pages.keys.fill_(torch.nan)
        pages.values.fill_(torch.nan)
    return runner


def _make_sequence(index: int, tokens: list[int], blocks: list[int]) -> Sequence:
    return Sequence(index, list(tokens), len(tokens), max_new_tokens=64, slot=index, blocks=blocks)


def _prefill(runner: Runner, sequence: Sequence, chunk: int) -> torch.Tensor:
    logits = None
    while sequence.cursor < len(sequence.tokens):
        end = min(sequence.cursor + chunk, len(sequence.tokens))
        logits, _ = runner.prefill(Chunk(sequence, end))
        sequence.cursor = end
    assert logits is not None
    return logits[0]


@BOTH
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 33])
def test_prefill_equals_transformers(tiny_model: Any, reference_logits: Any, kernels: str, length: int) -> None:
    """The last row of a whole prompt has the logits of a full pass."""
    expected = reference_logits(tiny_model, _TOKENS[:length])[-1]
    logits = _prefill(_make_runner(tiny_model, kernels), _make_sequence(0, _TOKENS[:length], [9, 4, 17]), chunk=64)
    torch.testing.assert_close(logits, expected, atol=_TOLERANCE, rtol=0)


@BOTH
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16])
def test_chunked_prefill_equals_transformers(tiny_model: Any, reference_logits: Any, kernels: str, chunk: int) -> None:
    """Where a prompt is cut changes nothing."""
    expected = reference_logits(tiny_model, _TOKENS[:37])[-1]
    logits = _prefill(_make_runner(tiny_model, kernels), _make_sequence(0, _TOKENS[:37], [9, 4, 17]), chunk)
    torch.testing.assert_close(logits, expected, atol=_TOLERANCE, rtol=0)


@BOTH
@pytest.mark.parametrize("block_size", [4, 12, 16])
def test_decode_equals_transformers_at_every_step(
    tiny_model: Any, reference_logits: Any, kernels: str, block_size: int
) -> None:
    """Twenty steps after a prompt of 14 tokens, over block borders: every step has the logits of a full pass."""
    runner = _make_runner(tiny_model, kernels, block_size)
    expected = reference_logits(tiny_model, _TOKENS[:34])
    sequence = _make_sequence(0, _TOKENS[:14], list(range(31, 31 - -(-34 // block_size), -1)))
    torch.testing.assert_close(_prefill(runner, sequence, 64), expected[13], atol=_TOLERANCE, rtol=0)
    for step in range(14, 34):
        sequence.tokens.append(_TOKENS[step])
        logits, _ = runner.decode([sequence])
        sequence.cursor += 1
        torch.testing.assert_close(logits[0], expected[step], atol=_TOLERANCE, rtol=0)


@BOTH
def test_batch_of_different_lengths_equals_each_alone(tiny_model: Any, reference_logits: Any, kernels: str) -> None:
    """Five sequences of 1 to 33 tokens decode together; each row has the logits of its own full pass."""
    runner = _make_runner(tiny_model, kernels)
    lengths = [33, 1, 16, 15, 17]
    texts = [_TOKENS[index : index + length + 6] for index, length in enumerate(lengths)]
    sequences = [
        _make_sequence(index, text[:length], [6 * index + at for at in range(3)])
        for index, (text, length) in enumerate(zip(texts, lengths, strict=True))
    ]
    for sequence in sequences:
        _prefill(runner, sequence, 64)
    for step in range(6):
        for sequence, text in zip(sequences, texts, strict=True):
            sequence.tokens.append(text[len(sequence.tokens)])
        logits, _ = runner.decode(sequences)
        for row, (sequence, text) in enumerate(zip(sequences, texts, strict=True)):
            expected = reference_logits(tiny_model, text[: lengths[row] + step + 1])[-1]
            torch.testing.assert_close(logits[row], expected, atol=_TOLERANCE, rtol=0)
            sequence.cursor += 1
