# SPDX-License-Identifier: MIT OR Apache-2.0
"""Whether a decode step may be captured or replayed: one decision, with everything that stands in the way.

Suppressions are named, and each belongs to whoever added it: lifting one never lifts another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrale_caps.errors import ConfigurationError
from metrale_caps.routing.decision import EngineReason, Reason

if TYPE_CHECKING:
    from metrale_caps.routing.plan import RoutePlan


class GraphSuppressions:
    """Reasons outside the layers for which no step is captured or replayed now."""

    def __init__(self) -> None:
        self._reasons: dict[str, EngineReason] = {}

    def add(self, name: str, reason: str) -> None:
        """Suppress graphs under a name of one's own.

        Raises:
            ConfigurationError: the name is taken, so that lifting it would lift another's suppression.
        """
        if name in self._reasons:
            raise ConfigurationError(
                f"graphs are already suppressed under the name {name!r}, because {self._reasons[name]}; take another"
            )
        self._reasons[name] = EngineReason(reason)

    def lift(self, name: str) -> None:
        """Take one suppression back.

        Raises:
            ConfigurationError: there is none of that name.
        """
        if name not in self._reasons:
            names = ", ".join(map(repr, self._reasons)) or "none"
            raise ConfigurationError(f"graphs are not suppressed under the name {name!r}; the names are {names}")
        del self._reasons[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the suppressions that hold."""
        return tuple(self._reasons)

    @property
    def reasons(self) -> tuple[EngineReason, ...]:
        """Their reasons."""
        return tuple(self._reasons.values())


class GraphGate:
    """Decides about the graphs of one stack.

    Attributes:
        suppressions: reasons outside the layers.
        most_rows: widest step that is captured.
    """

    def __init__(self, plan: RoutePlan, *, most_rows: int) -> None:
        self.suppressions: GraphSuppressions = GraphSuppressions()
        self.most_rows = most_rows
        self._plan = plan
        self._veto: tuple[Reason, ...] = plan.decision("decode_graph").reasons if plan.decode_graph_veto else ()

    def objections(self, rows: int) -> tuple[Reason, ...]:
        """Return all that stands in the way of a graph for a step of `rows` rows; nothing if it may have one."""
        reasons = (*self.suppressions.reasons, *self._veto)
        if not self._plan.graphs_ready_after_fp8_kv_cal():
            reasons += self._plan.decision("graphs_after_calibration").reasons
        if rows > self.most_rows:
            reasons += (EngineReason(f"a step of more than {self.most_rows} rows is too large for a graph"),)
        return reasons
