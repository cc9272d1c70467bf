# SPDX-License-Identifier: MIT OR Apache-2.0
"""Whether a stack's FP8 calibration has frozen, asked each step at the price of one layer's answer.

The watch polls one witness: the layer that last said False. When it flips, the layers after it are asked; when none
is left, the watch is settled and asks nobody. It latches: a layer that opens a new window after the watch has settled
is not seen until a new watch is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrale_caps.capabilities import capability_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class CalibrationWatch:
    """Polls `fp8_calibration_frozen` over a stack."""

    __slots__ = ("_answers", "_layers", "_witness")

    def __init__(self, layers: Sequence[object]) -> None:
        self._layers = tuple(layers)
        self._answers: list[bool | None] = []
        self._witness = 0
        self._advance()

    def ready(self) -> bool:
        """Return whether no layer says False. A layer that said something else once is not asked again."""
        if self._witness == len(self._layers):
            return True
        return self._advance()

    def _advance(self) -> bool:
        while self._witness < len(self._layers):
            answer = capability_of(self._layers[self._witness], "fp8_calibration_frozen")
            if answer is False:
                return False
            self._answers.append(answer)
            self._witness += 1
        return True

    def answers(self) -> tuple[bool | None, ...]:
        """Return the answers that `ready` goes by: those that were settled, and the others asked now."""
        waiting = self._layers[self._witness :]
        return (*self._answers, *(capability_of(layer, "fp8_calibration_frozen") for layer in waiting))
