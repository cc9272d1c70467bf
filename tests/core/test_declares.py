# SPDX-License-Identifier: MIT OR Apache-2.0
"""`declares` at run time: it refuses with all faults or hands the class back untouched."""

from __future__ import annotations

import ast
import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, get_overloads

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrale_caps import (
    QUERIES,
    CapabilityAnswerError,
    CapabilityDeclarationError,
    CapabilityError,
    UnknownCapabilityError,
    capability_of,
    declares,
)
from metrale_caps.declaration import OBLIGATIONS, declaration_faults, tie_faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps.queries import QueryName

EACH_QUERY = pytest.mark.parametrize("query", QUERIES)
decorator_of: Callable[[Any], Callable[[Any], Any]] = declares
"""`declares` as a program calls it that takes the query from elsewhere, so that run time alone decides."""


def _class(**members: object) -> type:
    return type("Layer", (), members)


def _no(_self: object) -> bool:
    return False


def _needs_rows(_self: object, _rows: object) -> bool:
    return False


def _of_nothing() -> bool:
    return False


REFUSED: dict[str, Callable[[], object]] = {
    "attribute": lambda: True,
    "none": lambda: None,
    "property": lambda: property(_no),
    "cached_property": lambda: functools.cached_property(_no),
    "argument": lambda: _needs_rows,
    "static_with_self": lambda: staticmethod(_no),
    "partial_of_too_many": lambda: functools.partialmethod(_needs_rows),
}
ACCEPTED: dict[str, Callable[[], object]] = {
    "method": lambda: _no,
    "static": lambda: staticmethod(_of_nothing),
    "class": lambda: classmethod(cast("Any", _no)),
    "partial": lambda: functools.partialmethod(_needs_rows, 3),
}


def _whole(query: str, method: object = _no) -> type:
    """A class with the query's method, and with every forward method that an answer may oblige it to have."""
    obliged = OBLIGATIONS.get(cast("Any", query))
    return _class(**{query: method}, **dict.fromkeys(obliged.methods if obliged else (), _no))


def _overloaded_names() -> list[str]:
    """The query names of the overloads, in their order, read from the annotations as written."""
    names: list[str] = []
    for overload in get_overloads(declares):
        annotation = ast.parse(overload.__annotations__["query"], mode="eval").body
        assert isinstance(annotation, ast.Subscript)
        names.append(ast.literal_eval(annotation.slice))
    return names


def test_each_query_has_its_overload_and_no_other_name_has_one() -> None:
    """A query without an overload could not be declared; a name that is no query could."""
    assert sorted(_overloaded_names()) == sorted(QUERIES)


@EACH_QUERY
def test_right_class_comes_back_untouched(query: QueryName) -> None:
    """The class is the same object with the same attributes, and its method has not been called."""

    def never(_self: object) -> bool:
        raise AssertionError

    cls = _whole(query, never)
    before = dict(vars(cls))
    assert decorator_of(query)(cls) is cls
    assert dict(vars(cls)) == before


@EACH_QUERY
def test_method_that_is_inherited_counts(query: QueryName) -> None:
    """A base class may have the method, and the forward methods that go with it."""
    child = type("Child", (_whole(query),), {})
    assert decorator_of(query)(child) is child


@EACH_QUERY
def test_protocol_s_own_body_is_no_declaration(query: QueryName) -> None:
    """A class that inherits the protocol and no more declares nothing, though checkers let it pass."""
    child = type("Child", (QUERIES[query].protocol,), {})
    with pytest.raises(CapabilityDeclarationError, match="body-less"):
        decorator_of(query)(child)


@EACH_QUERY
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_asked_cannot_be_declared(query: QueryName, kind: str) -> None:
    """The decorator and the engine refuse alike."""
    cls = _whole(query, REFUSED[kind]())
    with pytest.raises(CapabilityDeclarationError):
        decorator_of(query)(cls)
    with pytest.raises(CapabilityAnswerError):
        capability_of(cls(), query)


@EACH_QUERY
def test_method_that_forgets_the_layer_cannot_be_declared(query: QueryName) -> None:
    """A function without parameters cannot be called as a method."""
    with pytest.raises(CapabilityDeclarationError, match="cannot be called"):
        decorator_of(query)(_whole(query, _of_nothing))


@EACH_QUERY
@pytest.mark.parametrize("kind", ACCEPTED)
def test_what_can_be_asked_can_be_declared(query: QueryName, kind: str) -> None:
    """Every way to write a method without arguments is one."""
    cls = _whole(query, ACCEPTED[kind]())
    assert decorator_of(query)(cls) is cls
    assert capability_of(cls(), query) is False


@given(query=st.sampled_from(sorted(OBLIGATIONS)), data=st.data())
def test_claim_needs_every_forward_method_unless_the_annotation_excludes_it(
    query: QueryName, data: st.DataObject
) -> None:
    """Any missing method is named, whatever others are there; a return type that excludes the claim needs none."""
    obliged = OBLIGATIONS[query]
    present = data.draw(st.sets(st.sampled_from(obliged.methods)))
    lacking = set(obliged.methods) - present

    def undecided(_self: object) -> bool:
        return obliged.answer

    def excluded(_self: object) -> Any:
        return not obliged.answer

    excluded.__annotations__["return"] = Literal[False] if obliged.answer else Literal[True]
    forward = dict.fromkeys(present, _no)
    exempt = _class(**{query: excluded}, **forward)
    assert decorator_of(query)(exempt) is exempt
    claiming = _class(**{query: undecided}, **forward)
    if not lacking:
        assert decorator_of(query)(claiming) is claiming
        return
    with pytest.raises(CapabilityDeclarationError) as caught:
        decorator_of(query)(claiming)
    told = " ".join(caught.value.faults)
    assert {name for name in obliged.methods if f"`{name}`" in told} == lacking


def test_all_faults_are_told_at_once() -> None:
    """One error carries the faults of the method and of the forward methods, as text and as data."""

    class Layer:
        async def is_ssm_layer(self, rows: int) -> int:
            return rows

    faults = (*declaration_faults(Layer, "is_ssm_layer"), *tie_faults(Layer, "is_ssm_layer"))
    assert len(faults) >= 3
    with pytest.raises(CapabilityDeclarationError) as caught:
        decorator_of("is_ssm_layer")(Layer)
    error = caught.value
    assert (error.query, error.faults) == ("is_ssm_layer", faults)
    assert error.layer_type == f"{__name__}.{Layer.__qualname__}"
    assert all(part in str(error) for part in (*faults, error.layer_type, "'is_ssm_layer'"))
    assert isinstance(error, CapabilityError)
    assert isinstance(error, TypeError)


@pytest.mark.parametrize("query", ["is_ssm_layre", "", "IS_SSM_LAYER", "decode", None, 3, []])
def test_unknown_query_is_refused_before_there_is_a_class(query: object) -> None:
    """The name is checked by the call, as it is where a layer is asked."""
    with pytest.raises(UnknownCapabilityError) as asked:
        capability_of(object(), cast("Any", query))
    with pytest.raises(UnknownCapabilityError) as declared:
        decorator_of(query)
    assert str(declared.value) == str(asked.value)


@pytest.mark.parametrize("decorated", [3, _no, None, _whole("decode_graph_unsupported")()], ids=type)
def test_only_classes_are_decorated(decorated: object) -> None:
    """A function or an instance under the decorator is refused as such."""
    with pytest.raises(CapabilityDeclarationError, match="a class is expected"):
        decorator_of("decode_graph_unsupported")(decorated)


def test_decorators_stack_and_go_with_dataclasses() -> None:
    """Each decorator checks its own query; the first that is applied refuses first."""

    @declares("uses_ssm_pool")
    @declares("decode_graph_unsupported")
    @dataclass(frozen=True, slots=True)
    class Layer:
        width: int

        def uses_ssm_pool(self) -> Literal[True]:
            return True

        def decode_graph_unsupported(self) -> bool:
            return self.width > 64

    assert capability_of(Layer(65), "decode_graph_unsupported") is True
    assert capability_of(Layer(65), "uses_ssm_pool") is True
    with pytest.raises(CapabilityDeclarationError) as caught:
        decorator_of("uses_ssm_pool")(decorator_of("is_ssm_layer")(_class()))
    assert caught.value.query == "is_ssm_layer"


def test_documentation_names_every_tie() -> None:
    """The table of obligations in the docstring is that of the code."""
    told = inspect.getdoc(declares) or ""
    rows = {
        cells[1].strip(" `"): cells[3].strip(" `") for line in told.splitlines() if len(cells := line.split("|")) == 5
    }
    exempting = {name: f"-> Literal[{not obliged.answer}]" for name, obliged in OBLIGATIONS.items()}
    assert {name: rows.get(name) for name in OBLIGATIONS} == exempting
    assert set(rows) - {"query", "---"} == set(OBLIGATIONS)
