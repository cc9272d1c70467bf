# SPDX-License-Identifier: MIT OR Apache-2.0
"""Options of an engine, checked together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from metrale_caps.errors import ConfigurationError
from metrale_caps.state.paged_kv import PageLayout, bytes_per_token, page_layouts

if TYPE_CHECKING:
    from metrale_caps.models.decoder import Decoder

KernelChoice: TypeAlias = Literal["triton", "naive"]
KvDtype: TypeAlias = Literal["auto", "fp8"]

_GIB = 1 << 30
_SIZES = ("max_slots", "block_size", "prefill_chunk", "max_decode_graphs", "num_blocks", "split_prefill_tokens")
_OPTIONAL = ("num_blocks", "split_prefill_tokens")
_SWITCHES = ("decode_graphs", "split_prefill")
_WHOLE_NUMBERS = (*_SIZES, "fp8_calibration_tokens", "seed")
_DEFAULT_POOL_BYTES = _GIB
_MOST_CALIBRATION_TOKENS = 4096
_MOST_HEADROOM = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How an engine holds and runs sequences.

    Attributes:
        max_slots: sequences that run at once at most.
        block_size: tokens a cache block holds.
        num_blocks: blocks of the cache; None for what the slots can use, within 1 GiB.
        prefill_chunk: prompt tokens that layers see at once; only a split prefill computes more in one step.
        kv_dtype: "auto" for pages of the weights' type, "fp8" for E4M3 in every layer that can.
        fp8_calibration_tokens: tokens from which each layer's FP8 scales are found, counted over all requests; until
            then decode steps run eagerly. 0 for no calibration.
        fp8_kv_headroom: how much larger than any key or value observed one may be that an FP8 page still holds.
        fp8_kv_scales: scales of keys and values by layer index, for layers that are not to be calibrated; without
            calibration the others have scales of 1.
        decode_graphs: capture decode steps and replay them.
        max_decode_graphs: captured steps kept at most; each belongs to one sequence's slot, or to one batch of them.
        split_prefill: compute a prompt longer than `prefill_chunk` in phases on the recurrent layers that have them,
            where no sequence decodes meanwhile.
        split_prefill_tokens: longest prompt that is computed so; None for what 256 MiB of buffers hold. While a layer's
            recurrence runs over the whole of it, it needs about as much again.
        seed: of random sampling.
    """

    max_slots: int = 8
    block_size: int = 16
    num_blocks: int | None = None
    prefill_chunk: int = 512
    kv_dtype: KvDtype = "auto"
    fp8_calibration_tokens: int = 256
    fp8_kv_headroom: float = 1.0
    fp8_kv_scales: Mapping[int, tuple[float, float]] | None = None
    decode_graphs: bool = True
    max_decode_graphs: int = 64
    split_prefill: bool = True
    split_prefill_tokens: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no whole number, and sizes below one.

        Raises:
            ConfigurationError: naming the option and what came.
        """
        for name in _WHOLE_NUMBERS:
            value: object = getattr(self, name)
            if name in _OPTIONAL and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigurationError(f"{name} is {value!r} ({type(value).__name__}); it must be a whole number")
            if value < 1 and name in _SIZES:
                raise ConfigurationError(f"{name} is {value}; it must be at least 1")
        self._check_fp8()
        for name in _SWITCHES:
            switch: object = getattr(self, name)
            if not isinstance(switch, bool):
                raise ConfigurationError(f"{name} is {switch!r} ({type(switch).__name__}); it must be True or False")

    def _check_fp8(self) -> None:
        if self.kv_dtype not in ("auto", "fp8"):
            raise ConfigurationError(f"kv_dtype is {self.kv_dtype!r}; it must be 'auto' or 'fp8'")
        if not 0 <= self.fp8_calibration_tokens <= _MOST_CALIBRATION_TOKENS:
            raise ConfigurationError(
                f"fp8_calibration_tokens is {self.fp8_calibration_tokens}; it must be 0 for none, and at most "
                f"{_MOST_CALIBRATION_TOKENS}, since that many tokens of every layer are kept unquantised until then"
            )
        headroom = cast("object", self.fp8_kv_headroom)
        if not isinstance(headroom, (int, float)) or isinstance(headroom, bool):
            raise ConfigurationError(
                f"fp8_kv_headroom is {headroom!r} ({type(headroom).__name__}); it must be a number"
            )
        if not 1.0 <= self.fp8_kv_headroom <= _MOST_HEADROOM:
            headroom = self.fp8_kv_headroom
            raise ConfigurationError(f"fp8_kv_headroom is {headroom}; it must be from 1 to {_MOST_HEADROOM}")
        if self.fp8_kv_scales and self.kv_dtype != "fp8":
            raise ConfigurationError("fp8_kv_scales is given, but kv_dtype is not 'fp8'")
        _check_scales(self.fp8_kv_scales)

    def page_layouts(self, decoder: Decoder) -> tuple[PageLayout | None, ...]:
        """Return the layout of each layer's pages.

        Raises:
            ConfigurationError: FP8 is asked for and no layer can.
        """
        layouts = page_layouts(decoder.layers, decoder.dtype, fp8=self.kv_dtype == "fp8")
        if self.kv_dtype == "fp8" and not any(layout is not None and layout.is_quantised for layout in layouts):
            raise ConfigurationError("kv_dtype is 'fp8', but no layer of this model has `use_fp8_kv`")
        return layouts

    def blocks_for(self, decoder: Decoder) -> int:
        """Return the number of blocks to allocate for a decoder."""
        if self.num_blocks is not None:
            return self.num_blocks
        wanted = self.max_slots * -(-decoder.context_tokens // self.block_size)
        block_bytes = bytes_per_token(self.page_layouts(decoder)) * self.block_size
        if not block_bytes:
            return wanted
        return max(1, min(wanted, _DEFAULT_POOL_BYTES // block_bytes))


def _check_scales(scales: object) -> None:
    """Refuse what is no mapping of a layer's index to two numbers."""
    if scales is None:
        return
    if not isinstance(scales, Mapping):
        raise ConfigurationError(f"fp8_kv_scales is {type(scales).__name__}; it must be a mapping by layer index")
    for index, pair in cast("Mapping[object, object]", scales).items():
        numbers = cast("tuple[object, ...]", pair) if isinstance(pair, tuple) else ()
        if len(numbers) != len(("key", "value")) or any(type(one) not in {int, float} for one in numbers):
            raise ConfigurationError(
                f"fp8_kv_scales has {pair!r} for layer {index!r}; it must be two numbers, the scales of keys and values"
            )
