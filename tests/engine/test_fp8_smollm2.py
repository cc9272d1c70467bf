# SPDX-License-Identifier: MIT OR Apache-2.0
"""With real weights: FP8 pages lose next to nothing of what the model knows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.engine.steps import BLOCKS_EACH, Steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps.engine import Engine

_PARAGRAPH = (
    "The sea covers most of the Earth. Its water is salty, and its tides follow the moon. Ships have crossed it for "
    "thousands of years, carrying people, grain and ideas from one coast to another. In the deep it is dark and cold, "
    "yet there are fish that make their own light. A library is a building where books are kept and lent. Long before "
    "printing, monks copied books by hand, which could take a year for a single volume. When the press came, books "
    "became cheap enough for merchants and students, and cities began to open reading rooms. Today most libraries also "
    "lend films and music, and offer computers to those who have none at home. Many people come simply because it is "
    "quiet and warm. Children hear stories there on Saturday mornings, and old men read newspapers by the window."
)
_PROMPTS = ["Write one sentence about the sea.", "What is the capital of France?"]


def _log_likelihood(engine: Engine, tokens: list[int], start: int = 2, **options: Any) -> tuple[float, Steps]:
    """Mean log-likelihood of the tokens after `start`, each computed by a decode step."""
    steps = Steps(engine._decoder, block_size=32, **options)  # pyright: ignore[reportPrivateUsage]
    assert len(tokens) <= 32 * BLOCKS_EACH
    steps.start(0, tokens[: start - 1])
    found: list[torch.Tensor] = []
    for token, following in itertools.pairwise(tokens[start - 1 :]):
        logits, _ = steps.decode([0], [token])
        found.append(logits[0].log_softmax(-1)[following])
    return torch.stack(found).mean().item(), steps


@pytest.fixture(scope="module")
def tokens_of(make_smollm2: Callable[..., Engine]) -> tuple[Engine, list[int]]:
    """An engine with the weights, and the paragraph's tokens."""
    engine = make_smollm2(kernels="naive")
    assert engine.tokenizer is not None
    return engine, engine.tokenizer.encode(_PARAGRAPH)


def test_perplexity_is_within_two_percent_of_the_unquantised_cache(
    make_smollm2: Callable[..., Engine], tokens_of: tuple[Engine, list[int]], record_property: Any
) -> None:
    """Over a paragraph whose calibration freezes in the middle of it."""
    engine, tokens = tokens_of
    plain, _ = _log_likelihood(engine, tokens)
    quantised, steps = _log_likelihood(make_smollm2(kernels="naive"), tokens, kv_dtype="fp8", fp8_calibration_tokens=24)
    assert steps.counters.fp8_calibrations_frozen == 30
    ratio = float(torch.tensor(plain - quantised).exp())
    record_property("perplexity", float(torch.tensor(-plain).exp()))
    record_property("perplexity_ratio", ratio)
    assert 0.98 < ratio < 1.02


def test_answers_stay_readable(
    make_smollm2: Callable[..., Engine], tokens_of: tuple[Engine, list[int]], record_property: Any
) -> None:
    """The model with an unquantised cache finds them as likely as it finds its own."""
    plain, _ = tokens_of
    engine = make_smollm2(kernels="naive", kv_dtype="fp8", fp8_calibration_tokens=24)
    theirs = plain.generate(_PROMPTS, max_new_tokens=24, chat=True)
    ours = engine.generate(_PROMPTS, max_new_tokens=24, chat=True)
    for mine, other in zip(ours, theirs, strict=True):
        record_property("text", mine.text)
        scores = [
            _log_likelihood(plain, [*output.prompt_token_ids, *output.token_ids], len(output.prompt_token_ids))[0]
            for output in (mine, other)
        ]
        assert scores[0] > scores[1] - 0.1
    assert engine.counters.graph_replays > 0
