# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a user of the engine gets: the same tokens for every schedule, clear refusals, nothing lost on errors."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.engine import Engine, EngineOptions, Sampling
from metrale_caps.errors import (
    CapacityError,
    ConfigurationError,
    PromptTooLongError,
    RequestError,
    UnsupportedArchitectureError,
)
from metrale_caps.kernels.operations import operations
from metrale_caps.models.registry import build_decoder

_PROMPTS = [[5, 17, 99, 42, 8, 61, 120], [33], [74, 19, 50, 7] * 5, [11] * 16, [90, 3, 45] * 11]
_NEW = 9


@pytest.fixture(scope="module")
def alone(tiny_llama: Any) -> list[tuple[int, ...]]:
    """The tokens of each prompt when it runs alone."""
    engine = Engine.from_pretrained(tiny_llama, kernels="naive")
    return [engine.generate([prompt], max_new_tokens=_NEW, ignore_eos=True)[0].token_ids for prompt in _PROMPTS]


def _make_engine(model: Any, kernels: Any = "naive", **options: Any) -> Engine:
    return Engine.from_pretrained(model, kernels=kernels, **options)


def _assert_nothing_is_held(engine: Engine) -> None:
    assert engine.free_blocks == engine.num_blocks
    assert engine.free_slots == engine.options.max_slots
    assert not engine.busy


def test_greedy_tokens_equal_transformers_generate(tiny_model: Any) -> None:
    """Thirty-two greedy tokens are those of `generate`."""
    import torch

    prompt = [5, 17, 99, 42, 8, 61, 120, 33, 74, 19, 50, 7]
    expected = tiny_model.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False)[
        0, len(prompt) :
    ].tolist()
    output = _make_engine(tiny_model).generate([prompt], max_new_tokens=32)[0]
    assert list(output.token_ids) == expected
    assert output.prompt_token_ids == tuple(prompt)


@settings(max_examples=25)
@given(
    max_slots=st.integers(1, 5),
    prefill_chunk=st.integers(1, 40),
    block_size=st.sampled_from([1, 3, 16]),
    spare_blocks=st.one_of(st.just(0), st.integers(0, 30)),
    order=st.permutations(range(len(_PROMPTS))),
)
def test_no_schedule_changes_the_tokens(
    tiny_llama: Any,
    alone: list[tuple[int, ...]],
    max_slots: int,
    prefill_chunk: int,
    block_size: int,
    spare_blocks: int,
    order: list[int],
) -> None:
    """Any number of slots, chunking, block size, pressure and order of prompts gives each its own tokens."""
    longest = max(len(prompt) for prompt in _PROMPTS) + _NEW - 1
    num_blocks = -(-longest // block_size) + spare_blocks
    engine = _make_engine(
        tiny_llama, max_slots=max_slots, prefill_chunk=prefill_chunk, block_size=block_size, num_blocks=num_blocks
    )
    outputs = engine.generate([_PROMPTS[index] for index in order], max_new_tokens=_NEW, ignore_eos=True)
    assert [output.token_ids for output in outputs] == [alone[index] for index in order]
    _assert_nothing_is_held(engine)


@pytest.mark.parametrize("kernels", ["naive", "triton"])
def test_sequences_give_way_and_resume(tiny_llama: Any, alone: list[tuple[int, ...]], kernels: str) -> None:
    """A pool that holds little more than one sequence preempts others, which then go on as if nothing had been."""
    engine = _make_engine(tiny_llama, kernels, num_blocks=12, block_size=4, max_slots=5)
    outputs = engine.generate(_PROMPTS, max_new_tokens=_NEW, ignore_eos=True)
    assert [output.token_ids for output in outputs] == alone
    assert engine.counters.preemptions > 0
    _assert_nothing_is_held(engine)


def test_prompt_that_does_not_fit_waits_rather_than_being_computed_again(tiny_llama: Any) -> None:
    """Admission looks at the whole prompt, so that pressure recomputes little."""
    engine = _make_engine(tiny_llama, num_blocks=16, prefill_chunk=16)
    prompts = [[5] * 20, [7] * 230]
    engine.generate(prompts, max_new_tokens=200, ignore_eos=True)
    assert engine.counters.prefill_tokens == sum(map(len, prompts))
    assert engine.counters.preemptions == 0


def test_stop_token_ends_a_sequence_and_is_its_last(tiny_llama: Any, alone: list[tuple[int, ...]]) -> None:
    """A stop token ends its own sequence with reason "stop"; the others go on."""
    import dataclasses

    decoder = build_decoder(tiny_llama, operations("naive"), consume=False)
    stop = alone[0][3]
    engine = Engine(dataclasses.replace(decoder, stop_token_ids=frozenset({stop})))
    outputs = engine.generate(_PROMPTS, max_new_tokens=_NEW)
    for output, tokens in zip(outputs, alone, strict=True):
        end = tokens.index(stop) + 1 if stop in tokens else None
        assert output.token_ids == tokens[:end]
        assert output.finish_reason == ("stop" if end else "length")
    ignoring = engine.generate(_PROMPTS, max_new_tokens=_NEW, ignore_eos=True)
    assert [output.token_ids for output in ignoring] == alone


def test_stream_yields_what_generate_returns(tiny_llama: Any, alone: list[tuple[int, ...]]) -> None:
    """Tokens come one by one, each request's in its order, the last with the reason."""
    engine = _make_engine(tiny_llama)
    tokens: dict[int, list[int]] = {}
    reasons: dict[int, str] = {}
    for event in engine.stream(_PROMPTS, max_new_tokens=_NEW, ignore_eos=True):
        assert event.request not in reasons
        tokens.setdefault(event.request, []).append(event.token_id)
        if event.finish_reason is not None:
            reasons[event.request] = event.finish_reason
    assert [tuple(tokens[index]) for index in range(len(_PROMPTS))] == alone
    assert set(reasons.values()) == {"length"}


def test_closing_a_stream_frees_what_it_holds(tiny_llama: Any, alone: list[tuple[int, ...]]) -> None:
    """A reader who leaves takes no blocks along; while it reads, another call is refused."""
    engine = _make_engine(tiny_llama)
    stream: Any = engine.stream(_PROMPTS, max_new_tokens=_NEW, ignore_eos=True)
    next(stream)
    with pytest.raises(RequestError, match="still generating"):
        engine.generate([[5]])
    stream.close()
    _assert_nothing_is_held(engine)
    assert engine.generate(_PROMPTS[:1], max_new_tokens=_NEW, ignore_eos=True)[0].token_ids == alone[0]


def test_second_stream_waits_its_turn(tiny_llama: Any) -> None:
    """A stream that was made while none ran is refused when it starts beside a running one."""
    engine = _make_engine(tiny_llama)
    first: Any = engine.stream([[5, 6]], max_new_tokens=3, ignore_eos=True)
    second: Any = engine.stream([[7]], max_new_tokens=3, ignore_eos=True)
    next(first)
    with pytest.raises(RequestError, match="still generating"):
        next(second)
    assert len(list(first)) == 2
    _assert_nothing_is_held(engine)


def test_routes_count_the_steps_of_each_request(tiny_llama: Any) -> None:
    """Each output says which routes its steps took, and how often."""
    engine = _make_engine(tiny_llama, prefill_chunk=8, max_slots=1)
    (output,) = engine.generate([[5] * 20], max_new_tokens=4, ignore_eos=True)
    assert {(use.taken.step, use.steps) for use in output.routes} == {
        ("prefill", 3),
        ("decode", 1),  # the capture
        ("decode", 2),  # its replays
    }
    assert engine.counters.prefill_chunks == 3
    assert engine.counters.prefill_tokens == 20
    assert engine.counters.decode_steps == 3


@pytest.mark.parametrize(
    ("prompt", "new", "error", "says"),
    [
        ([], 4, RequestError, "empty"),
        ([5], 0, RequestError, "max_new_tokens is 0"),
        ([5], -3, RequestError, "max_new_tokens is -3"),
        ([5], True, RequestError, "max_new_tokens is True"),
        ([5], 2.5, RequestError, "max_new_tokens is 2.5"),
        ([128], 4, RequestError, "token id 128"),
        ([-1], 4, RequestError, "token id -1"),
        ([5] * 256, 4, PromptTooLongError, "256 tokens"),
        ("text", 4, RequestError, "without a tokenizer"),
    ],
)
def test_request_that_cannot_be_accepted_starts_nothing(
    tiny_llama: Any, prompt: Any, new: int, error: type[Exception], says: str
) -> None:
    """A bad request among good ones is refused before anything runs."""
    engine = _make_engine(tiny_llama)
    with pytest.raises(error, match=says):
        engine.generate([[5, 6], prompt], max_new_tokens=new)
    _assert_nothing_is_held(engine)
    assert engine.counters.prefill_chunks == 0


@pytest.mark.parametrize("prompts", [None, 5])
def test_prompts_that_are_no_list_are_refused(tiny_llama: Any, prompts: Any) -> None:
    """What came is named."""
    with pytest.raises(RequestError, match=type(prompts).__name__):
        _make_engine(tiny_llama).generate(prompts)


def test_request_larger_than_the_pool_is_refused(tiny_llama: Any) -> None:
    """A request that could never finish is refused with what it needs and what there is; one that just fits is not."""
    engine = _make_engine(tiny_llama, num_blocks=2)
    assert len(engine.generate([[5] * 20], max_new_tokens=13, ignore_eos=True)[0].token_ids) == 13
    with pytest.raises(CapacityError, match="may need 3 cache blocks") as caught:
        engine.generate([[5] * 20], max_new_tokens=20)
    assert (caught.value.needed_blocks, caught.value.pool_blocks) == (3, 2)


def test_generation_ends_where_the_context_ends(tiny_llama: Any) -> None:
    """A prompt near the context's end gets the tokens that fit, with reason "length"."""
    (output,) = _make_engine(tiny_llama).generate([[5] * 250], max_new_tokens=50, ignore_eos=True)
    assert len(output.token_ids) == 6
    assert output.finish_reason == "length"


@pytest.mark.parametrize("option", ["max_slots", "block_size", "num_blocks", "prefill_chunk"])
def test_size_below_one_is_refused(option: str) -> None:
    """Every size must be at least one."""
    with pytest.raises(ConfigurationError, match=option):
        EngineOptions(**cast("dict[str, Any]", {option: 0}))


def test_unknown_option_and_choice_are_refused(tiny_llama: Any) -> None:
    """A misspelt option is no silent default."""
    with pytest.raises(ConfigurationError, match="no engine option 'max_slot'"):
        _make_engine(tiny_llama, max_slot=3)
    with pytest.raises(ConfigurationError, match="'cuda-graphs'"):
        _make_engine(tiny_llama, kernels="cuda-graphs")
    with pytest.raises(ConfigurationError, match="numerics"):
        _make_engine(tiny_llama, numerics="exact")
    with pytest.raises(ConfigurationError, match="model object"):
        _make_engine(tiny_llama, device="cpu")


def test_architecture_without_layers_is_refused() -> None:
    """A model of another architecture is refused by name, with the supported ones."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model: Any = GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, bos_token_id=1, eos_token_id=2)
    )
    with pytest.raises(
        UnsupportedArchitectureError, match="'gpt2' has no layers here; supported are: kimi_linear, llama"
    ):
        _make_engine(model)


def test_object_that_is_no_causal_model_is_refused(tiny_llama: Any) -> None:
    """What came is named, and what is needed."""
    with pytest.raises(ConfigurationError, match="type int came"):
        _make_engine(5)
    with pytest.raises(ConfigurationError, match="LlamaModel has no language-model head"):
        _make_engine(tiny_llama.model)


def test_model_object_can_still_be_used(tiny_llama: Any, reference_logits: Any) -> None:
    """Building an engine over a model leaves the model as it was."""
    before = reference_logits(tiny_llama, _PROMPTS[0])
    _make_engine(tiny_llama).generate([_PROMPTS[0]], max_new_tokens=2)
    assert bool((reference_logits(tiny_llama, _PROMPTS[0]) == before).all())


def test_sampling_does_not_depend_on_the_batch(tiny_llama: Any) -> None:
    """With a seed, a request draws the same tokens alone and beside others; another seed draws others."""
    sampling = Sampling(temperature=1.0, top_k=20, top_p=0.95)

    def draw(seed: int, prompts: list[list[int]]) -> list[tuple[int, ...]]:
        engine = _make_engine(tiny_llama, seed=seed)
        outputs = engine.generate(prompts, max_new_tokens=_NEW, ignore_eos=True, sampling=sampling)
        return [output.token_ids for output in outputs]

    together = draw(1, _PROMPTS)
    assert draw(1, _PROMPTS[:1]) == together[:1]
    assert draw(2, _PROMPTS) != together


@pytest.mark.parametrize("values", [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": 0}, {"top_p": 0.0}])
def test_sampling_without_a_meaning_is_refused(values: dict[str, Any]) -> None:
    """Sampling values have ranges."""
    with pytest.raises(ConfigurationError):
        Sampling(**values)
