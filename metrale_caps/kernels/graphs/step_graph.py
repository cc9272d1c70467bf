# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a captured step is, whatever it was captured with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.kernels.graphs.baked import BakedBuffer


class StepGraph(Protocol):
    """A step with baked addresses.

    Attributes:
        output: what the step returns; each replay overwrites it.
        baked: the buffers from outside the step whose addresses it holds.
        calls: number of recorded calls, 0 where the graph does not know.
    """

    @property
    def output(self) -> Tensor:
        """What the step returns."""
        ...

    @property
    def baked(self) -> tuple[BakedBuffer, ...]:
        """Buffers from outside the step."""
        ...

    @property
    def calls(self) -> int:
        """Number of recorded calls."""
        ...

    def replay(self) -> None:
        """Run the step once, on what its buffers hold now."""
        ...
