# SPDX-License-Identifier: MIT OR Apache-2.0
"""What an engine allocates beside the weights, once, when it is built."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from typing_extensions import override


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory of an engine, in bytes.

    Attributes:
        page_bytes: pages of keys and values.
        recurrent_state_bytes: the pool of recurrent state.
        split_prefill_bytes: buffers that recurrent layers keep a long prompt's rows in between phases.
        split_prefill_tokens: tokens of a prompt that these buffers hold; a longer one is computed chunk by chunk.
    """

    page_bytes: int
    recurrent_state_bytes: int
    split_prefill_bytes: int
    split_prefill_tokens: int

    @override
    def __str__(self) -> str:
        parts = [f"{_in_words(self.page_bytes)} of pages"]
        if self.recurrent_state_bytes:
            parts.append(f"{_in_words(self.recurrent_state_bytes)} of recurrent state")
        if self.split_prefill_bytes:
            parts.append(
                f"{_in_words(self.split_prefill_bytes)} for split prompts of up to {self.split_prefill_tokens} tokens"
            )
        return f"memory beside the weights: {', '.join(parts)}"

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return asdict(self)


def _in_words(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"
