# SPDX-License-Identifier: MIT OR Apache-2.0
"""One sequence: its tokens, how far they are computed, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and what has been generated after it.

    Invariants: `0 <= cursor <= len(tokens)`; the pages hold the keys and values of tokens `[0, cursor)`; a sequence
    without a slot holds neither blocks nor states, and its cursor is 0.

    Attributes:
        index: position among the requests.
        tokens: the prompt's tokens and the generated ones.
        prompt_length: tokens of the prompt.
        max_new_tokens: tokens to generate at most.
        stop_token_ids: tokens that end the sequence.
        cursor: tokens that are computed.
        slot: the claimed slot, or None while waiting.
        blocks: blocks held, in order of position.
        layer_states: state of each layer that owns its state, by layer index.
        finish_reason: "stop", "length", or None while it goes on.
    """

    index: int
    tokens: list[int]
    prompt_length: int
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    cursor: int = 0
    slot: int | None = None
    blocks: list[int] = field(default_factory=list[int])
    layer_states: dict[int, object] = field(default_factory=dict[int, object])
    finish_reason: str | None = None

    @property
    def generated(self) -> list[int]:
        """Tokens after the prompt."""
        return self.tokens[self.prompt_length :]

    @property
    def decodes(self) -> bool:
        """Whether the next step is a decode: all tokens but the newest are computed, and that one was generated.

        A prompt's last token is prefill, however few tokens are left of it.
        """
        return self.cursor == len(self.tokens) - 1 and self.cursor >= self.prompt_length

    @property
    def max_length(self) -> int:
        """Tokens the sequence can come to have."""
        return self.prompt_length + self.max_new_tokens

    def append(self, token: int) -> None:
        """Add a generated token and see whether it ends the sequence."""
        self.tokens.append(token)
        if token in self.stop_token_ids:
            self.finish_reason = "stop"
        elif len(self.tokens) >= self.max_length:
            self.finish_reason = "length"
