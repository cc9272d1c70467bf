# SPDX-License-Identifier: MIT OR Apache-2.0
"""What asking a layer gives, for every shape an answer can come in."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings
import weakref
from typing import Any, Generic, TypeVar
from unittest.mock import MagicMock, Mock

import pytest
from typing_extensions import override

from metrale_caps import (
    QUERIES,
    CapabilityAnswerError,
    LayerCapabilities,
    Query,
    Source,
    UnknownCapabilityError,
    UsesSsmPool,
    capability_of,
    query_names,
)
from metrale_caps.declaration import declaration_faults

T = TypeVar("T")
EVERY_QUERY = pytest.mark.parametrize("query", query_names())


class Plain:
    """A layer that declares nothing."""


class Stateful(Generic[T]):
    """A generic layer."""

    def uses_ssm_pool(self) -> bool:
        return False


def _layer(query: str, answer: object) -> Any:
    """A layer whose class answers one query."""

    def method(_self: object) -> object:
        return answer

    return type("Layer", (), {query: method})()


def _layer_with(query: str, member: object) -> Any:
    """A layer whose class has `member` in the place of a query's method."""
    return type("Layer", (), {query: member})()


@EVERY_QUERY
def test_missing_attribute_uses_documented_default(query: Any) -> None:
    """A layer without the method gives exactly the table's default."""
    assert capability_of(Plain(), query) is QUERIES[query].default


def test_only_the_pool_is_granted_by_default() -> None:
    """`uses_ssm_pool` is the one query whose default is True."""
    assert [name for name, row in QUERIES.items() if row.default is True] == ["uses_ssm_pool"]


@EVERY_QUERY
@pytest.mark.parametrize("answer", [True, False])
def test_declared_answer_wins_over_the_default(query: Any, answer: bool) -> None:
    """An explicit answer is kept, also an explicit False where the default is True."""
    assert capability_of(_layer(query, answer), query) is answer


@EVERY_QUERY
def test_none_is_an_answer_only_where_the_table_says_so(query: Any) -> None:
    """None is refused for a bool query and kept for `fp8_calibration_frozen`."""
    if QUERIES[query].optional:
        assert capability_of(_layer(query, None), query) is None
    else:
        with pytest.raises(CapabilityAnswerError, match="None"):
            capability_of(_layer(query, None), query)


@EVERY_QUERY
def test_inherited_stub_counts_as_missing(query: Any) -> None:
    """A class that inherits the protocol without a body of its own gets the default, never the stub's None."""
    layer = type("Layer", (QUERIES[query].protocol,), {})()
    assert capability_of(layer, query) is QUERIES[query].default


def test_body_in_a_later_base_is_found_behind_an_inherited_stub() -> None:
    """A stub that comes first in the resolution order does not hide a body that comes after it."""

    class Body:
        def uses_ssm_pool(self) -> bool:
            return False

    layer = type("Layer", (UsesSsmPool, Body), {})()
    assert capability_of(layer, "uses_ssm_pool") is False


class _Truthy:
    def __bool__(self) -> bool:
        return True


@EVERY_QUERY
@pytest.mark.parametrize(
    "answer",
    [1, 0, "yes", "", _Truthy(), lambda: True, [True]],
    ids=["one", "zero", "text", "empty", "truthy", "callable", "list"],
)
def test_answer_of_another_type_is_refused_by_name(query: Any, answer: object) -> None:
    """Only exact booleans are answers; the error names layer, query and the type that came."""
    with pytest.raises(CapabilityAnswerError) as caught:
        capability_of(_layer(query, answer), query)
    assert caught.value.query == query
    assert "Layer" in str(caught.value)
    assert type(answer).__qualname__ in str(caught.value)
    assert isinstance(caught.value, TypeError)


@EVERY_QUERY
def test_coroutine_method_is_refused_without_a_warning(query: Any) -> None:
    """An `async` method is refused, and no 'never awaited' warning leaks."""

    async def answer(_self: object) -> bool:
        return True

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CapabilityAnswerError, match="coroutine"):
            capability_of(_layer_with(query, answer), query)


@pytest.mark.parametrize("member", [True, None, "yes", 0], ids=repr)
def test_attribute_in_place_of_a_method_is_refused(member: object) -> None:
    """A plain value where a method belongs is an error and never a silent default."""
    with pytest.raises(CapabilityAnswerError, match="not a method"):
        capability_of(_layer_with("decode_graph_unsupported", member), "decode_graph_unsupported")


@pytest.mark.parametrize("decorator", [property, functools.cached_property])
def test_property_is_refused_and_never_evaluated(decorator: Any) -> None:
    """A property in place of the method is refused without running it."""

    def body(_self: object) -> bool:
        raise AssertionError("the property was evaluated")

    with pytest.raises(CapabilityAnswerError, match="property"):
        capability_of(_layer_with("is_ssm_layer", decorator(body)), "is_ssm_layer")


def test_required_argument_is_refused() -> None:
    """A method that needs an argument is refused; the message says so."""

    def needs_one(_self: object, _argument: object) -> bool:
        return True

    with pytest.raises(CapabilityAnswerError, match="without arguments"):
        capability_of(_layer_with("is_ssm_layer", needs_one), "is_ssm_layer")


def test_method_kinds_that_can_be_called_without_arguments_are_accepted() -> None:
    """Static and class methods, partials, optional arguments and callables on the instance all answer."""

    class Layer:
        @staticmethod
        def is_ssm_layer() -> bool:
            return True

        @classmethod
        def uses_ssm_pool(cls) -> bool:
            return False

        def decode_graph_unsupported(self, _reason: str = "") -> bool:
            return True

        graph_stale_on_new_sequence = functools.partialmethod(lambda _self, answer: answer, True)  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType, reportUnknownArgumentType]

    layer: Any = Layer()
    layer.decode_rollback_unsupported = functools.partial(bool, 1)
    assert capability_of(layer, "is_ssm_layer") is True
    assert capability_of(layer, "uses_ssm_pool") is False
    assert capability_of(layer, "decode_graph_unsupported") is True
    assert capability_of(layer, "graph_stale_on_new_sequence") is True
    assert capability_of(layer, "decode_rollback_unsupported") is True


def test_slots_answer_and_an_unfilled_slot_is_missing() -> None:
    """A layer with slots may hold the answer in one; a slot that was never filled counts as missing."""

    class Layer:
        __slots__ = ("is_ssm_layer",)
        is_ssm_layer: Any

    layer = Layer()
    assert capability_of(layer, "is_ssm_layer") is False
    layer.is_ssm_layer = lambda: True
    assert capability_of(layer, "is_ssm_layer") is True


@pytest.mark.parametrize("error", [AttributeError("lost"), TypeError("inside"), RuntimeError("broken")], ids=repr)
def test_exception_inside_the_method_comes_out_as_itself(error: Exception) -> None:
    """The layer's own bug is not turned into a default; a note names layer and query."""

    def broken(_self: object) -> bool:
        raise error

    with pytest.raises(type(error), match=str(error)) as caught:
        capability_of(_layer_with("uses_ssm_pool", broken), "uses_ssm_pool")
    assert not isinstance(caught.value, CapabilityAnswerError)
    assert any("Layer.uses_ssm_pool" in note for note in caught.value.__notes__)


def test_class_in_place_of_an_instance_is_refused() -> None:
    """A class is no layer."""
    with pytest.raises(CapabilityAnswerError, match="class was asked"):
        capability_of(Plain, "is_ssm_layer")


def test_generic_layer_answers_and_its_class_with_arguments_is_refused() -> None:
    """An instance of a generic class is a layer like any other; the class is none, with arguments or without."""
    layer: Any = Stateful[int]
    assert capability_of(layer(), "uses_ssm_pool") is False
    for asked in (layer, Stateful, list[int]):
        with pytest.raises(CapabilityAnswerError, match="class was asked"):
            capability_of(asked, "uses_ssm_pool")


def test_method_that_does_not_even_take_the_layer_is_refused() -> None:
    """A forgotten `self` is a wrong declaration and not a bug inside the method."""

    def forgotten() -> bool:
        return True

    with pytest.raises(CapabilityAnswerError, match="without arguments"):
        capability_of(_layer_with("is_ssm_layer", forgotten), "is_ssm_layer")


def test_what_is_put_on_a_class_or_an_instance_later_counts() -> None:
    """Nothing that was found is remembered: classes and instances may be changed between two questions."""

    class Base:
        pass

    class Layer(Base):
        pass

    def answer(_self: object) -> bool:
        return True

    layer: Any = Layer()
    assert capability_of(layer, "is_ssm_layer") is False
    Base.is_ssm_layer = answer  # pyright: ignore[reportAttributeAccessIssue]
    assert capability_of(layer, "is_ssm_layer") is True
    layer.is_ssm_layer = lambda: False
    assert capability_of(layer, "is_ssm_layer") is False
    del layer.is_ssm_layer, Base.is_ssm_layer  # pyright: ignore[reportAttributeAccessIssue]
    assert capability_of(layer, "is_ssm_layer") is False
    Layer.__bases__ = (type("Other", (), {"is_ssm_layer": answer}),)
    assert capability_of(layer, "is_ssm_layer") is True


@EVERY_QUERY
def test_mock_is_refused_on_every_python(query: Any) -> None:
    """A bare mock answers with another mock, which is no answer."""
    with pytest.raises(CapabilityAnswerError):
        capability_of(MagicMock(), query)


def test_mock_with_a_spec_answers_what_it_was_told() -> None:
    """A mock of a real layer that returns True says True."""

    class Layer:
        def is_ssm_layer(self) -> bool:
            return False

    layer = Mock(spec=Layer)
    layer.is_ssm_layer.return_value = True
    assert capability_of(layer, "is_ssm_layer") is True


class _Proxy:
    """Forwards what it does not have itself."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_forwarding_proxy_delegates_and_says_so() -> None:
    """The answer of what stands behind a proxy counts, as delegated; what is missing there is missing."""
    answers = LayerCapabilities.of(_Proxy(_layer("is_ssm_layer", answer=True)))
    assert answers.is_ssm_layer is True
    assert answers.sources["is_ssm_layer"] is Source.DELEGATED
    assert answers.uses_ssm_pool is True
    assert answers.sources["uses_ssm_pool"] is Source.DEFAULT


def test_attribute_error_inside_a_proxy_is_not_a_missing_method() -> None:
    """A proxy that fails for a reason of its own shows that reason."""

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return self.inner_that_was_never_set  # recursion is cut by the name check

    class Cut(Broken):
        @override
        def __getattr__(self, name: str) -> Any:
            if name == "inner_that_was_never_set":
                raise AttributeError("no inner layer was set", name=name, obj=self)
            return super().__getattr__(name)

    with pytest.raises(AttributeError, match="no inner layer"):
        capability_of(Cut(), "is_ssm_layer")


class _Transparent:
    """Forwards everything, before its own attributes are looked at."""

    def __init__(self, inner: object) -> None:
        object.__setattr__(self, "inner", inner)

    @override
    def __getattribute__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "inner"), name)


@pytest.mark.parametrize("wrap", [_Proxy, _Transparent, weakref.proxy], ids=["getattr", "getattribute", "weakref"])
def test_no_kind_of_proxy_hides_a_veto(wrap: Any) -> None:
    """However a proxy forwards, the inner layer's answer counts, and an inner stub is still missing."""
    inner = type("Layer", (UsesSsmPool,), {"decode_graph_unsupported": lambda _self: True})()  # pyright: ignore[reportUnknownLambdaType]
    proxy = wrap(inner)
    assert capability_of(proxy, "decode_graph_unsupported") is True
    assert capability_of(proxy, "uses_ssm_pool") is True
    assert capability_of(proxy, "is_ssm_layer") is False


def test_snapshot_can_be_copied_compared_and_sent() -> None:
    """A snapshot is a value."""
    answers = LayerCapabilities.of(Plain())
    assert pickle.loads(pickle.dumps(answers)) == copy.deepcopy(answers) == answers  # noqa: S301
    assert len({answers, LayerCapabilities.of(Plain())}) == 1


@pytest.mark.parametrize("query", [None, 1, []], ids=repr)
def test_name_of_another_type_is_an_unknown_name(query: Any) -> None:
    """Whatever is asked, the error lists the names."""
    with pytest.raises(UnknownCapabilityError, match="uses_ssm_pool"):
        capability_of(Plain(), query)


def test_type_error_of_a_builtin_is_the_layer_s_own() -> None:
    """A bug inside a callable without Python frames is not called a wrong signature."""
    with pytest.raises(TypeError, match="has no len") as caught:
        capability_of(_layer_with("is_ssm_layer", staticmethod(functools.partial(len, 5))), "is_ssm_layer")  # pyright: ignore[reportArgumentType]
    assert not isinstance(caught.value, CapabilityAnswerError)


def test_asking_touches_nothing_else() -> None:
    """One question calls the asked method exactly once and evaluates no other member."""
    calls: list[str] = []

    class Layer:
        @property
        def expensive(self) -> bool:
            raise AssertionError("an unrelated property was evaluated")

        def is_ssm_layer(self) -> bool:
            calls.append("is_ssm_layer")
            return True

        def uses_ssm_pool(self) -> bool:
            calls.append("uses_ssm_pool")
            return True

    assert capability_of(Layer(), "is_ssm_layer") is True
    assert calls == ["is_ssm_layer"]


def test_unknown_name_is_refused_with_a_suggestion() -> None:
    """A misspelt name raises at run time, as pyright rejects it, and the near miss is suggested."""
    with pytest.raises(UnknownCapabilityError, match="did you mean 'is_ssm_layer'") as caught:
        capability_of(Plain(), "is_ssm_layre")  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert caught.value.suggestion == "is_ssm_layer"
    assert isinstance(caught.value, KeyError)


def test_snapshot_holds_all_answers_with_their_sources() -> None:
    """A snapshot gives each answer as an attribute and by name, and keeps where it came from."""
    answers = LayerCapabilities.of(_layer("uses_ssm_pool", answer=False))
    assert {name: answers.answer(name) for name in QUERIES} == {
        name: False if name == "uses_ssm_pool" else row.default for name, row in QUERIES.items()
    }
    assert answers.sources["uses_ssm_pool"] is Source.DECLARED
    assert set(answers.sources) == set(QUERIES)
    assert all(getattr(answers, name) is answers.answer(name) for name in QUERIES)


def test_registries_of_a_module_are_looked_in_where_its_constructor_made_them() -> None:
    """A class that forwards attributes as torch's module does keeps what is registered in dictionaries of its own."""

    def forward(_layer: object, name: str) -> object:
        raise AttributeError(name)

    forward.__module__, forward.__qualname__ = "torch.nn.modules.module", "Module.__getattr__"
    layer: Any = type("Layer", (), {"__getattr__": forward})()
    assert capability_of(layer, "is_ssm_layer") is False
    layer._buffers = {"is_ssm_layer": 1}
    with pytest.raises(CapabilityAnswerError, match="not a method"):
        capability_of(layer, "is_ssm_layer")


def test_rows_cannot_be_changed() -> None:
    """The table is data that nobody can edit at run time."""
    row: Query = QUERIES["is_ssm_layer"]
    with pytest.raises(AttributeError):
        row.default = True  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        QUERIES["is_ssm_layer"] = row  # pyright: ignore[reportIndexIssue]


def _with_one(function: Any) -> Any:
    """A decorator whose function takes no argument and gives one to what it wraps."""

    @functools.wraps(function)
    def wrapper(self: object) -> Any:
        return function(self, 1)

    return wrapper


@pytest.mark.parametrize("asking", [capability_of, lambda layer, _: LayerCapabilities.of(layer)])  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
def test_type_error_inside_a_decorated_method_is_the_layer_s_own(asking: Any) -> None:
    """The call is judged as it is made, whatever arguments the wrapped function takes."""

    class Raises:
        @_with_one
        def is_ssm_layer(self, count: int) -> bool:
            raise TypeError(f"{count} is odd")

    class Answers:
        @_with_one
        def is_ssm_layer(self, count: int) -> bool:
            return count == 1

    with pytest.raises(TypeError, match="1 is odd") as caught:
        asking(Raises(), "is_ssm_layer")
    assert not isinstance(caught.value, CapabilityAnswerError)
    assert capability_of(Answers(), "is_ssm_layer") is True
    assert declaration_faults(Answers, "is_ssm_layer") == []


class _Bound:
    """A decorator that is told its name and binds as a function does."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, layer: object, owner: type) -> Any:
        return functools.partial(self.function, layer)

    def __call__(self, layer: object) -> bool:
        return self.function(layer)


def test_decorator_that_is_told_its_name_is_bound() -> None:
    """A cached property is told its name too, and is not evaluated; what can be called is a method."""

    class Layer:
        @_Bound
        def is_ssm_layer(self) -> bool:
            return True

    assert capability_of(Layer(), "is_ssm_layer") is True
