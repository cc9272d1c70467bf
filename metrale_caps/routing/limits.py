# SPDX-License-Identifier: MIT OR Apache-2.0
"""Routes that a plan decides and the engine of this package does not take yet, each with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metrale_caps.routing.decision import DecisionName

UNAVAILABLE: Mapping[DecisionName, str] = {
    "prefix_lookup": "this engine keeps no prefix cache yet",
    "rollback": "this engine does not roll back yet",
    "verify": "this engine makes no drafts yet",
    "tail_capture": "this engine takes no snapshots yet",
}
