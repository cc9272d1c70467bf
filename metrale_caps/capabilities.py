# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a layer can take part in: the table of queries, and how one layer is asked.

`QUERIES` is the only place where a query's name, protocol, default, fold and time of asking are written. Everything
else reads them from it, or is checked against it by a test.
"""

from __future__ import annotations

import difflib
import functools
import types
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, cast, get_args, overload

from metrale_caps import protocols
from metrale_caps.errors import CapabilityAnswerError, UnknownCapabilityError
from metrale_caps.lookup import find_member

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


@overload
def capability_of(layer: object, query: BooleanQueryName) -> bool: ...
@overload
def capability_of(layer: object, query: OptionalQueryName) -> bool | None: ...
def capability_of(layer: object, query: QueryName) -> bool | None:
    """Return a layer's answer to a query, or the documented default where the layer has no such method.

    Ask when the model is built, outside compiled code. The layer's method is called once; no other attribute of the
    layer is evaluated.

    Args:
        layer: the layer, an instance.
        query: one of the ten names.

    Returns:
        Exactly `bool`, or `None` where the table allows it.

    Raises:
        UnknownCapabilityError: the name is none of the ten.
        CapabilityAnswerError: the attribute is no method without arguments, or its answer is of another type.
        Exception: whatever the layer's own method raises comes out as itself, with a note naming layer and query.
    """
    return _ask(layer, _row(query))[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCapabilities:
    """All ten answers of one layer at one moment, and where each came from.

    Only `fp8_calibration_frozen` may answer otherwise later; the other nine are asked once.
    """

    layer_type: str
    uses_local_mla_prefill: bool
    fp8_calibration_frozen: bool | None
    decode_graph_unsupported: bool
    decode_multi_seq_unsupported: bool
    decode_rollback_unsupported: bool
    decode_verify_multi_unsupported: bool
    graph_stale_on_new_sequence: bool
    is_ssm_layer: bool
    uses_ssm_pool: bool
    supports_replay_tail_split: bool
    source_pairs: tuple[tuple[QueryName, Source], ...]

    @classmethod
    def of(cls, layer: object) -> Self:
        """Ask a layer all ten queries; errors as in `capability_of`."""
        asked: dict[QueryName, tuple[Answer, Source]] = {name: _ask(layer, row) for name, row in QUERIES.items()}
        answers = cast("dict[str, bool]", {name: answer for name, (answer, _) in asked.items()})
        pairs: list[tuple[QueryName, Source]] = [(name, source) for name, (_, source) in asked.items()]
        return cls(layer_type=type_name(type(layer)), source_pairs=tuple(pairs), **answers)

    @property
    def sources(self) -> dict[QueryName, Source]:
        """Where each answer came from."""
        return dict(self.source_pairs)

    def answer(self, query: QueryName) -> Answer:
        """Return the answer to one query by name."""
        return cast("Answer", getattr(self, _row(query).name))


def type_name(cls: type) -> str:
    """Return a class's module and qualified name."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _row(query: object) -> Query:
    row = QUERIES.get(cast("QueryName", query)) if isinstance(query, str) else None
    if row is None:
        names = query_names()
        near = difflib.get_close_matches(str(query), names, n=1)
        raise UnknownCapabilityError(str(query), names, near[0] if near else None)
    return row


def _ask(layer: object, row: Query) -> tuple[Answer, Source]:
    if isinstance(layer, type):
        raise CapabilityAnswerError(
            type_name(layer), row.name, "a class was asked", "a layer, an instance", "Build the layer first."
        )
    member = find_member(layer, row.name, vars(row.protocol)[row.name])
    if member is None:
        return row.default, Source.DEFAULT
    source = Source.DELEGATED if member.delegated else Source.DECLARED
    return _validated(layer, row, _call(layer, row, member.value)), source


def _call(layer: object, row: Query, method: object) -> object:
    if isinstance(method, (property, functools.cached_property)):
        raise _refusal(layer, row, "is a property", "Make it a method.")
    if not callable(method) or hasattr(type(method), "forward"):
        raise _refusal(layer, row, f"is {_described(method)}, not a method", "Make it a method.")
    try:
        return method()
    except Exception as error:
        if isinstance(error, TypeError) and not _takes_no_argument(method):
            came = f"cannot be called without arguments ({error})"
            raise _refusal(layer, row, came, "Drop the arguments.") from None
        error.add_note(f"raised by {type_name(type(layer))}.{row.name}() while its capability was asked")
        raise


def _takes_no_argument(method: Callable[..., object]) -> bool:
    import inspect  # only on the way to an error

    try:
        inspect.signature(method).bind()
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        return True
    return True


def _validated(layer: object, row: Query, answer: object) -> Answer:
    if answer is True or answer is False or (answer is None and row.optional):
        return answer
    if isinstance(answer, types.CoroutineType):
        cast("types.CoroutineType[object, object, object]", answer).close()
        raise _refusal(layer, row, "is a coroutine function", "Remove `async`.")
    if isinstance(answer, (types.GeneratorType, types.AsyncGeneratorType)):
        raise _refusal(layer, row, "is a generator function", "Return the answer rather than yield it.")
    advice = "Return True or False." if answer is None else "Convert the answer with bool(...), on the host."
    raise _refusal(layer, row, f"answered {_described(answer)}", advice)


def _refusal(layer: object, row: Query, came: str, advice: str) -> CapabilityAnswerError:
    expected = f"a method without arguments that returns exactly {row.answer_type}"
    return CapabilityAnswerError(type_name(type(layer)), row.name, came, expected, advice)


def _described(value: object) -> str:
    return "None" if value is None else f"an object of type {type_name(type(value))}"


def literal_query_names() -> tuple[str, ...]:
    """Return the names that the static overloads of `capability_of` know, for the check against `QUERIES`."""
    return (*get_args(BooleanQueryName), *get_args(OptionalQueryName))
