# SPDX-License-Identifier: MIT OR Apache-2.0
"""The audit of torch modules and of the engine's own layers."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from metrale_caps import CompositeLayer, LayerCapabilities, Source, audit_class, audit_layer
from metrale_caps.audit import FindingKind
from metrale_caps.kernels.operations import operations
from metrale_caps.models.registry import build_decoder

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULES = [
    value
    for _, value in sorted(vars(nn).items())
    if inspect.isclass(value)
    and issubclass(value, nn.Module)
    and value.__module__.startswith("torch.nn")
    and not hasattr(value, "__deprecated__")
]


class Mixer(nn.Module):
    """A layer with one veto, as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(2, 2)
        self.register_buffer("counter", torch.zeros(1))

    def decode(self, hidden: Any, _context: Any) -> Any:
        return hidden

    def decode_verify_multi(self, hidden: Any, _context: Any) -> Any:
        return hidden

    def decode_graph_unsupported(self) -> bool:
        return True


@pytest.mark.parametrize("cls", _MODULES, ids=lambda cls: cls.__name__)
@pytest.mark.filterwarnings("ignore")
def test_no_module_of_torch_is_a_finding(cls: Any) -> None:
    """Torch's own modules take no part in the contract, as classes and as instances."""
    assert len(_MODULES) > 100
    assert audit_class(cls) == ()
    instance = None
    for arguments in ((), (4,), (4, 4), (4, 4, 1)):
        try:
            instance = cls(*arguments)
            break
        except (TypeError, ValueError, AttributeError, AssertionError):
            continue
    if instance is not None:
        assert audit_layer(instance).findings == ()


def test_the_search_for_module_instances_finds_most() -> None:
    """The test above makes instances of most modules, and so can fail."""
    makeable = (nn.Linear, nn.Conv1d, nn.ReLU, nn.LSTM, nn.MultiheadAttention, nn.Transformer, nn.LayerNorm)
    assert set(makeable) < set(_MODULES)


def test_no_reference_layer_is_a_finding(tiny_model: Any) -> None:
    """The engine's own layers pass their own audit, class and instance."""
    decoder = build_decoder(tiny_model, operations("naive"), consume=False)
    assert decoder.layers
    for layer in decoder.layers:
        assert audit_class(type(layer)) == ()
        assert audit_layer(layer, in_stack=decoder.layers).findings == ()


_WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "Sequential": nn.Sequential,
    "ModuleList": lambda module: nn.ModuleList([module]),
    "ModuleDict": lambda module: nn.ModuleDict({"mixer": module}),
    "DataParallel": nn.DataParallel,
    "AveragedModel": torch.optim.swa_utils.AveragedModel,
}


@pytest.mark.parametrize("kind", _WRAPPERS)
def test_wrapper_of_torch_hides_what_it_does_not_forward(kind: str) -> None:
    """These wrappers answer with the defaults, which is said; none of them is a silent default."""
    wrapped = _WRAPPERS[kind](Mixer())
    answers = LayerCapabilities.of(wrapped)
    assert answers.decode_graph_unsupported is False
    assert answers.sources["decode_graph_unsupported"] is Source.DEFAULT
    hidden = [finding for finding in audit_layer(wrapped).findings if finding.kind is FindingKind.HIDDEN]
    assert [finding.name for finding in hidden] == ["decode_graph_unsupported"]
    assert "Mixer" in hidden[0].message


def test_compiled_module_forwards_and_hides_nothing() -> None:
    """A compiled layer gives the answers of what was compiled."""
    compile_module: Any = torch.compile  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    audit = audit_layer(compile_module(Mixer(), backend="eager"))
    assert audit.findings == ()
    assert audit.capabilities is not None
    assert audit.capabilities.decode_graph_unsupported is True
    assert audit.capabilities.sources["decode_graph_unsupported"] is Source.DELEGATED


def test_compiled_part_of_a_wrapper_is_hidden_like_the_part_itself() -> None:
    """The audit looks through a compiled module that a wrapper holds."""

    class Wrapper(Mixer):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

    rolls_back = type("Inner", (Mixer,), {"decode_rollback_unsupported": lambda _self: True})()  # pyright: ignore[reportUnknownLambdaType]
    compile_module: Any = torch.compile  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    (finding,) = audit_layer(Wrapper(compile_module(rolls_back, backend="eager"))).findings
    assert (finding.kind, finding.name) == (FindingKind.HIDDEN, "decode_rollback_unsupported")


def test_composite_module_answers_for_its_parts() -> None:
    """A module made of modules is right by construction, with its parameters in place."""

    class Block(CompositeLayer, Mixer):
        def __init__(self) -> None:
            super().__init__()
            self.mixer, self.feed_forward = Mixer(), nn.Linear(2, 2)

        def capability_parts(self) -> tuple[nn.Module, ...]:  # pyright: ignore[reportImplicitOverride]
            return self.mixer, self.feed_forward

    block = Block()
    audit = audit_layer(block)
    assert audit.findings == ()
    assert audit.capabilities is not None
    assert audit.capabilities.decode_graph_unsupported is True
    assert len(list(block.parameters())) == 6


def test_write_to_a_tensor_while_answering_is_a_side_effect() -> None:
    """Torch counts the writes to each tensor, so that one is seen without reading it."""

    class Counting(Mixer):
        def is_ssm_layer(self) -> bool:
            self.get_buffer("counter").add_(1)
            return False

    (finding,) = audit_layer(Counting()).findings
    assert (finding.kind, finding.name) == (FindingKind.SIDE_EFFECT, "is_ssm_layer")
    assert "counter" in finding.message
