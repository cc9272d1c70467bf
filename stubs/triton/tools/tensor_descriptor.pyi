# SPDX-License-Identifier: MIT OR Apache-2.0
"""A tensor descriptor made on the host and passed to a kernel."""

from collections.abc import Sequence

import torch

class TensorDescriptor:
    base: torch.Tensor
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    padding: str
    def __init__(
        self,
        base: torch.Tensor,
        shape: Sequence[int],
        strides: Sequence[int],
        block_shape: Sequence[int],
        padding: str = ...,
    ) -> None: ...
    @staticmethod
    def from_tensor(tensor: torch.Tensor, block_shape: Sequence[int], padding: str = ...) -> TensorDescriptor: ...
