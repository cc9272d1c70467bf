# SPDX-License-Identifier: MIT OR Apache-2.0
"""From logits to the next token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from metrale_caps.errors import ConfigurationError
from metrale_caps.kernels.host import host_integers

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is picked. The default is greedy.

    Attributes:
        temperature: 0 for greedy, else the divisor of the logits.
        top_k: only the k most likely tokens, or None for all.
        top_p: only the most likely tokens that together reach this probability.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values without a meaning.

        Raises:
            ConfigurationError: naming the value and its range.
        """
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigurationError(f"temperature is {self.temperature}; it must be finite and at least 0")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigurationError(f"top_k is {self.top_k}; it must be at least 1")
        if not 0 < self.top_p <= 1:
            raise ConfigurationError(f"top_p is {self.top_p}; it must be above 0 and at most 1")


GREEDY = Sampling()


class Sampler:
    """Picks tokens; every request has a random stream of its own, so that batching does not change its tokens."""

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self._sampling = sampling
        self._seed = seed
        self._streams: dict[int, torch.Generator] = {}

    def pick(self, logits: Tensor, requests: list[int]) -> list[int]:
        """Return a token for each row of logits `[rows, vocabulary]`; `requests` names each row's request."""
        if self._sampling.temperature == 0:
            return host_integers(logits.argmax(-1))
        return [self._draw(row, self._stream(request)) for row, request in zip(logits, requests, strict=True)]

    def _draw(self, row: Tensor, stream: torch.Generator) -> int:
        probabilities = torch.softmax(row.float().cpu() / self._sampling.temperature, -1)
        ordered, tokens = probabilities.sort(descending=True)
        if self._sampling.top_k is not None:
            ordered[self._sampling.top_k :] = 0
        before = ordered.cumsum(-1) - ordered
        ordered[before >= self._sampling.top_p] = 0
        return int(tokens[torch.multinomial(ordered, 1, generator=stream)])

    def _stream(self, request: int) -> torch.Generator:
        if request not in self._streams:
            self._streams[request] = torch.Generator().manual_seed(hash((self._seed, request)))
        return self._streams[request]
