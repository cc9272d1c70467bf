# SPDX-License-Identifier: MIT OR Apache-2.0
"""Routes that were taken: what a dispatcher says about the step it ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from metrale_caps.routing.decision import grouped

if TYPE_CHECKING:
    from metrale_caps.routing.decision import Reason


@dataclass(frozen=True, slots=True)
class RouteTaken:
    """How one step ran.

    Attributes:
        step: kind of step, "decode" or "prefill".
        route: the way it ran.
        reasons: why it was not the wanted way; empty if it was.
    """

    step: str
    route: str
    reasons: tuple[Reason, ...] = ()

    @override
    def __str__(self) -> str:
        why = f", because {'; '.join(grouped(self.reasons))}" if self.reasons else ""
        return f"{self.step}: {self.route}{why}"

    def as_json(self) -> dict[str, Any]:
        """Return the route as plain data."""
        return {"step": self.step, "route": self.route, "reasons": [reason.as_json() for reason in self.reasons]}
