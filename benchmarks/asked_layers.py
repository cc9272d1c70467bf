# SPDX-License-Identifier: MIT OR Apache-2.0
"""The layers that the case `asking` asks, and the ways of asking that it compares."""

from __future__ import annotations

import inspect
import types
import typing
from typing import TYPE_CHECKING, Any, cast

from benchmarks.registry import RedError
from metrale_caps import QUERIES, LayerCapabilities, capability_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from metrale_caps.queries import Answer

SUB_MODULES, PARAMETERS, BUFFERS = 32, 16, 8

DIRECT, ASKED, GETATTR = "direct call", "capability_of", "getattr with a default"
TYPING, EXTENSIONS = "isinstance, typing", "isinstance, typing_extensions"
STATIC, SNAPSHOT = "inspect.getattr_static", "attribute of a snapshot"

WAYS: Mapping[str, str] = {
    DIRECT: "{layer}.{query}()",
    ASKED: "capability_of({layer}, '{query}')",
    GETATTR: "getattr({layer}, '{query}', default_{query})()",
    EXTENSIONS: "{layer}.{query}() if isinstance({layer}, extensions_{query}) else default_{query}()",
    TYPING: "{layer}.{query}() if isinstance({layer}, typing_{query}) else default_{query}()",
    STATIC: "(found.__get__({layer}) if (found := getattr_static({layer}, '{query}', None)) else default_{query})()",
    SNAPSHOT: "snapshot_of_{layer}.{query}",
}
"""Each way as an expression of a layer and a query: the very source that is checked and timed."""


class Forwards:
    """A layer with the forward methods that the default answers oblige it to have."""

    def decode(self, hidden: Any, _context: Any) -> Any:
        """Do nothing."""
        return hidden

    decode_verify_multi = decode


class _Obliged:
    """The forward methods that the other answers oblige a layer to have, and that it has for nothing without them."""

    def prefill_phase3(self, hidden: Any, _context: Any, _buffers: Any) -> Any:
        """Do nothing."""
        return hidden

    def prefill_phase1(self, _hidden: Any, _context: Any, _buffers: Any) -> None:
        """Do nothing."""

    def prefill_gdn_full(self, _context: Any, _buffers: Any) -> None:
        """Do nothing."""

    def alloc_state(self) -> object:
        """Return a state that holds nothing."""
        return object()

    def release_state(self, _state: Any) -> None:
        """Do nothing."""


def large_module() -> type:
    """Return a class of torch modules with many sub-modules, parameters and buffers."""
    import torch
    from torch import nn

    class LargeModule(Forwards, nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for index in range(SUB_MODULES):
                self.add_module(f"block_{index}", nn.Identity())
            for index in range(PARAMETERS):
                self.register_parameter(f"weight_{index}", nn.Parameter(torch.empty(1)))
            for index in range(BUFFERS):
                self.register_buffer(f"cache_{index}", torch.empty(1))

    return LargeModule


def declaring(base: type) -> type:
    """Return a class of layers that answers all ten queries, each otherwise than by default."""
    answers = {query: _method(row.default) for query, row in QUERIES.items()}
    return type(f"Declaring{base.__name__}", (base, _Obliged), answers)


def _method(default: Answer) -> Callable[[object], bool]:
    if default:
        return lambda _self: False
    return lambda _self: True


def common_names() -> dict[str, object]:
    """Return what the expressions of `WAYS` name besides layers."""
    names: dict[str, object] = {
        "capability_of": capability_of,
        "LayerCapabilities": LayerCapabilities,
        "getattr_static": inspect.getattr_static,
    }
    for query, row in QUERIES.items():
        names[f"default_{query}"] = _constant(row.default)
        names[f"typing_{query}"] = _typing_protocol(query)
        names[f"extensions_{query}"] = row.protocol
    return names


def _constant(value: Answer) -> Callable[[], Answer]:
    return lambda: value


def _typing_protocol(query: str) -> object:
    def stub(_self: object) -> Any: ...

    protocol = types.new_class(
        f"Typing_{query}", (cast("type", typing.Protocol),), exec_body=lambda body: body.update({query: stub})
    )
    return typing.runtime_checkable(protocol)


def ways_of(*, declared: bool) -> dict[str, str]:
    """Return the ways that work on a layer with the methods, or on one without: a direct call needs the method."""
    return {way: source for way, source in WAYS.items() if declared or way != DIRECT}


def check_ways(names: dict[str, object], layer: str, *, declared: bool) -> None:
    """Ask a layer of `declaring`, or one that declares nothing, each query in each way.

    Raises:
        RedError: a way gives another answer than it should, or none.
    """
    for way, expression in ways_of(declared=declared).items():
        for query, row in QUERIES.items():
            expected = not row.default if declared else row.default
            try:
                given: object = eval(expression.format(layer=layer, query=query), names)  # noqa: S307 - a row of `WAYS`
            except Exception as error:
                raise RedError(f"{way} raises {error!r} for {query} of {names[layer]!r}") from error
            if given is not expected:
                raise RedError(f"{way} gives {given!r} for {query} of {names[layer]!r} rather than {expected}")


def all_ten(expression: str, layers: str) -> str:
    """Return a statement that asks each of some layers all ten queries in one way."""
    asked = "; ".join(expression.format(layer="layer", query=query) for query in QUERIES)
    return f"for layer in {layers}: {asked}"
