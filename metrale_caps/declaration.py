# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is wrong with the way a class declares a capability, seen without making an instance.

`declares` raises on it when the class is created, `audit` reports it. Both also know what an answer obliges a layer
to: `OBLIGATIONS` ties answers to forward methods.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from types import FunctionType, NoneType
from typing import TYPE_CHECKING, Any, Literal, Union, cast, get_args, get_origin

from metrale_caps.layer import FORWARD_STUBS
from metrale_caps.lookup import MISSING, class_member
from metrale_caps.queries import QUERIES, Query, QueryName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_PARTIAL_IS_METHOD = sys.version_info >= (3, 14)
"""Whether a `functools.partial` on a class is called with the layer first; 3.13 only warns that it will be."""


@dataclass(frozen=True, slots=True)
class Obligation:
    """A row of `OBLIGATIONS`.

    Attributes:
        query: the query.
        answer: the answer that obliges.
        methods: the forward methods that a layer giving it must have.
        because: what they are called for.
        only_then: whether a layer that does not give the answer has no use for them.
        safe: whether a layer may always give the other answer, whatever stands behind it; it then loses a route only.
    """

    query: QueryName
    answer: bool
    methods: tuple[str, ...]
    because: str
    only_then: bool
    safe: bool


_ROWS = (
    Obligation(
        "is_ssm_layer",
        answer=True,
        methods=("prefill_phase1", "prefill_gdn_full", "prefill_phase3"),
        because="a split prefill runs it in phases",
        only_then=True,
        safe=False,
    ),
    Obligation(
        "uses_ssm_pool",
        answer=False,
        methods=("alloc_state", "release_state"),
        because="the engine asks it for each sequence's state",
        only_then=True,
        safe=False,
    ),
    Obligation(
        "decode_verify_multi_unsupported",
        answer=False,
        methods=("decode_verify_multi",),
        because="drafts of several sequences are verified in one call",
        only_then=False,  # a layer may turn the batch down for a reason that its method knows nothing of
        safe=True,
    ),
)

OBLIGATIONS: Mapping[QueryName, Obligation] = {row.query: row for row in _ROWS}
"""The forward methods that answers oblige a layer to have, and some that a layer has for nothing without the answer."""


def declaration_faults(cls: type, query: QueryName) -> list[str]:
    """Return what keeps a class's method from being an answer to a query, one phrase for each fault.

    A missing method is a fault here; whether it is one for a layer that claims nothing is the caller's to say.
    """
    row = QUERIES[query]
    found = class_member(cls, query, vars(row.protocol)[query])
    if found is MISSING:
        inherits = issubclass(cls, row.protocol)
        stub = ", only the body-less one of the protocol" if inherits else ""
        return [f"has no method `{query}`{stub}{_meant(cls, query)}"]
    if isinstance(found, (property, functools.cached_property)):
        return ["is a property; make it a method"]
    function, takes_layer = _unwrapped(found)
    if not callable(function):
        return [f"is {_described(found)}, not a method"]
    return [*_kind_faults(function), *_argument_faults(function, takes_layer), *_return_faults(function, row)]


def _meant(cls: type, query: QueryName) -> str:
    """Return a hint at the class's own method whose name comes nearest, or nothing."""
    import difflib

    veto = "unsupported"
    own = [
        name
        for base in cls.__mro__[:-1]
        for name in vars(base)
        if not name.startswith("_") and name not in QUERIES and (veto in name) is (veto in query)  # not the opposite
    ]
    near = difflib.get_close_matches(query, own, n=1, cutoff=0.85)
    return f"; rename `{near[0]}` if it is meant to be the answer" if near else ""


def tie_faults(cls: type, query: QueryName) -> list[str]:
    """Return the forward methods that a class lacks although it may give the answer that obliges it to have them.

    A return annotation that excludes the answer, such as `Literal[False]`, exempts it.
    """
    obligation = OBLIGATIONS.get(query)
    if obligation is None:
        return []
    found = class_member(cls, query, vars(QUERIES[query].protocol)[query])
    answers = _annotated_answers(_unwrapped(found)[0])
    if answers is not None and obligation.answer not in answers:
        return []
    lacking = [name for name in obligation.methods if class_member(cls, name, FORWARD_STUBS[name]) is MISSING]
    if not lacking:
        return []
    methods = ", ".join(f"`{name}`" for name in lacking)
    remedy = f"write {'it' if len(lacking) == 1 else 'them'}, or annotate `-> Literal[{not obligation.answer}]`"
    return [f"may answer {obligation.answer} but the class has no {methods}; {obligation.because}; {remedy}"]


def forward_faults(cls: type, name: str) -> list[str]:
    """Return what keeps a class's forward method from being called as the engine will; nothing if it has none."""
    stub = cast("FunctionType", FORWARD_STUBS[name])
    found = class_member(cls, name, stub)
    function, takes_layer = _unwrapped(found)
    if found is MISSING or not callable(function) or isinstance(function, type):
        return []
    arguments = stub.__code__.co_varnames[1 : stub.__code__.co_argcount]
    error = _refused_call(function, len(arguments) + takes_layer)
    call = f"{name}({', '.join(arguments)})"
    return [*_kind_faults(function), *([f"cannot be called as `{call}` ({error})"] if error else [])]


def _unwrapped(found: object) -> tuple[Any, bool]:
    """Return the function behind a class's attribute, and whether it is called with the layer or class first."""
    if isinstance(found, staticmethod):
        return cast("Any", found).__func__, False
    if isinstance(found, classmethod):
        return cast("Any", found).__func__, True
    if isinstance(found, functools.partialmethod):
        method = cast("Any", found)
        return functools.partial(method.func, None, *method.args, **method.keywords), False
    if isinstance(found, functools.partial):
        return cast("Any", found), _PARTIAL_IS_METHOD
    return found, hasattr(type(found), "__get__")


def _kind_faults(function: Any) -> list[str]:
    import inspect

    if inspect.iscoroutinefunction(function):
        return ["is a coroutine function; remove `async`"]
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return ["is a generator function; return the answer rather than yield it"]
    return []


def _argument_faults(function: Callable[..., object], takes_layer: bool) -> list[str]:
    error = _refused_call(function, int(takes_layer))
    return [f"cannot be called without arguments ({error}); drop the arguments"] if error else []


def _refused_call(function: Callable[..., object], arguments: int) -> str | None:
    """Return why a function cannot be called with so many arguments by position, or None."""
    import inspect

    try:  # what a decorator's function wraps takes other arguments than it does itself
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some callables of other languages tell nothing
        return None
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        return str(error)
    return None


def _return_faults(function: object, row: Query) -> list[str]:
    allowed = {True, False, None} if row.optional else {True, False}
    annotation = _return_annotation(function)
    answers = _annotated_answers(function)
    if annotation in (_UNKNOWN, Any, object) or (answers is not None and answers <= allowed):
        return []
    shown = annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
    return [f"is annotated to return {shown}; expected {row.answer_type}"]


_UNKNOWN = object()


def _return_annotation(function: object) -> object:
    if not isinstance(function, FunctionType):
        return _UNKNOWN
    from typing_extensions import get_type_hints

    try:
        return get_type_hints(function).get("return", _UNKNOWN)
    except Exception:  # noqa: BLE001 - an annotation is code of the author's; names for checkers alone do not resolve
        return _UNKNOWN


def _annotated_answers(function: object) -> frozenset[bool | None] | None:
    """Return the answers that a function's annotation allows, or None where it allows others or says nothing."""
    try:
        return _answers_of(_return_annotation(function))
    except Exception:  # noqa: BLE001 - an alias is evaluated when it is looked at, and is code of the author's
        return frozenset({True, False})


def _answers_of(annotation: object) -> frozenset[bool | None] | None:
    while type(annotation).__name__ == "TypeAliasType":  # of `typing` from 3.12 on, or of `typing_extensions`
        annotation = cast("Any", annotation).__value__
    if annotation is bool:
        return frozenset({True, False})
    if annotation in (None, NoneType):
        return frozenset({None})
    if get_origin(annotation) is Literal:
        values = get_args(annotation)
        return frozenset(values) if all(value is None or isinstance(value, bool) for value in values) else None
    if not (get_origin(annotation) is Union or type(annotation).__name__ == "UnionType"):
        return None
    answers: set[bool | None] = set()
    for member in get_args(annotation):
        allowed = _answers_of(member)
        if allowed is None:
            return None
        answers |= allowed
    return frozenset(answers)


def _described(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__module__}.{type(value).__qualname__}"
