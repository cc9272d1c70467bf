# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prompts of every type, and text that streams in whole characters with linear work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metrale_caps.engine.text import TextStream, encode_prompt
from metrale_caps.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPECIAL = 256


class _ByteTokenizer:
    """One token for each byte, and a special one; counts what it decodes."""

    chat_template: str | None = None

    def __init__(self) -> None:
        self.decoded = 0

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        self.decoded += len(tokens)
        return bytes(token for token in tokens if token != _SPECIAL).decode(errors="replace")


@pytest.mark.parametrize(
    "prompt", [[1, 2, 3], (1, 2, 3), range(1, 4), [np.int64(1), np.int32(2), torch.tensor(3)]], ids=str
)
def test_sequence_of_whole_numbers_is_taken_as_token_ids(prompt: Any) -> None:
    """Whatever counts as an index counts as an id, and comes out as a plain int."""
    tokens = encode_prompt(None, prompt, chat=False)
    assert tokens == [1, 2, 3]
    assert {type(token) for token in tokens} == {int}


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (5, r"of type int \(5\).*list of lists"),
        (True, r"of type bool"),
        (2.5, "of type float; expected text or a list of token ids"),
        (None, "of type NoneType; expected text or a list of token ids"),
        (b"text", "of type bytes"),
        (bytearray(b"text"), "of type bytearray"),
        (torch.tensor([1, 2]), "of type Tensor"),
        (np.array([1, 2]), "of type ndarray"),
        ({1, 2}, "of type set"),
        ([1, 2.0], r"holds 2\.0 of type float"),
        ([1, True], "holds True of type bool"),
        (["a", "b"], "holds 'a' of type str"),
        ([[1, 2]], r"holds \[1, 2\] of type list"),
        ((), "is empty"),
        ("", "is empty"),
        ("a\udcffb", "is not valid text: character 1"),
    ],
)
@pytest.mark.parametrize("chat", [False, True])
def test_prompt_that_is_neither_text_nor_token_ids_is_refused(prompt: Any, says: str, chat: bool) -> None:
    """The error says what came and what is expected."""
    with pytest.raises(RequestError, match=says):
        encode_prompt(_ByteTokenizer(), prompt, chat=chat)


def _pieces(tokens: Sequence[int], tokenizer: _ByteTokenizer) -> list[str]:
    stream = TextStream(tokenizer)
    return [stream.add(token, last=index == len(tokens) - 1) for index, token in enumerate(tokens)]


@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1), specials=st.sets(st.integers(0, 40), max_size=8)
)
def test_characters_come_whole_and_make_up_the_text(text: str, specials: set[int]) -> None:
    """Characters of several tokens come with their last one, and special tokens leave no trace wherever they are."""
    tokens = list(text.encode())
    for place in sorted(specials):
        tokens.insert(place, _SPECIAL)
    pieces = _pieces(tokens, _ByteTokenizer())
    assert "".join(pieces) == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_emoji_comes_with_its_last_token() -> None:
    """Nothing is said about a character before it is whole."""
    assert _pieces(list("a🌊b".encode()), _ByteTokenizer()) == ["a", "", "", "", "🌊", "b"]


def test_unfinished_character_at_the_end_is_given_out() -> None:
    """The last token leaves nothing behind."""
    assert "".join(_pieces(list("a🌊".encode()[:-1]), _ByteTokenizer())) == "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("tokens", "most"),
    [([97] * 2000, 4), (list("🌊".encode()) * 500, 10), ([255] * 2000, 32), ([_SPECIAL] * 2000, 32)],
    ids=["letters", "emoji", "no text", "special"],
)
def test_work_is_linear(tokens: list[int], most: int) -> None:
    """Each token is decoded a few times, however long the text is and whether or not it can be read."""
    tokenizer = _ByteTokenizer()
    assert "".join(_pieces(tokens, tokenizer)) == tokenizer.decode(tokens, skip_special_tokens=True)
    assert tokenizer.decoded <= most * len(tokens)


class _WordTokenizer:
    """Drops the space before the first word, as SentencePiece does."""

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(" word" for token in tokens if token != _SPECIAL).removeprefix(" ")


def test_space_between_words_survives_the_window() -> None:
    """A word is decoded with the one before it, so its space is no first one."""
    stream = TextStream(_WordTokenizer())
    tokens = [1, 2, _SPECIAL, 3, _SPECIAL, _SPECIAL, 4]
    pieces = [stream.add(token, last=False) for token in tokens]
    assert list(filter(None, pieces)) == ["word", " word", " word", " word"]


def test_without_a_tokenizer_there_is_no_text() -> None:
    """Token ids alone are streamed."""
    assert TextStream(None).add(1, last=True) == ""
