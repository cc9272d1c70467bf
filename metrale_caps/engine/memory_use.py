# SPDX-License-Identifier: MIT OR Apache-2.0
"""What an engine allocates beside the weights, once, when it is built."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return asdict(self)
