# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a model is made of: a stack of layers between an embedding and a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.nn import functional

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from metrale_caps.kernels.operations import Operations
    from metrale_caps.layers.projection import Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A decoder-only language model as parts that the engine runs.

    Attributes:
        layers: the stack, in order. Any object with the forward methods of `metrale_caps.layer` may stand here.
        embedding: `[vocabulary, hidden_size]`.
        final_norm: `[hidden_size]`.
        norm_eps: epsilon of the final norm.
        head: hidden rows to logits.
        context_tokens: positions the model was made for.
        stop_token_ids: tokens that end a sequence.
        operations: kernels or their plain-torch twins.
    """

    layers: tuple[object, ...]
    embedding: Tensor
    final_norm: Tensor
    norm_eps: float
    head: Projection
    context_tokens: int
    stop_token_ids: frozenset[int]
    operations: Operations

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self.embedding.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights and hidden rows."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.embedding.device

    def embed(self, tokens: Tensor) -> Tensor:
        """Return hidden rows `[rows, hidden_size]` of token ids `[rows]`."""
        return functional.embedding(tokens, self.embedding)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return fp32 logits `[rows, vocabulary]` of hidden rows."""
        return self.head(self.operations.rms_norm(hidden, self.final_norm, self.norm_eps)).float()
