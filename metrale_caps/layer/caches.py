# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a layer keeps between steps, and what it asks for: pages of keys and values, recurrent state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from typing_extensions import Protocol

from metrale_caps.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class PagedKvSpec:
    """The shape of the paged cache a layer asks for.

    Attributes:
        key_value_heads: heads of keys and values.
        head_dim: width of a key.
        value_head_dim: width of a value; 0 for a layer that reads its values out of the keys.
    """

    key_value_heads: int
    head_dim: int
    value_head_dim: int


@dataclass(frozen=True, slots=True)
class PagedKv:
    """One layer's pages.

    Attributes:
        keys: `[blocks, block_size, key_value_heads, head_dim]`.
        values: `[blocks, block_size, key_value_heads, value_head_dim]`.
        key_scale: `[1]` fp32, the number that a code of FP8 pages is multiplied with; None for other pages. It may
            change between two steps and stays where it is.
        value_scale: likewise for values.
    """

    keys: Tensor
    values: Tensor
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None

    @property
    def block_size(self) -> int:
        """Tokens a block holds."""
        return self.keys.shape[1]

    def scales(self) -> tuple[Tensor, Tensor]:
        """Return the scales of keys and values of FP8 pages.

        Raises:
            LookupError: these pages are not FP8.
        """
        if self.key_scale is None or self.value_scale is None:
            raise LookupError(f"pages of {self.keys.dtype} have no scales; only FP8 pages do")
        return self.key_scale, self.value_scale


class KvCalibration(Protocol):
    """Finds the scales of one layer's FP8 pages from what is written to them first.

    Attributes:
        frozen: whether the scales are final; a layer with a calibration answers this to `fp8_calibration_frozen`.
    """

    @property
    def frozen(self) -> bool:
        """Whether the scales are final."""
        ...

    def observe(self, keys: Tensor, values: Tensor, cache_slots: Tensor, /) -> None:
        """Look at a step's rows; to be called before every store, with what the store is then called with.

        Until the scales are final it reads values on the host, may change the scales, and writes to the layer's pages
        what was stored before, at the new scales. While a step is captured it does nothing.

        Args:
            keys: `[rows, key_value_heads, head_dim]`, as they would be stored without FP8.
            values: `[rows, key_value_heads, value_head_dim]`.
            cache_slots: `[rows]` int64; rows with -1 count for nothing.
        """
        ...


def check_sizes(name: str, sizes: object) -> None:
    """Refuse a shape that is no tuple of whole numbers from 0 on.

    Raises:
        ConfigurationError: naming it and what came.
    """
    if not isinstance(sizes, tuple) or any(
        type(size) is not int or size < 0 for size in cast("tuple[object, ...]", sizes)
    ):
        raise ConfigurationError(f"{name} is {sizes!r}; it must be a tuple of sizes, whole numbers from 0 on")


@dataclass(frozen=True, slots=True)
class SsmStateSpec:
    """The recurrent state a layer asks for, of one sequence.

    Attributes:
        convolution: shape of the inputs it keeps for its convolution, such as `[window, channels]`; in the type of the
            weights; `(0,)` for a layer without one.
        recurrent: shape of the state of its recurrence, such as `[heads, value_dim, key_dim]`; in fp32.
    """

    convolution: tuple[int, ...]
    recurrent: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse what is no shape.

        Raises:
            ConfigurationError: naming it and what came.
        """
        check_sizes("convolution", self.convolution)
        check_sizes("recurrent", self.recurrent)


@dataclass(frozen=True, slots=True)
class SsmLayerState:
    """One layer's part of the pool of recurrent state: every sequence's, at its slot.

    The last slot is the dummy of padding rows: it may be read and written, and holds no meaning. A slot's numbers are
    contiguous; between slots lies what other layers keep. Addresses never change.

    Attributes:
        convolution: `[slots, *spec.convolution]` in the type of the weights; zeros when a sequence starts.
        recurrent: `[slots, *spec.recurrent]` fp32; zeros when a sequence starts.
        convolution_intermediates: `[slots, verify_rows, *spec.convolution]`, where a verify step leaves the state after
            each of a sequence's rows; None in an engine that makes no drafts.
        recurrent_intermediates: likewise.
    """

    convolution: Tensor
    recurrent: Tensor
    convolution_intermediates: Tensor | None = None
    recurrent_intermediates: Tensor | None = None

    @property
    def dummy_slot(self) -> int:
        """The slot of padding rows."""
        return self.recurrent.shape[0] - 1

    def intermediates(self) -> tuple[Tensor, Tensor]:
        """Return where a verify step leaves the state after each row: of the convolution and of the recurrence.

        Raises:
            LookupError: there is no room for them, so that rejected drafts could not be taken back.
        """
        if self.convolution_intermediates is None or self.recurrent_intermediates is None:
            raise LookupError("the pool holds no states of single rows, so that a verify step could not be taken back")
        return self.convolution_intermediates, self.recurrent_intermediates
