# SPDX-License-Identifier: MIT OR Apache-2.0
"""Cosines and sines of rotary position embeddings, computed once for all positions of a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """Rotations of each position.

    Channels `i` and `i + rotary_dim / 2` of a head form a pair; channels from `rotary_dim` on are not rotated.

    Attributes:
        cos: `[max_positions, rotary_dim / 2]` fp32.
        sin: likewise.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def build(
        cls,
        inverse_frequencies: torch.Tensor,
        max_positions: int,
        *,
        scaling: float = 1.0,
        device: torch.device | None = None,
    ) -> RotaryTable:
        """Compute the table.

        Args:
            inverse_frequencies: `[rotary_dim / 2]`, radians a position adds to each pair.
            max_positions: positions `0 .. max_positions - 1`.
            scaling: factor of cosines and sines (attention scaling of extended contexts).
            device: where the table lies.
        """
        positions = torch.arange(max_positions, dtype=torch.float32, device=device)
        angles = positions[:, None] * inverse_frequencies.to(device=device, dtype=torch.float32)[None, :]
        return cls(angles.cos() * scaling, angles.sin() * scaling)

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that are rotated."""
        return 2 * self.cos.shape[1]
