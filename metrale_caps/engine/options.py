# SPDX-License-Identifier: MIT OR Apache-2.0
"""Options of an engine, checked together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from metrale_caps.errors import ConfigurationError
from metrale_caps.state.paged_kv import bytes_per_token, kv_specs

if TYPE_CHECKING:
    from metrale_caps.models.decoder import Decoder

KernelChoice: TypeAlias = Literal["triton", "naive"]

_GIB = 1 << 30
_WHOLE_NUMBERS = ("max_slots", "block_size", "prefill_chunk", "max_decode_graphs", "num_blocks", "seed")
_DEFAULT_POOL_BYTES = _GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How an engine holds and runs sequences.

    Attributes:
        max_slots: sequences that run at once at most.
        block_size: tokens a cache block holds.
        num_blocks: blocks of the cache; None for what the slots can use, within 1 GiB.
        prefill_chunk: prompt tokens of one step at most.
        decode_graphs: capture decode steps and replay them.
        max_decode_graphs: captured steps kept at most; each belongs to one sequence's slot, or to one batch of them.
        seed: of random sampling.
    """

    max_slots: int = 8
    block_size: int = 16
    num_blocks: int | None = None
    prefill_chunk: int = 512
    decode_graphs: bool = True
    max_decode_graphs: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no whole number, and sizes below one.

        Raises:
            ConfigurationError: naming the option and what came.
        """
        for name in _WHOLE_NUMBERS:
            value: object = getattr(self, name)
            if name == "num_blocks" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigurationError(f"{name} is {value!r} ({type(value).__name__}); it must be a whole number")
            if value < 1 and name != "seed":
                raise ConfigurationError(f"{name} is {value}; it must be at least 1")
        if not isinstance(self.decode_graphs, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - users are not all typed
            kind = type(self.decode_graphs).__name__
            raise ConfigurationError(f"decode_graphs is {self.decode_graphs!r} ({kind}); it must be True or False")

    def blocks_for(self, decoder: Decoder) -> int:
        """Return the number of blocks to allocate for a decoder."""
        if self.num_blocks is not None:
            return self.num_blocks
        wanted = self.max_slots * -(-decoder.context_tokens // self.block_size)
        block_bytes = bytes_per_token(kv_specs(decoder.layers), decoder.dtype) * self.block_size
        if not block_bytes:
            return wanted
        return max(1, min(wanted, _DEFAULT_POOL_BYTES // block_bytes))
