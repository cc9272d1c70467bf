# SPDX-License-Identifier: MIT OR Apache-2.0
"""Matrix products with stored weights; the products go to torch's GEMM library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Projection:
    """An affine map of rows.

    Attributes:
        weight: `[out, in]`.
        bias: `[out]`, or None.
    """

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """Map `[rows, in]` to `[rows, out]`."""
        return functional.linear(rows, self.weight, self.bias)
