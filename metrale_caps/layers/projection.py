# SPDX-License-Identifier: MIT OR Apache-2.0
"""Matrix products with stored weights; the products go to torch's GEMM library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

_FEW_ROWS = 8
_FEWEST_ROWS = 2


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
        """Map `[rows, in]` to `[rows, out]`, contiguous."""
        if self._is_few(rows):
            product = _few_rows(self.weight, rows)
            return product if self.bias is None else product.add_(self.bias)
        return functional.linear(rows, self.weight, self.bias)

    def _is_few(self, rows: Tensor) -> bool:
        if rows.device.type != "cpu" or rows.dtype != torch.float32:
            return False
        count = rows.shape[0]
        return 0 < count <= _FEWEST_ROWS or (count < _FEW_ROWS and self.weight.shape[0] >= self.weight.shape[1])


def _few_rows(weight: Tensor, rows: Tensor) -> Tensor:
    """Multiply with the weight on the left, where torch's CPU library streams it at up to twice the speed.

    Measured in fp32 on one thread with a weight of 3072 x 576: 0.64 ms as `linear` against 0.38 ms for one row, doubled
    to two since a single one takes the slow way, and 0.86 ms against 0.53 ms for four.
    """
    count = rows.shape[0]
    columns = rows.repeat(_FEWEST_ROWS, 1).t() if count == 1 else rows.t()
    return torch.mm(weight, columns).t()[:count].contiguous()
