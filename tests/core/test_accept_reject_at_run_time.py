# SPDX-License-Identifier: MIT OR Apache-2.0
"""The engine accepts at run time what type checkers accept in the source, and refuses what they refuse.

The layers are those of the accept and reject files in `tests/typing`, whose static half is checked there.
"""

from __future__ import annotations

import importlib
import inspect
from types import NoneType
from typing import TYPE_CHECKING, Any

import pytest

from metrale_caps import (
    QUERIES,
    CapabilityAnswerError,
    CapabilityDeclarationError,
    LayerCapabilities,
    Source,
    UnknownCapabilityError,
    capability_of,
)
from metrale_caps.audit import FindingKind, audit_class
from metrale_caps.declaration import declaration_faults
from metrale_caps.layer import FORWARD_STUBS, forward_method
from tests.typing.pins import MALFORMED, MISDECLARED, UNTIED

if TYPE_CHECKING:
    from types import ModuleType

    from metrale_caps.queries import QueryName

EACH_QUERY = pytest.mark.parametrize("query", QUERIES)
EACH_MALFORMED = pytest.mark.parametrize("kind", MALFORMED)


def _accepted(query: str) -> ModuleType:
    return importlib.import_module(f"tests.typing.accept_{query}")


def _rejected(query: str) -> Any:
    return importlib.import_module(f"tests.typing.reject_{query}")


@EACH_QUERY
def test_accepted_layers_give_exactly_their_own_answer(query: QueryName) -> None:
    """Each answer is the method's, of exactly the type that the table allows."""
    allowed = (bool, NoneType) if QUERIES[query].optional else (bool,)
    for layer in _accepted(query).LAYERS:
        answer = capability_of(layer, query)
        assert type(answer) in allowed
        assert answer is getattr(layer, query)()
        capabilities = LayerCapabilities.of(layer)
        assert capabilities.answer(query) is answer
        assert capabilities.sources[query] is Source.DECLARED


@EACH_QUERY
def test_accepted_classes_have_no_fault(query: QueryName) -> None:
    """A method that a checker accepts in place of the protocol's is one that the engine can ask."""
    layers: tuple[object, ...] = _accepted(query).LAYERS
    assert [faults for layer in layers if (faults := declaration_faults(type(layer), query))] == []
    assert [finding for layer in layers for finding in audit_class(type(layer))] == []


@EACH_QUERY
def test_assertions_about_accepted_types_run(query: QueryName) -> None:
    """What the accept files say about types is code that runs."""
    module = _accepted(query)
    checks = [
        check for _, check in inspect.getmembers(module, inspect.isfunction) if check.__module__ == module.__name__
    ]
    assert len(checks) == 3
    for check in checks:
        check(*module.LAYERS[: len(inspect.signature(check).parameters)])


@EACH_QUERY
@EACH_MALFORMED
def test_layer_that_is_refused_by_type_is_refused_when_asked(query: QueryName, kind: str) -> None:
    """An answer that pyright refuses in place of the protocol's is never taken for one."""
    with pytest.raises(CapabilityAnswerError) as caught:
        capability_of(getattr(_rejected(query), kind), query)
    assert caught.value.query == query


@EACH_QUERY
@EACH_MALFORMED
def test_class_that_is_refused_by_type_is_a_finding(query: QueryName, kind: str) -> None:
    """The audit sees it without an instance, and sees nothing else."""
    layer: object = getattr(_rejected(query), kind)
    findings = audit_class(type(layer))
    assert {(finding.kind, finding.name) for finding in findings} == {(FindingKind.MALFORMED, query)}


@EACH_QUERY
@pytest.mark.parametrize("kind", [*(f"declare_{kind}" for kind in MALFORMED), *MISDECLARED])
def test_class_that_is_refused_at_the_decorator_is_refused_when_it_is_made(query: QueryName, kind: str) -> None:
    """The decorator refuses at run time what it refuses in the source."""
    _assert_refused(query, kind)


@pytest.mark.parametrize(("query", "kind"), [(query, kind) for query, kinds in UNTIED.items() for kind in kinds])
def test_claim_without_its_forward_methods_is_refused_when_the_class_is_made(query: QueryName, kind: str) -> None:
    """An answer that obliges to forward methods is refused of a class that lacks any of them."""
    _assert_refused(query, kind)


def _assert_refused(query: QueryName, kind: str) -> None:
    with pytest.raises(CapabilityDeclarationError) as caught:
        getattr(_rejected(query), kind)()
    assert caught.value.query == query
    assert caught.value.faults


@EACH_QUERY
def test_misspelt_query_is_refused_with_the_right_name(query: QueryName) -> None:
    """A query that does not exist has no default, and the one that was meant is suggested."""
    module = _rejected(query)
    for refused in (module.declare_misspelt_query, lambda: module.ask_misspelt_query(object())):
        with pytest.raises(UnknownCapabilityError) as caught:
            refused()
        assert caught.value.suggestion == query


@EACH_QUERY
def test_misspelt_method_leaves_the_default_and_is_a_finding(query: QueryName) -> None:
    """The protocol's own body is no answer, nothing asks under another name, and the audit says which was meant."""
    layer: object = _rejected(query).MisspeltOverride()
    assert capability_of(layer, query) is QUERIES[query].default
    assert LayerCapabilities.of(layer).sources[query] is Source.DEFAULT
    (finding,) = audit_class(type(layer))
    assert finding.kind is FindingKind.MISSPELT
    assert f"`{query}`" in finding.message


def test_layer_that_satisfies_every_forward_protocol_has_every_forward_method() -> None:
    """The dispatchers find each method that a checker finds."""
    layer = importlib.import_module("tests.typing.accept_forward_methods").Whole()
    assert [name for name in FORWARD_STUBS if forward_method(layer, name) is None] == []
