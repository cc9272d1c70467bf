# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a request gets back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metrale_caps.routing.taken import RouteTaken


@dataclass(frozen=True, slots=True)
class RouteUse:
    """A route and how many steps of a request took it."""

    taken: RouteTaken
    steps: int

    def as_json(self) -> dict[str, Any]:
        """Return the use as plain data."""
        return {**self.taken.as_json(), "steps": self.steps}


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """The answer to one prompt.

    Attributes:
        prompt_token_ids: the prompt.
        token_ids: the generated tokens, a stop token included.
        text: their text without special tokens; empty without a tokenizer.
        finish_reason: "stop" for a stop token, "length" for the limit.
        routes: the routes its steps took, in the order of their first use.
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    routes: tuple[RouteUse, ...]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token, as it comes.

    Attributes:
        request: index of the prompt.
        token_id: the token.
        text: the text that became readable with it; may be empty in the middle of a character.
        finish_reason: why the request ends with this token, or None.
    """

    request: int
    token_id: int
    text: str
    finish_reason: str | None
