# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a decision is: the route taken, the route wanted, and everyone who stood in the way.

`CHOICES` has a row for each way a stack can go, and names the query that decides it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metrale_caps.capabilities import Source
    from metrale_caps.queries import Answer, Asked, QueryName


@dataclass(frozen=True, slots=True)
class LayerReason:
    """A layer whose answer stood in the way of the wanted route."""

    layer_index: int
    layer_type: str
    query: QueryName
    answer: Answer
    source: Source

    @override
    def __str__(self) -> str:
        return f"layer {self.layer_index} {self.what}"

    @property
    def what(self) -> str:
        """The layer's type and answer, without its index."""
        return f"({self.layer_type}) answers {self.query} = {self.answer} ({self.source.value})"

    def as_json(self) -> dict[str, Any]:
        """Return the reason as plain data."""
        return {
            "layer_index": self.layer_index,
            "layer_type": self.layer_type,
            "query": self.query,
            "answer": self.answer,
            "source": self.source.value,
        }


@dataclass(frozen=True, slots=True)
class MissingMethodReason:
    """A layer that lacks a forward method, so that its rows run one at a time through another."""

    layer_index: int
    layer_type: str
    method: str
    instead: str = "decode"

    @override
    def __str__(self) -> str:
        return f"layer {self.layer_index} {self.what}"

    @property
    def what(self) -> str:
        """The layer's type and what it lacks, without its index."""
        return f"({self.layer_type}) has no `{self.method}` and runs `{self.instead}` row by row"

    def as_json(self) -> dict[str, Any]:
        """Return the reason as plain data."""
        return {
            "layer_index": self.layer_index,
            "layer_type": self.layer_type,
            "missing": self.method,
            "instead": self.instead,
        }


@dataclass(frozen=True, slots=True)
class EngineReason:
    """Something outside the layers that stood in the way, or overrode them."""

    text: str

    @override
    def __str__(self) -> str:
        return self.text

    def as_json(self) -> dict[str, Any]:
        """Return the reason as plain data."""
        return {"engine": self.text}


Reason: TypeAlias = LayerReason | MissingMethodReason | EngineReason

DecisionName: TypeAlias = Literal[
    "prefix_lookup",
    "graphs_after_calibration",
    "decode_graph",
    "batched_decode",
    "fused_step",
    "rollback",
    "verify",
    "graphs_on_new_sequence",
    "long_prefill",
    "recurrent_state",
    "tail_capture",
]


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of a plan.

    Attributes:
        name: what is decided.
        query: the query that decides it.
        asked: when the engine consults it.
        route: the route taken.
        wanted: the route that would be taken if nobody objected.
        reasons: all that stood in the way.
    """

    name: DecisionName
    query: QueryName
    asked: Asked
    route: str
    wanted: str
    reasons: tuple[Reason, ...]

    @override
    def __str__(self) -> str:
        if not self.reasons:
            return f"{self.name}: {self.route}"
        why = "; ".join(grouped(self.reasons))
        if self.route == self.wanted:
            return f"{self.name}: {self.route} ({why})"
        return f"{self.name}: {self.route} rather than {self.wanted}, because {why}"

    def as_json(self) -> dict[str, Any]:
        """Return the decision as plain data."""
        return {
            "name": self.name,
            "query": self.query,
            "asked": self.asked.value,
            "route": self.route,
            "wanted": self.wanted,
            "reasons": [reason.as_json() for reason in self.reasons],
        }


def grouped(reasons: tuple[Reason, ...]) -> list[str]:
    """Return the reasons as phrases, layers that say the same in the same way named together."""
    phrases = [str(reason) for reason in reasons if isinstance(reason, EngineReason)]
    layers = [reason for reason in reasons if not isinstance(reason, EngineReason)]
    groups: dict[str, list[int]] = {}
    for reason in layers:
        groups.setdefault(reason.what, []).append(reason.layer_index)
    for what, indices in groups.items():
        if len(indices) == 1:
            phrases.append(f"layer {indices[0]} {what}")
        else:
            phrases.append(f"{len(indices)} layers ({index_ranges(indices)}) {_of_several(what)}")
    return phrases


def _of_several(what: str) -> str:
    """Return what one layer does as several do it."""
    for of_one, of_several in ((" answers ", " answer "), (" has no ", " have no "), (" runs ", " run ")):
        what = what.replace(of_one, of_several)
    return what


def index_ranges(indices: list[int]) -> str:
    """Return ascending indices in words, neighbours as a range: `0-2, 4`."""
    spans: list[list[int]] = []
    for index in indices:
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


@dataclass(frozen=True, slots=True)
class Choice:
    """A row of `CHOICES`: the two ways, and the answer that forces the second.

    Attributes:
        name: what is decided.
        query: the query that decides it.
        wanted: the route if no layer objects.
        otherwise: the route if one does.
        without_engine: the route where the engine does not offer the choice; `otherwise` by default.
        override: environment variable that, set to 1, overrides the layers.
    """

    name: DecisionName
    query: QueryName
    wanted: str
    otherwise: str
    without_engine: str | None = None
    override: str | None = None


_ROWS = (
    Choice(
        "prefix_lookup",
        "uses_local_mla_prefill",
        "reuse the matched prefix",
        "match nothing and recompute the whole prompt",
        override="METRALE_MLA_PREFIX_SKIP",
    ),
    Choice(
        "graphs_after_calibration",
        "fp8_calibration_frozen",
        "graphs allowed",
        "no graphs until the FP8 calibration freezes",
    ),
    Choice("decode_graph", "decode_graph_unsupported", "captured in graphs", "eager"),
    Choice(
        "batched_decode",
        "decode_multi_seq_unsupported",
        "all sequences in one pass",
        "one sequence at a time (hc_perseq)",
    ),
    Choice(
        "fused_step",
        "decode_multi_seq_unsupported",
        "decode rows and prefill chunk in one pass",
        "decode and prefill in passes of their own (hc_qsa_perseq)",
    ),
    Choice(
        "rollback",
        "decode_rollback_unsupported",
        "rewind to a boundary",
        "decline (LayerStateNotRewindable)",
    ),
    Choice(
        "verify",
        "decode_verify_multi_unsupported",
        "drafts of all sequences in one pass",
        "one sequence at a time",
    ),
    Choice(
        "graphs_on_new_sequence",
        "graph_stale_on_new_sequence",
        "keep the slot's graphs",
        "drop the slot's graphs",
    ),
    Choice(
        "long_prefill",
        "is_ssm_layer",
        "`prefill` on every layer",
        "in three phases on the layers that have them, `prefill` on the others",
        without_engine="`prefill` on every layer",
    ),
    Choice(
        "recurrent_state",
        "uses_ssm_pool",
        "in the engine's pool, for the layers that have any",
        "allocated and owned by the layers named, in the pool for the others",
        without_engine="allocated and owned by the layers that have any",
    ),
    Choice(
        "tail_capture",
        "supports_replay_tail_split",
        "one pass with a capture at the cut",
        "two passes, split at the cut",
    ),
)

CHOICES: Mapping[DecisionName, Choice] = MappingProxyType({row.name: row for row in _ROWS})
