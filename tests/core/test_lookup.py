# SPDX-License-Identifier: MIT OR Apache-2.0
"""A method is found where a call would find it, on anything that looks like a torch module, and on descriptors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from metrale_caps import (
    CapabilityAnswerError,
    DecodeLayer,
    IsSsmLayer,
    LayerCapabilities,
    Source,
    capability_of,
    query_names,
)
from metrale_caps.capabilities import ask
from metrale_caps.layer import forward_method

if TYPE_CHECKING:
    from metrale_caps.queries import QueryName


def _module_class(module: str, qualname: str, calls: list[str] | None = None) -> type:
    """A class with registries like `torch.nn.Module`'s, whose `__getattr__` says it is defined at the given place."""

    def get(_self: object, name: str) -> Any:
        if calls is None:
            raise AssertionError("`__getattr__` was called")
        calls.append(name)
        raise AttributeError(name, name=name)

    def init(self: Any) -> None:
        self.__dict__.update(_parameters={}, _buffers={}, _modules={})

    get.__module__, get.__qualname__ = module, qualname
    return type("Module", (), {"__getattr__": get, "__init__": init})


TORCH = ("torch.nn.modules.module", "Module.__getattr__")


def test_torch_s_own_forwarding_is_not_run() -> None:
    """Its `__getattr__` finds nothing that the registries do not hold, and takes microseconds to say so."""
    answers = LayerCapabilities.of(_module_class(*TORCH)())
    assert set(answers.sources.values()) == {Source.DEFAULT}


@pytest.mark.parametrize("place", [(TORCH[0], "Other.__getattr__"), ("other.module", TORCH[1])])
def test_forwarding_of_anyone_else_is_run(place: tuple[str, str]) -> None:
    """A class that forwards in its own way is asked, also where it derives from a torch module."""
    calls: list[str] = []
    assert capability_of(_module_class(*place, calls)(), "is_ssm_layer") is False
    assert calls == ["is_ssm_layer"]


@pytest.mark.parametrize("registry", ["_parameters", "_buffers", "_modules"])
def test_what_a_registry_holds_is_what_a_call_would_find(registry: str) -> None:
    """A sub-module under a query's name is no answer, and hides the class's own method as it does for a call."""
    layer: Any = _module_class(*TORCH)()
    layer.__dict__[registry]["is_ssm_layer"] = 5
    with pytest.raises(CapabilityAnswerError, match=r"is an object of type .*, not a method"):
        capability_of(layer, "is_ssm_layer")
    assert capability_of(layer, "uses_ssm_pool") is True


class Descriptor:
    """Gives a method of its own for whichever layer it is asked for."""

    def __init__(self, *, answer: bool) -> None:
        self.answer = answer

    def __get__(self, layer: object, owner: type) -> Any:
        assert layer is not None
        assert type(layer) is owner
        return lambda: self.answer


class DataDescriptor(Descriptor):
    """Goes before an attribute of the instance."""

    def __set__(self, layer: object, value: object) -> None:
        raise AttributeError("read only")


@pytest.mark.parametrize(("descriptor", "answer"), [(Descriptor, False), (DataDescriptor, True)])
def test_descriptor_and_instance_in_the_order_of_a_call(descriptor: Any, answer: bool) -> None:
    """A data descriptor goes before the instance's own attribute, another one after it."""
    layer: Any = type("Layer", (), {"is_ssm_layer": descriptor(answer=True)})()
    assert capability_of(layer, "is_ssm_layer") is layer.is_ssm_layer() is True
    layer.__dict__["is_ssm_layer"] = lambda: False
    assert capability_of(layer, "is_ssm_layer") is layer.is_ssm_layer() is answer


def test_property_goes_before_an_attribute_of_the_instance() -> None:
    """A property that no instance can hide is refused whatever the instance holds."""
    layer: Any = type("Layer", (), {"is_ssm_layer": property(lambda _self: True)})()
    layer.__dict__["is_ssm_layer"] = lambda: True
    with pytest.raises(CapabilityAnswerError, match="is a property"):
        capability_of(layer, "is_ssm_layer")


class Proxy:
    """Forwards what it does not have."""

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_forward_method_is_found_behind_a_proxy_and_a_stub_is_not() -> None:
    """A proxy's layer decodes for it, if it decodes at all."""

    class Decodes:
        def decode(self, hidden: Any, _context: Any) -> Any:
            return hidden

    found = forward_method(Proxy(Decodes()), "decode")
    assert found is not None
    assert found(1, None) == 1
    assert forward_method(Proxy(type("Stub", (DecodeLayer,), {})()), "decode") is None
    assert forward_method(Proxy(Decodes()), "prefill") is None


def test_proxy_that_inherits_the_protocol_gives_the_answer_behind_it() -> None:
    """A body-less method of the proxy's own does not stand in the way."""

    class Answers:
        def is_ssm_layer(self) -> bool:
            return True

    proxy = type("TypedProxy", (Proxy, IsSsmLayer), {})(Answers())
    assert capability_of(proxy, "is_ssm_layer") is True


def test_class_is_refused_although_its_own_class_answers() -> None:
    """A metaclass's method is no answer of a layer."""

    class Meta(type):
        def is_ssm_layer(cls) -> bool:
            return True

    with pytest.raises(CapabilityAnswerError, match="a class was asked"):
        capability_of(Meta("Layer", (), {}), "is_ssm_layer")


def test_what_forwards_everything_answers_as_it_forwards() -> None:
    """A method that no call would reach is not asked, whether the class has it or the instance."""

    class Forwards:
        def is_ssm_layer(self) -> bool:
            raise AssertionError("a method that no call reaches was asked")

        @override
        def __getattribute__(self, name: str) -> Any:
            if name == "is_ssm_layer":
                return lambda: True
            raise AttributeError(name, name=name)

    assert capability_of(Forwards(), "is_ssm_layer") is True


def test_snapshot_names_the_layer_s_class() -> None:
    """By module and qualified name, however it was taken."""
    layer = Proxy(None)
    assert LayerCapabilities.of(layer).layer_type == f"{__name__}.Proxy"
    answers: dict[QueryName, Any] = {query: ask(layer, query) for query in query_names()}
    assert LayerCapabilities.from_answers(layer, answers) == LayerCapabilities.of(layer)
