# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a layer's author is told, word for word: the words are what there is to go by."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, Literal, Optional, TypeVar

import pytest
from typing_extensions import TypeAliasType, override

from metrale_caps import (
    CapabilityAnswerError,
    CompositeLayer,
    IsSsmLayer,
    LayerCapabilities,
    Source,
    SplitPrefillLayer,
    UnknownCapabilityError,
    capability_of,
    query_names,
)
from metrale_caps.capabilities import ask
from metrale_caps.declaration import declaration_faults, tie_faults

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

ASKING = pytest.mark.parametrize(
    "asking",
    [capability_of, lambda layer, _query: LayerCapabilities.of(layer), ask],  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    ids=["capability_of", "LayerCapabilities.of", "ask"],
)
T = TypeVar("T")


class Boxed(Generic[T]):
    """A generic layer without answers."""


class CallableModule:
    """What a torch module looks like in the place of a method: it can be called, and runs `forward`."""

    def forward(self) -> bool:
        return True

    def __call__(self) -> bool:
        return self.forward()


def _needs_one(_self: object, argument: object) -> object:
    return argument


async def _coroutine(_self: object) -> bool:
    return True


def _generator(_self: object) -> Iterator[bool]:
    yield True


async def _async_generator(_self: object) -> AsyncIterator[bool]:
    yield True


def _answering(answer: object) -> Callable[[object], object]:
    def method(_self: object) -> object:
        return answer

    return method


def _class(**members: object) -> type:
    return type("Layer", (), members)


CONVERT = "Convert the answer with bool(...), on the host."


@ASKING
@pytest.mark.parametrize(
    ("member", "came", "advice"),
    [
        (property(_generator), "is a property", "Make it a method."),
        (functools.cached_property(_generator), "is a property", "Make it a method."),
        (True, "is an object of type builtins.bool, not a method", "Make it a method."),
        (None, "is None, not a method", "Make it a method."),
        (CallableModule(), f"is an object of type {__name__}.CallableModule, not a method", "Make it a method."),
        (
            _needs_one,
            "cannot be called without arguments (_needs_one() missing 1 required positional argument: 'argument')",
            "Drop the arguments.",
        ),
        (_coroutine, "is a coroutine function", "Remove `async`."),
        (_generator, "is a generator function", "Return the answer rather than yield it."),
        (_async_generator, "is a generator function", "Return the answer rather than yield it."),
        (_answering(1), "answered an object of type builtins.int", CONVERT),
        (_answering(None), "answered None", "Return True or False."),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_refused_answer(asking: Any, member: object, came: str, advice: str) -> None:
    """The error names the layer and the query, what came, what was expected and what to do, however it was asked."""
    with pytest.raises(CapabilityAnswerError) as caught:
        asking(_class(is_ssm_layer=member)(), "is_ssm_layer")
    expected = "a method without arguments that returns exactly bool"
    assert str(caught.value) == f"{__name__}.Layer.is_ssm_layer: {came}; expected {expected}. {advice}"
    assert (caught.value.layer_type, caught.value.query) == (f"{__name__}.Layer", "is_ssm_layer")


def test_refused_answer_where_none_is_one_too() -> None:
    """What was expected is what the table says of the query."""
    with pytest.raises(CapabilityAnswerError, match=r"that returns exactly bool \| None\. Convert"):
        capability_of(_class(fp8_calibration_frozen=_answering(0))(), "fp8_calibration_frozen")


@pytest.mark.parametrize(("asked", "name"), [(Boxed, "Boxed"), (Boxed[int], "Boxed[int]")])
def test_class_that_was_asked(asked: object, name: str) -> None:
    """A class, with or without its arguments, is named as what it is."""
    with pytest.raises(CapabilityAnswerError) as caught:
        capability_of(asked, "is_ssm_layer")
    said = "a class was asked; expected a layer, an instance. Build the layer."
    assert str(caught.value) == f"{__name__}.{name}.is_ssm_layer: {said}"
    assert caught.value.query == "is_ssm_layer"


@pytest.mark.parametrize("asking", [capability_of, lambda layer, name: LayerCapabilities.of(layer).answer(name)])  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
@pytest.mark.parametrize(
    ("name", "hint"), [("is_ssm_layre", "; did you mean 'is_ssm_layer'?"), ("something_else", ".")]
)
def test_unknown_name(asking: Any, name: str, hint: str) -> None:
    """The name that was asked, the one that was meant if there is one, and all there are."""
    with pytest.raises(UnknownCapabilityError) as caught:
        asking(_class()(), name)
    assert (
        str(caught.value) == f"there is no capability query {name!r}{hint} The queries are: {', '.join(query_names())}"
    )
    assert caught.value.query == name


def test_bug_inside_a_builtin_without_a_signature_is_the_layer_s_own() -> None:
    """Where nothing tells which arguments a callable takes, its error is not called a wrong signature."""
    make: Any = dict
    with pytest.raises(TypeError, match="not iterable") as caught:
        capability_of(_class(is_ssm_layer=staticmethod(functools.partial(make, 5)))(), "is_ssm_layer")
    assert not isinstance(caught.value, CapabilityAnswerError)


def test_callable_without_attributes_answers() -> None:
    """A bound method of a built-in type is as good as any."""
    layer: Any = _class()()
    layer.is_ssm_layer = [True].pop
    answers = LayerCapabilities.of(layer)
    assert answers.is_ssm_layer is True
    assert answers.sources["is_ssm_layer"] is Source.DECLARED


class Nothing:
    """A part without answers."""


class InheritsStub(IsSsmLayer):
    """A class that only inherits the protocol."""


class Parts(CompositeLayer):
    """A composite of what it is given."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts

    @override
    def capability_parts(self) -> tuple[object, ...]:
        return self.parts


class Unwritten(CompositeLayer):
    """A composite that does not say what its parts are."""


@pytest.mark.parametrize(
    ("composite", "came", "advice"),
    [
        (Parts(), "returned no parts", "Return the parts whose answers count."),
        (Parts(Nothing(), None), "returned None among the parts", "Leave out a part that is not there."),
        (Unwritten(), "is not written", "Return the parts whose answers count."),
    ],
)
def test_composite_without_its_parts(composite: object, came: str, advice: str) -> None:
    """The error names the method that has to be written or mended."""
    with pytest.raises(CapabilityAnswerError) as caught:
        capability_of(composite, "is_ssm_layer")
    who = f"{__name__}.{type(composite).__name__}.capability_parts"
    assert str(caught.value) == f"{who}: {came}; expected the layer's parts. {advice}"


def _annotated(returns: object) -> Callable[[object], object]:
    method = _answering(True)
    method.__annotations__ = {"return": returns}
    return method


@pytest.mark.parametrize(
    ("cls", "faults"),
    [
        (Boxed, ["has no method `is_ssm_layer`"]),
        (InheritsStub, ["has no method `is_ssm_layer`, only the body-less one of the protocol"]),
        (_class(is_ssm_layer=property(_generator)), ["is a property; make it a method"]),
        (_class(is_ssm_layer=None), ["is None, not a method"]),
        (_class(is_ssm_layer=5), ["is an object of type builtins.int, not a method"]),
        (_class(is_ssm_layer=Nothing()), [f"is an object of type {__name__}.Nothing, not a method"]),
        (_class(is_ssm_layer=_coroutine), ["is a coroutine function; remove `async`"]),
        (_class(is_ssm_layer=_generator), ["is a generator function; return the answer rather than yield it"]),
        (_class(is_ssm_layer=_async_generator), ["is a generator function; return the answer rather than yield it"]),
        (
            _class(is_ssm_layer=_annotated(Literal[1])),
            ["is annotated to return typing.Literal[1]; expected bool"],
        ),
        (_class(is_ssm_layer=_annotated(None | bool)), ["is annotated to return None | bool; expected bool"]),
        (_class(is_ssm_layer=_annotated(str)), ["is annotated to return str; expected bool"]),
        (_class(is_ssm_layer=_annotated(Literal[True])), []),
        (
            _class(is_ssm_layer=_annotated(Literal[True] | None)),
            ["is annotated to return typing.Optional[typing.Literal[True]]; expected bool"],
        ),
        (_class(is_ssm_layer=functools.partialmethod(_needs_one, argument=True)), []),
    ],
)
def test_fault_of_a_declaration(cls: type, faults: list[str]) -> None:
    """Each fault is one phrase that says what is there and what to do or what was expected."""
    assert declaration_faults(cls, "is_ssm_layer") == faults


def test_annotation_may_say_none_where_the_table_does() -> None:
    """Either way of writing an optional answer is read."""
    for returns in (Optional[bool], bool | None, None, Literal[True, None]):  # noqa: PYI061, UP045 - other spellings
        assert declaration_faults(_class(fp8_calibration_frozen=_annotated(returns)), "fp8_calibration_frozen") == []


def test_methods_that_a_claim_lacks() -> None:
    """They are named in order; a body-less one of the protocol is none."""

    class Claims(SplitPrefillLayer):
        def is_ssm_layer(self) -> bool:
            return True

    methods = "`prefill_phase1`, `prefill_gdn_full`, `prefill_phase3`"
    said = f"may answer True but the class has no {methods}; a split prefill runs it in phases; write them, or "
    said += "annotate `-> Literal[False]`"
    assert tie_faults(type("Layer", (Claims,), {}), "is_ssm_layer") == [said]


def test_method_that_a_claim_lacks_or_the_annotation_that_makes_none() -> None:
    """What a type checker would take as well is what is proposed."""

    class Claims:
        def decode_verify_multi_unsupported(self) -> bool:
            return True

    (said,) = tie_faults(Claims, "decode_verify_multi_unsupported")
    assert said.endswith("; write it, or annotate `-> Literal[True]`")


def test_misspelt_method_of_a_class_that_lacks_the_right_one_is_named() -> None:
    """What the author wrote is looked for; the name of another query or of the opposite is not offered."""

    class Layer:
        def is_ssm_layre(self) -> bool:
            return True

        def decode_graph_supported(self) -> bool:
            return True

    (said,) = declaration_faults(Layer, "is_ssm_layer")
    assert said == "has no method `is_ssm_layer`; rename `is_ssm_layre` if it is meant to be the answer"
    assert declaration_faults(Layer, "decode_graph_unsupported") == ["has no method `decode_graph_unsupported`"]
    assert declaration_faults(Layer, "uses_ssm_pool") == ["has no method `uses_ssm_pool`"]


@pytest.mark.parametrize(("value", "faults"), [(bool, 0), (Literal[True], 0), (bool | None, 1), (int, 1)])
def test_alias_of_an_answer_s_type_is_read(value: Any, faults: int) -> None:
    """What `type Yes = bool` makes on Python 3.12 is looked through."""
    alias: Any = TypeAliasType("Yes", value)  # pyright: ignore[reportGeneralTypeIssues]
    outer: Any = TypeAliasType("Outer", alias)  # pyright: ignore[reportGeneralTypeIssues]
    assert len(declaration_faults(_class(is_ssm_layer=_annotated(outer)), "is_ssm_layer")) == faults
