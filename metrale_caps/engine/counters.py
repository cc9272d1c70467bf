# SPDX-License-Identifier: MIT OR Apache-2.0
"""What happened so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counts since the engine was built. They move when a step commits; preemptions when a step is planned.

    Attributes:
        decode_steps: decode passes.
        decoded_tokens: tokens that decode passes produced.
        prefill_chunks: prefill passes.
        prefill_tokens: prompt tokens computed, those of resumed sequences counted again.
        preemptions: sequences that gave their blocks back and were computed again.
    """

    decode_steps: int = 0
    decoded_tokens: int = 0
    prefill_chunks: int = 0
    prefill_tokens: int = 0
    preemptions: int = 0
