# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a layer keeps of each row between the phases of a split prefill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from metrale_caps.layer.contexts import PrefillContext


@dataclass(frozen=True, slots=True)
class RowBuffer:
    """Something that a layer keeps of each row of a range between the phases of a split prefill.

    Attributes:
        name: how the layer asks for it.
        shape: shape of one row.
        float32: whether it is in fp32 rather than in the type of the weights.
    """

    name: str
    shape: tuple[int, ...]
    float32: bool = False


@dataclass(frozen=True, slots=True)
class SplitPrefillBuffers:
    """What a layer asked for with `split_prefill_buffers`, over the whole range of a split prefill.

    The next layer is given the same memory, once this one's last phase has run.

    Attributes:
        range_start: position of the range's first row.
        rows: each buffer by name, `[rows of the range, *shape]`.
    """

    range_start: int
    rows: Mapping[str, Tensor]

    def whole(self, name: str) -> Tensor:
        """Return a buffer over the whole range."""
        return self.rows[name]

    def chunk(self, name: str, context: PrefillContext) -> Tensor:
        """Return the rows of a buffer that belong to one chunk."""
        first = context.chunk_start - self.range_start
        return self.rows[name][first : first + context.max_rows]
