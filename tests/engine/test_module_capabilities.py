# SPDX-License-Identifier: MIT OR Apache-2.0
"""Layers that are torch modules answer like any other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from typing_extensions import override

from metrale_caps import QUERIES, CapabilityAnswerError, IsSsmLayer, LayerCapabilities, Source, capability_of


def _module(**methods: Any) -> Any:
    return type("Layer", (nn.Module,), methods)()


def _veto(_self: Any) -> bool:
    return True


@pytest.mark.parametrize("query", list(QUERIES))
def test_module_that_inherits_a_stub_gets_the_default(query: Any) -> None:
    """`nn.Module` looks attributes up in its own way; a stub is missing there too."""
    layer: Any = type("Layer", (nn.Module, QUERIES[query].protocol), {})()
    assert capability_of(layer, query) is QUERIES[query].default
    assert capability_of(_module(), query) is QUERIES[query].default


def test_compiled_module_delegates() -> None:
    """The answers of what was compiled count, as delegated; what it lacks is missing."""
    compile_module: Any = torch.compile  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    compiled = compile_module(_module(decode_graph_unsupported=_veto), backend="eager")
    answers = LayerCapabilities.of(compiled)
    assert answers.decode_graph_unsupported is True
    assert answers.sources["decode_graph_unsupported"] is Source.DELEGATED
    assert answers.sources["uses_ssm_pool"] is Source.DEFAULT


@pytest.mark.parametrize(
    "member", [nn.Linear(1, 1), nn.Parameter(torch.ones(1)), torch.ones(1)], ids=["module", "parameter", "tensor"]
)
def test_module_member_in_place_of_a_method_is_refused(member: Any) -> None:
    """A sub-module, a parameter or a tensor under a query's name is no answer."""
    layer = _module()
    layer.is_ssm_layer = member
    with pytest.raises(CapabilityAnswerError, match="not a method"):
        capability_of(layer, "is_ssm_layer")


@pytest.mark.parametrize("answer", [torch.tensor(True), torch.tensor([True, False])], ids=["scalar", "vector"])
def test_tensor_answer_is_refused(answer: torch.Tensor) -> None:
    """A tensor is never read as a bool: that would wait for the device, or be ambiguous."""
    with pytest.raises(CapabilityAnswerError, match="Tensor"):
        capability_of(_module(is_ssm_layer=lambda _self: answer), "is_ssm_layer")  # pyright: ignore[reportUnknownLambdaType]


def test_numpy_bool_is_refused() -> None:
    """`numpy.bool_` is not `bool`; the error says how to convert it."""
    import numpy as np

    with pytest.raises(CapabilityAnswerError, match=r"bool\(\.\.\.\)"):
        capability_of(_module(is_ssm_layer=lambda _self: np.bool_(True)), "is_ssm_layer")  # pyright: ignore[reportUnknownLambdaType]


def test_attribute_error_inside_a_module_s_method_is_not_missing() -> None:
    """A module's bug comes out as itself, although modules raise the same error for what is missing."""

    def broken(self: Any) -> bool:
        return self.never_set

    with pytest.raises(AttributeError, match="never_set"):
        capability_of(_module(is_ssm_layer=broken), "is_ssm_layer")


def test_layer_that_is_module_and_protocol_is_initialised() -> None:
    """Inheriting a protocol does not replace the module's constructor."""

    class Layer(nn.Module, IsSsmLayer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        @override
        def is_ssm_layer(self) -> bool:
            return True

    assert len(list(Layer().parameters())) == 2


@pytest.mark.parametrize("query", list(QUERIES))
def test_module_whose_constructor_has_not_run_is_asked_like_any_other(query: Any) -> None:
    """A subclass that forgot `super().__init__()` gets the default, or its own answer."""
    silent: Any = type("Layer", (nn.Module,), {"__init__": lambda _self: None})()  # pyright: ignore[reportUnknownLambdaType]
    assert capability_of(silent, query) is QUERIES[query].default
    told: Any = type("Layer", (nn.Module,), {"__init__": lambda _self: None, query: _veto})()  # pyright: ignore[reportUnknownLambdaType]
    assert capability_of(told, query) is True
