# SPDX-License-Identifier: MIT OR Apache-2.0
"""The table of the ten queries: `QUERIES`.

It is the only place where a query's name, protocol, default, folds and time of asking are written. Everything else
reads them from it, or is checked against it by a test.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from metrale_caps import protocols

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Answer: TypeAlias = bool | None

BooleanQueryName: TypeAlias = Literal[
    "uses_local_mla_prefill",
    "decode_graph_unsupported",
    "decode_multi_seq_unsupported",
    "decode_rollback_unsupported",
    "decode_verify_multi_unsupported",
    "graph_stale_on_new_sequence",
    "is_ssm_layer",
    "uses_ssm_pool",
    "supports_replay_tail_split",
]
OptionalQueryName: TypeAlias = Literal["fp8_calibration_frozen"]
QueryName: TypeAlias = BooleanQueryName | OptionalQueryName


class Fold(Enum):
    """How the answers of a stack's layers become one."""

    ANY = "any layer says True"
    ALL_NON_EMPTY = "all layers say True, and there is one"
    NO_FALSE = "no layer says False"
    PER_LAYER = "each layer for itself"

    def apply(self, answers: Sequence[Answer]) -> bool | None:
        """Return the stack's answer, or None where each layer stands for itself."""
        return _FOLDS[self](answers)


_FOLDS: Mapping[Fold, Callable[[Sequence[Answer]], bool | None]] = {
    Fold.ANY: lambda answers: any(answer is True for answer in answers),
    Fold.ALL_NON_EMPTY: lambda answers: bool(answers) and all(answer is True for answer in answers),
    Fold.NO_FALSE: lambda answers: all(answer is not False for answer in answers),
    Fold.PER_LAYER: lambda _answers: None,
}


_OBJECTIONS: Mapping[Fold, bool] = {Fold.ANY: True, Fold.ALL_NON_EMPTY: False, Fold.NO_FALSE: False}
"""The answer that forces the other route; where each layer stands for itself, the one that is not the default."""


class Asked(Enum):
    """When the stack's answer is consulted."""

    AT_BUILD = "when the model is built"
    EACH_STEP = "each step"
    EACH_PREFIX_LOOKUP = "each prefix lookup"
    EACH_ROLLBACK = "each rollback"
    EACH_VERIFY = "each verify"
    EACH_FREE = "each free, each slot move"
    AT_SEQUENCE_SETUP = "sequence set-up"
    EACH_PREFILL_AT_CUT = "each prefill that spans the cut"


class Source(Enum):
    """Where an answer came from."""

    DECLARED = "declared"
    """The layer's class or the layer itself has the method."""
    DELEGATED = "delegated"
    """The layer forwards attribute access and what stands behind it answered."""
    DEFAULT = "default"
    """The layer has no such method."""


@dataclass(frozen=True, slots=True)
class Query:
    """One row of `QUERIES`.

    Attributes:
        name: the method's name.
        protocol: the protocol with that one method.
        default: the answer of a layer without the method.
        optional: whether None is an answer.
        fold: how a stack's answers become one.
        asked: when the answer is consulted.
        changes: whether a layer's answer may change while the model runs. The others are asked once, when the model
            is built.
        consequence: what follows from the stack's answer.
    """

    name: QueryName
    protocol: type
    default: Answer
    fold: Fold
    asked: Asked
    consequence: str
    optional: bool = False
    changes: bool = False

    @property
    def objection(self) -> bool:
        """The answer with which a layer stands in the way of the wanted route."""
        return _OBJECTIONS.get(self.fold, not self.default)

    def objects(self, answers: Sequence[Answer]) -> bool:
        """Return whether a stack with these answers stands in the way of the wanted route."""
        folded = self.fold.apply(answers)
        if folded is None:
            return any(answer is self.objection for answer in answers)
        return folded is self.objection

    def of_parts(self, answers: Sequence[Answer]) -> Answer:
        """Return what a layer made of parts with these answers has to say: one objection is enough."""
        agreement = not self.objection
        if answers and self.objects(answers):
            return self.objection
        return agreement if agreement in answers else self.default

    @property
    def answer_type(self) -> str:
        """The answer's type as it is written in source."""
        return "bool | None" if self.optional else "bool"


def _table(*rows: Query) -> Mapping[QueryName, Query]:
    return types.MappingProxyType({row.name: row for row in rows})


QUERIES: Mapping[QueryName, Query] = _table(
    Query(
        "uses_local_mla_prefill",
        protocols.UsesLocalMlaPrefill,
        default=False,
        fold=Fold.ANY,
        asked=Asked.EACH_PREFIX_LOOKUP,
        consequence="every prefix lookup matches nothing (`mla_prefill_needs_full_recompute`); blocks are still "
        "inserted, and admission counts on no discount",
    ),
    Query(
        "fp8_calibration_frozen",
        protocols.Fp8CalibrationFrozen,
        default=None,
        optional=True,
        changes=True,
        fold=Fold.NO_FALSE,
        asked=Asked.EACH_STEP,
        consequence="no graph of any kind is captured or replayed until it holds (`graphs_ready_after_fp8_kv_cal`)",
    ),
    Query(
        "decode_graph_unsupported",
        protocols.DecodeGraphUnsupported,
        default=False,
        fold=Fold.ANY,
        asked=Asked.AT_BUILD,
        consequence="the whole model decodes eagerly (`decode_graph_veto`)",
    ),
    Query(
        "decode_multi_seq_unsupported",
        protocols.DecodeMultiSeqUnsupported,
        default=False,
        fold=Fold.ANY,
        asked=Asked.AT_BUILD,
        consequence="a batched decode runs each sequence through `decode` (`hc_perseq`); a fused decode and prefill "
        "step runs both separately (`hc_qsa_perseq`)",
    ),
    Query(
        "decode_rollback_unsupported",
        protocols.DecodeRollbackUnsupported,
        default=False,
        fold=Fold.ANY,
        asked=Asked.EACH_ROLLBACK,
        consequence="`rollback_to_boundary` declines with `LayerStateNotRewindable`; nothing has changed",
    ),
    Query(
        "decode_verify_multi_unsupported",
        protocols.DecodeVerifyMultiUnsupported,
        default=False,
        fold=Fold.ANY,
        asked=Asked.EACH_VERIFY,
        consequence="`can_batch_verify_dispatch` refuses; one sequence at a time is verified",
    ),
    Query(
        "graph_stale_on_new_sequence",
        protocols.GraphStaleOnNewSequence,
        default=False,
        fold=Fold.ANY,
        asked=Asked.EACH_FREE,
        consequence="the slot's graphs of every kind are dropped, and only those; a slot index at or past the pool's "
        "`max_slots` drops nothing",
    ),
    Query(
        "is_ssm_layer",
        protocols.IsSsmLayer,
        default=False,
        fold=Fold.PER_LAYER,
        asked=Asked.AT_BUILD,
        consequence="a split prefill runs `prefill_phase1`, `prefill_gdn_full`, `prefill_phase3` on this layer "
        "instead of `prefill`",
    ),
    Query(
        "uses_ssm_pool",
        protocols.UsesSsmPool,
        default=True,
        fold=Fold.PER_LAYER,
        asked=Asked.AT_SEQUENCE_SETUP,
        consequence="a recurrent layer is handed an `SsmLayerState` with pool addresses and its `alloc_state` is "
        "never called; False: `alloc_state` is called and the layer owns its state",
    ),
    Query(
        "supports_replay_tail_split",
        protocols.SupportsReplayTailSplit,
        default=False,
        fold=Fold.ALL_NON_EMPTY,
        asked=Asked.EACH_PREFILL_AT_CUT,
        consequence="one pass with a capture at the cut (`inpass_cut_capture_supported`); otherwise two passes",
    ),
)


def query_names() -> tuple[QueryName, ...]:
    """Return the ten names in the table's order."""
    return tuple(QUERIES)


def literal_query_names() -> tuple[str, ...]:
    """Return the names that the static overloads of `capability_of` know, for the check against `QUERIES`."""
    return (*get_args(BooleanQueryName), *get_args(OptionalQueryName))
