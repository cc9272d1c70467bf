# SPDX-License-Identifier: MIT OR Apache-2.0
"""Between text and tokens: prompts in, text out as it becomes readable."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

from metrale_caps.errors import RequestError

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
# tokens that wait for a readable character: it has four bytes at most, the rest is room for special tokens between them
_MOST_PENDING = 16


def encode_prompt(tokenizer: Any | None, prompt: object, *, chat: bool) -> list[int]:
    """Return a prompt's tokens.

    Args:
        tokenizer: a `transformers` tokenizer, or None.
        prompt: text, or a sequence of token ids that are taken as they are.
        chat: put text into the tokenizer's chat template as a user's message.

    Raises:
        RequestError: the prompt is neither, is empty, or is text that cannot be turned into tokens here.
    """
    tokens = _encode_text(tokenizer, prompt, chat=chat) if isinstance(prompt, str) else _token_ids(prompt)
    if not tokens:
        raise RequestError("the prompt is empty; give at least one token")
    return tokens


def _encode_text(tokenizer: Any | None, text: str, *, chat: bool) -> list[int]:
    if tokenizer is None:
        raise RequestError("the prompt is text, but the model came without a tokenizer; give token ids")
    if not text:
        raise RequestError("the prompt is empty; give at least one token")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the prompt is not valid text: character {error.start} is {text[error.start]!r}, half of a surrogate pair "
            "or a byte that is not UTF-8"
        ) from error
    if not chat:
        return list(tokenizer(text)["input_ids"])
    if getattr(tokenizer, "chat_template", None) is None:
        raise RequestError("the tokenizer has no chat template; give the prompt raw")
    messages = [{"role": "user", "content": text}]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])


def _token_ids(prompt: object) -> list[int]:
    kind = type(prompt).__name__
    if isinstance(prompt, int):
        raise RequestError(
            f"a prompt is of type {kind} ({prompt}); expected text or a list of token ids, so prompts of token ids are "
            "given as a list of lists"
        )
    if isinstance(prompt, (bytes, bytearray, memoryview)) or not isinstance(prompt, Sequence):
        raise RequestError(f"a prompt is of type {kind}; expected text or a list of token ids")
    return [_token_id(item) for item in cast("Sequence[object]", prompt)]


def _token_id(item: object) -> int:
    try:
        if not isinstance(item, bool):
            return operator.index(cast("Any", item))
    except TypeError:
        pass
    raise RequestError(
        f"a prompt holds {item!r} of type {type(item).__name__}; expected text or a list of token ids, which are whole "
        "numbers"
    )


class TextStream:
    """Text of a growing list of tokens, given out only as whole characters.

    A token's text depends on the ones before it (a space that is dropped at the start, bytes that make up one
    character), but not on all of them. So a window is decoded: the tokens that were given out last, then those that
    were not yet. What its text has beyond the text of the former is new, and the work stays linear.
    """

    def __init__(self, tokenizer: Any | None) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._read = 0  # tokens at the window's start that were given out
        self._read_text = ""

    def add(self, token: int, *, last: bool) -> str:
        """Return the text that became readable with a token."""
        if self._tokenizer is None:
            return ""
        self._window.append(token)
        text = self._decode()
        unreadable = text.endswith(_UNFINISHED) or len(text) <= len(self._read_text)
        if unreadable and not last and len(self._window) - self._read < _MOST_PENDING:
            return ""
        new = text[len(self._read_text) :]
        self._window = self._window[self._read :]
        self._read = len(self._window)
        self._read_text = self._decode()
        return new

    def _decode(self) -> str:
        return cast("Any", self._tokenizer).decode(self._window, skip_special_tokens=True)
