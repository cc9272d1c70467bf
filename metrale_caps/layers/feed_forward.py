# SPDX-License-Identifier: MIT OR Apache-2.0
"""Feed-forward halves of a decoder block. They keep no state of a sequence and change no capability answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.kernels.operations import Operations
    from metrale_caps.layers.projection import Projection


class FeedForward(Protocol):
    """Maps normalised rows to what is added to the residual stream."""

    def __call__(self, rows: Tensor, operations: Operations, /) -> Tensor:
        """Map `[rows, hidden_size]` to `[rows, hidden_size]`."""
        ...


@dataclass(frozen=True, slots=True)
class SwiGlu:
    """`down(silu(gate(x)) * up(x))`.

    Attributes:
        gate_up: gate and up projections in one, gate rows first, `[2 * intermediate_size, hidden_size]`.
        down: `[hidden_size, intermediate_size]`.
    """

    gate_up: Projection
    down: Projection

    def __call__(self, rows: Tensor, operations: Operations, /) -> Tensor:
        """Map `[rows, hidden_size]` to `[rows, hidden_size]`."""
        return self.down(operations.silu_mul(self.gate_up(rows)))
