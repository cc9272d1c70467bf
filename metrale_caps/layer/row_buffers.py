# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a layer keeps of each row between the phases of a split prefill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from metrale_caps.layer.caches import check_sizes

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

    def __post_init__(self) -> None:
        """Refuse what is no shape.

        Raises:
            ConfigurationError: naming the buffer and what came.
        """
        check_sizes(f"the shape of the row buffer {self.name!r}", self.shape)


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
        """Return a buffer over the whole range; a layer finds NaN there until it writes.

        Raises:
            LookupError: the layer did not ask for it.
        """
        if name not in self.rows:
            names = ", ".join(map(repr, self.rows)) or "none"
            raise LookupError(
                f"there is no row buffer {name!r}; with `split_prefill_buffers` this layer asked for {names}"
            )
        return self.rows[name]

    def chunk(self, name: str, context: PrefillContext) -> Tensor:
        """Return the rows of a buffer that belong to one chunk; errors as for `whole`."""
        first = context.chunk_start - self.range_start
        return self.whole(name)[first : first + context.max_rows]
