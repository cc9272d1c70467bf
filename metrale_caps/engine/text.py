# SPDX-License-Identifier: MIT OR Apache-2.0
"""Between text and tokens: prompts in, text out as it becomes readable."""

from __future__ import annotations

from typing import Any

from metrale_caps.errors import RequestError

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def encode_prompt(tokenizer: Any | None, prompt: str | list[int], *, chat: bool) -> list[int]:
    """Return a prompt's tokens.

    Args:
        tokenizer: a `transformers` tokenizer, or None.
        prompt: text, or token ids that are taken as they are.
        chat: put text into the tokenizer's chat template as a user's message.

    Raises:
        RequestError: the prompt is empty, or is text that cannot be turned into tokens here.
    """
    if isinstance(prompt, list):
        tokens = prompt
    elif tokenizer is None:
        raise RequestError("the prompt is text, but the model came without a tokenizer; give token ids")
    elif not prompt:
        raise RequestError("the prompt is empty; give at least one token")
    elif chat:
        if getattr(tokenizer, "chat_template", None) is None:
            raise RequestError("the tokenizer has no chat template; give the prompt raw")
        messages = [{"role": "user", "content": prompt}]
        tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    else:
        tokens = tokenizer(prompt)["input_ids"]
    if not tokens:
        raise RequestError("the prompt is empty; give at least one token")
    return list(tokens)


class TextStream:
    """Text of a growing list of tokens, given out only as whole characters."""

    def __init__(self, tokenizer: Any | None) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._given = ""

    def add(self, token: int, *, last: bool) -> str:
        """Return the text that became readable with a token."""
        if self._tokenizer is None:
            return ""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        if text.endswith(_UNFINISHED) and not last:
            return ""
        new = text[len(self._given) :]
        self._given = text
        return new
