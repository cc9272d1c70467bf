# SPDX-License-Identifier: MIT OR Apache-2.0
"""How one layer is asked: `capability_of` for one answer, `LayerCapabilities` for all ten.

An answer counts only if it is exactly of the type that the query's protocol promises; a method that is missing gives
the documented default, and everything else is refused by name.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any, Self, cast, overload

from metrale_caps.errors import CapabilityAnswerError, UnknownCapabilityError
from metrale_caps.lookup import MISSING, Absence, forwarded_member, own_member
from metrale_caps.queries import QUERIES, Answer, BooleanQueryName, OptionalQueryName, Query, QueryName, query_names
from metrale_caps.tracing import never_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


__all__ = ["FOLDS_PARTS", "PARTS", "QUERIES", "LayerCapabilities", "Source", "ask", "capability_of", "type_name"]


class Source(Enum):
    """Where an answer came from."""

    DECLARED = "declared"
    """The layer's class or the layer itself has the method."""
    DELEGATED = "delegated"
    """What stands behind the layer answered: it forwards attributes, or folds the answers of its parts."""
    DEFAULT = "default"
    """The layer has no such method."""


# looking up a member of an enumeration costs as much as asking a layer
_DECLARED, _DELEGATED, _DEFAULT = Source.DECLARED, Source.DELEGATED, Source.DEFAULT

FOLDS_PARTS = "folds_parts"
"""Attribute of a function that answers for the layer's parts."""

PARTS = "capability_parts"
"""Method of a layer that is composed of parts."""

_ROWS: dict[str, tuple[Query, object]] = {
    name: (row, vars(row.protocol)[name])  # the protocol's own function: inheriting it declares nothing
    for name, row in QUERIES.items()
}


@overload
def capability_of(layer: object, query: BooleanQueryName) -> bool: ...
@overload
def capability_of(layer: object, query: OptionalQueryName) -> bool | None: ...
def capability_of(layer: object, query: QueryName) -> bool | None:
    """Return a layer's answer to a query, or the documented default where the layer has no such method.

    Ask when the model is built. The layer's method is called once; no other attribute of the layer is evaluated.
    Inside code that `torch.compile` compiles, the question is never traced: it breaks the graph and is asked anew at
    each call, so that no layer is given another's answer.

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
    try:
        row, stub = _ROWS[query]
    except (KeyError, TypeError):
        raise _unknown(query) from None
    method = own_member(layer, query, stub)
    if method is not MISSING and type(method) is Absence:
        method = _behind(layer, row, method)
    return row.default if method is MISSING else _answer(layer, row, method)


@dataclass(frozen=True, slots=True)
class LayerCapabilities:
    """All ten answers of one layer at one moment, and where each came from.

    Only `fp8_calibration_frozen` may answer otherwise later; the other nine are asked once.

    Attributes:
        layer_type: qualified name of the layer's class.
        source_of_each: where each answer came from, in the order of the table.
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
    source_of_each: tuple[Source, ...]

    @classmethod
    def of(cls, layer: object) -> Self:
        """Ask a layer all ten queries; errors as in `capability_of`."""
        answers: list[Answer] = []
        sources: list[Source] = []
        for row, stub in _ROWS.values():
            method = own_member(layer, row.name, stub)
            answer, source = (row.default, _DEFAULT) if method is MISSING else _told(layer, row, method)
            answers.append(answer)
            sources.append(source)
        return cls(type_name(type(layer)), *cast("Any", answers), source_of_each=tuple(sources))

    @classmethod
    def from_answers(cls, layer: object, answers: Mapping[QueryName, tuple[Answer, Source]]) -> Self:
        """Return the snapshot of a layer that gave these answers to all ten queries."""
        said = cast("Any", [answers[name][0] for name in QUERIES])
        sources = tuple(answers[name][1] for name in QUERIES)
        return cls(type_name(type(layer)), *said, source_of_each=sources)

    @property
    def sources(self) -> dict[QueryName, Source]:
        """Where each answer came from."""
        return dict(zip(QUERIES, self.source_of_each, strict=True))

    def answer(self, query: QueryName) -> Answer:
        """Return the answer to one query by name."""
        if query not in _ROWS:
            raise _unknown(query)
        return cast("Answer", getattr(self, query))


def ask(layer: object, query: QueryName) -> tuple[Answer, Source]:
    """Return a layer's answer and where it came from; errors as in `capability_of`."""
    row, stub = _ROWS[query]
    method = own_member(layer, query, stub)
    return (row.default, _DEFAULT) if method is MISSING else _told(layer, row, method)


def type_name(cls: type) -> str:
    """Return a class's module and qualified name."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _unknown(query: object) -> UnknownCapabilityError:
    import difflib  # only on the way to an error

    names = query_names()
    near = difflib.get_close_matches(str(query), names, n=1)
    return UnknownCapabilityError(str(query), names, near[0] if near else None)


def _told(layer: object, row: Query, method: object) -> tuple[Answer, Source]:
    source = _DECLARED
    if type(method) is Absence:
        method, source = _behind(layer, row, method), _DELEGATED
        if method is MISSING:
            return row.default, _DEFAULT
    elif FOLDS_PARTS in getattr(method, "__dict__", ()):
        source = _DELEGATED
    return _answer(layer, row, method), source


def _behind(layer: object, row: Query, absence: Absence) -> object:
    """Return what a layer forwards that has no member itself, or `MISSING`."""
    found = forwarded_member(layer, row.name, _ROWS[row.name][1]) if absence is Absence.FORWARDS else absence
    if found is Absence.CLASS:
        asked = type_name(layer) if isinstance(layer, type) else str(layer)
        raise CapabilityAnswerError(asked, row.name, "a class was asked", "a layer, an instance", "Build the layer.")
    return found


def _answer(layer: object, row: Query, method: Any) -> Answer:
    if type(method) is not MethodType:
        _refuse_other_members(layer, row, method)
    try:
        answer = method()
    except Exception as error:
        _explain(layer, row, method, error)
        raise
    return answer if answer is True or answer is False else _validated(layer, row, answer)


def _refuse_other_members(layer: object, row: Query, method: object) -> None:
    if isinstance(method, (property, functools.cached_property)):
        raise _refusal(layer, row, "is a property", "Make it a method.")
    if not callable(method) or hasattr(type(method), "forward"):
        raise _refusal(layer, row, f"is {_described(method)}, not a method", "Make it a method.")


def _explain(layer: object, row: Query, method: Callable[..., object], error: Exception) -> None:
    """Add a note to the layer's own error; if it is the call that was wrong, raise that instead."""
    called = error.__traceback__ is not None and error.__traceback__.tb_next is not None
    if isinstance(error, TypeError) and not called and not _takes_no_argument(method):
        came = f"cannot be called without arguments ({error})"
        raise _refusal(layer, row, came, "Drop the arguments.") from None
    error.add_note(f"raised by {type_name(type(layer))}.{row.name}() while its capability was asked")


def _takes_no_argument(method: Callable[..., object]) -> bool:
    import inspect  # only on the way to an error

    try:
        inspect.signature(method, follow_wrapped=False).bind()
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature, or a method that does not even take the layer
        return not isinstance(method, MethodType)
    return True


def _validated(layer: object, row: Query, answer: object) -> Answer:
    if answer is True or answer is False or (answer is None and row.optional):
        return answer
    if isinstance(answer, CoroutineType):
        cast("CoroutineType[object, object, object]", answer).close()
        raise _refusal(layer, row, "is a coroutine function", "Remove `async`.")
    if isinstance(answer, (GeneratorType, AsyncGeneratorType)):
        raise _refusal(layer, row, "is a generator function", "Return the answer rather than yield it.")
    advice = "Return True or False." if answer is None else "Convert the answer with bool(...), on the host."
    raise _refusal(layer, row, f"answered {_described(answer)}", advice)


def _refusal(layer: object, row: Query, came: str, advice: str) -> CapabilityAnswerError:
    expected = f"a method without arguments that returns exactly {row.answer_type}"
    return CapabilityAnswerError(type_name(type(layer)), row.name, came, expected, advice)


def _described(value: object) -> str:
    return "None" if value is None else f"an object of type {type_name(type(value))}"


never_trace(capability_of, LayerCapabilities.of.__func__)
