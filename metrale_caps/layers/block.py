# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the decoder blocks here have in common: a mixer and a feed-forward, each after a norm and added to the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.kernels.operations import Operations
    from metrale_caps.layer import DecodeContext, ForwardContext, PrefillContext, VerifyContext
    from metrale_caps.layers.feed_forward import FeedForward


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParts:
    """A block but for its mixer.

    Attributes:
        input_norm: `[hidden_size]`, RMS norm of what the mixer is given.
        post_attention_norm: `[hidden_size]`, RMS norm of what the feed-forward is given.
        norm_eps: epsilon of both.
        feed_forward: the feed-forward half.
        operations: kernels or their twins.
    """

    input_norm: Tensor
    post_attention_norm: Tensor
    norm_eps: float
    feed_forward: FeedForward
    operations: Operations


class PreNormBlock:
    """A block whose mixer is a subclass's.

    Attributes:
        operations: kernels or their twins.
        norm_eps: epsilon of the norms.
    """

    def __init__(self, block: BlockParts) -> None:
        self._block = block
        self.operations: Operations = block.operations
        self.norm_eps: float = block.norm_eps

    def normalised(self, residual: Tensor) -> Tensor:
        """Return what the mixer is given for rows of the residual stream."""
        return self.operations.rms_norm(residual, self._block.input_norm, self.norm_eps)

    def add_mixed(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """Add what the mixer gave to the residual stream, and what the feed-forward then gives; in place."""
        normalised = self.operations.add_rms_norm(mixed, residual, self._block.post_attention_norm, self.norm_eps)
        return residual.add_(self._block.feed_forward(normalised, self.operations))


class AttentionBlock(PreNormBlock, ABC):
    """A block whose mixer is the same computation in every step, over rows that carry their positions."""

    @abstractmethod
    def attend(self, rows: Tensor, context: ForwardContext) -> Tensor:
        """Return what is added to the residual stream for normalised rows `[rows, hidden_size]`."""

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:
        """Advance one sequence by one token; see `DecodeLayer`."""
        return self._forward(hidden, context)

    def decode_multi_seq(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:
        """Advance N sequences by one token each; see `MultiSeqDecodeLayer`."""
        return self._forward(hidden, context)

    def decode_verify(self, hidden: Tensor, context: VerifyContext, /) -> Tensor:
        """Compute K rows of one sequence; see `VerifyLayer`."""
        return self._forward(hidden, context)

    def decode_verify_multi(self, hidden: Tensor, context: VerifyContext, /) -> Tensor:
        """Compute ragged rows of several sequences; see `MultiSeqVerifyLayer`."""
        return self._forward(hidden, context)

    def prefill(self, hidden: Tensor, context: PrefillContext, /) -> Tensor:
        """Compute one chunk of a prompt; see `PrefillLayer`."""
        return self._forward(hidden, context)

    def _forward(self, residual: Tensor, context: ForwardContext) -> Tensor:
        return self.add_mixed(residual, self.attend(self.normalised(residual), context))
