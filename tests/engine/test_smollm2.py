# SPDX-License-Identifier: MIT OR Apache-2.0
"""The default model answers as `transformers` does from the same GGUF file, by every route."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from metrale_caps.engine import Engine

_NEW = 24
_TIE = 1e-3
_TEXT = (
    "The lighthouse keeper climbed the narrow stairs every evening, counting each step aloud so that the wind would "
    "not feel alone. At the top he lit the lamp, wiped the glass, and wrote one line in the log: the ships, the "
    "weather, and what he had dreamt the night before about the old harbour town."
)
BOTH = pytest.mark.parametrize("kernels", ["naive", "triton"])


@pytest.fixture(scope="module")
def prompts(make_smollm2: Any) -> list[list[int]]:
    """Five prompts of 1, 15, 16, 17 and about 60 tokens."""
    tokens: list[int] = make_smollm2(kernels="naive").tokenizer(_TEXT)["input_ids"]
    assert 55 <= len(tokens) <= 65
    return [tokens[:1], tokens[:15], tokens[:16], tokens[:17], tokens]


def _assert_greedy(reference: Any, prompt: list[int], generated: tuple[int, ...], record: Any) -> None:
    """Every token is the reference's most likely one; where the best two lie within 1e-3, either is right."""
    assert len(generated) == _NEW
    with torch.inference_mode():
        logits = reference(torch.tensor([[*prompt, *generated[:-1]]]), use_cache=False).logits[0, len(prompt) - 1 :]
    ties = 0
    for step, token in enumerate(generated):
        (best, second), (first_id, second_id) = (part.tolist() for part in logits[step].topk(2))
        if token != first_id:
            assert token == second_id, f"step {step}: {token} rather than {first_id}"
            assert best - second <= _TIE, f"step {step}: {token} rather than {first_id}, by {best - second}"
            ties += 1
    record("ties_used", ties)


def _assert_all(reference: Any, prompts: list[list[int]], engine: Engine, record: Any) -> None:
    outputs = engine.generate(prompts, max_new_tokens=_NEW, ignore_eos=True)
    for prompt, output in zip(prompts, outputs, strict=True):
        _assert_greedy(reference, prompt, output.token_ids, record)


@BOTH
def test_each_prompt_alone(
    make_smollm2: Any, smollm2_reference: Any, prompts: list[list[int]], kernels: str, record_property: Any
) -> None:
    """The 24 greedy tokens of each prompt are those of `transformers`."""
    engine = make_smollm2(kernels=kernels)
    for prompt in prompts:
        _assert_all(smollm2_reference, [prompt], engine, record_property)


@BOTH
def test_all_prompts_as_one_batch(
    make_smollm2: Any, smollm2_reference: Any, prompts: list[list[int]], kernels: str, record_property: Any
) -> None:
    """So are they when all five run together."""
    _assert_all(smollm2_reference, prompts, make_smollm2(kernels=kernels), record_property)


@BOTH
def test_prefill_in_chunks_of_sixteen(
    make_smollm2: Any, smollm2_reference: Any, prompts: list[list[int]], kernels: str, record_property: Any
) -> None:
    """So are they when prompts are read in chunks, beside rows that decode."""
    engine = make_smollm2(kernels=kernels, prefill_chunk=16)
    _assert_all(smollm2_reference, prompts, engine, record_property)
    assert engine.counters.prefill_chunks > len(prompts)


@BOTH
def test_cache_so_small_that_sequences_give_way(
    make_smollm2: Any, smollm2_reference: Any, prompts: list[list[int]], kernels: str, record_property: Any
) -> None:
    """So are they when sequences wait, give way and resume."""
    engine = make_smollm2(kernels=kernels, num_blocks=8)
    _assert_all(smollm2_reference, prompts, engine, record_property)
    assert engine.counters.preemptions > 0


def test_chat_template_and_text(make_smollm2: Any) -> None:
    """A question through the chat template gets a readable answer that ends by itself."""
    (output,) = make_smollm2(kernels="naive").generate("What is the capital of France?", max_new_tokens=24, chat=True)
    assert output.text == "The capital of France is Paris."
    assert output.finish_reason == "stop"


def test_streamed_text_is_the_whole_text(make_smollm2: Any) -> None:
    """The pieces of a stream, put together, are the text."""
    engine = make_smollm2(kernels="naive")
    prompt = "Write a line with an emoji and the word naïve:"
    (output,) = engine.generate(prompt, max_new_tokens=_NEW)
    assert "".join(event.text for event in engine.stream(prompt, max_new_tokens=_NEW)) == output.text
