# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every dispatcher holds: the plan's layers and what they keep, and how a step is run through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch

from metrale_caps.errors import LayerResultError
from metrale_caps.kernels.recording import active_recorder
from metrale_caps.layer import ForwardContext, forward_method
from metrale_caps.routing.decision import MissingMethodReason

if TYPE_CHECKING:
    from metrale_caps.layer import DecodeContext, PagedKv, SsmLayerState
    from metrale_caps.routing.plan import RoutePlan

LayerStates: TypeAlias = Sequence[dict[int, object]]
"""For each sequence of a step, in order: the states of the layers that own theirs, by layer index."""

_Context = TypeVar("_Context", bound=ForwardContext)

Forward: TypeAlias = Callable[[torch.Tensor, _Context], torch.Tensor]
"""One layer's part of a step: hidden rows and context to hidden rows."""


def row_by_row(row_of: Callable[[_Context, int], DecodeContext]) -> Callable[[Forward[Any]], Forward[_Context]]:
    """Return what makes a step's forward from a layer's `decode`: each row alone, in the context of `row_of`."""

    def make(decode: Forward[Any]) -> Forward[_Context]:
        def decode_rows(hidden: torch.Tensor, context: _Context) -> torch.Tensor:
            live = hidden.shape[0] - context.padding_rows
            rows = [decode(hidden[row : row + 1], row_of(context, row)) for row in range(live)]
            return torch.cat([*rows, hidden[live:]])

        decode_rows.__name__ = "decode"  # as errors call it
        return decode_rows

    return make


@dataclass(frozen=True, slots=True)
class Stack:
    """A plan and what its layers keep.

    Attributes:
        plan: the plan; its layers are the ones that run.
        pages: each layer's pages, None for a layer that asked for none.
        ssm: each layer's part of the pool of recurrent state, None for a layer that has none there.
    """

    plan: RoutePlan
    pages: tuple[PagedKv | None, ...]
    ssm: tuple[SsmLayerState | None, ...]

    def forwards(
        self, name: str, otherwise: Callable[[Forward[_Context]], Forward[_Context]] | None = None
    ) -> tuple[Forward[_Context], ...]:
        """Return each layer's method of a name; for a layer that lacks it, `otherwise` makes one from its `decode`."""
        forwards: list[Forward[_Context]] = []
        for layer in self.plan.layers:
            method = forward_method(layer, name)
            decode = forward_method(layer, "decode")
            if method is None and decode is not None and otherwise is not None:
                method = otherwise(decode)
            if method is None:  # the plan has refused such a stack
                raise LookupError(f"{type(layer).__qualname__} has no `{name}`")
            forwards.append(method)
        return tuple(forwards)

    def layer_type(self, index: int) -> str:
        """Return a layer's class as it is shown."""
        return self.plan.capabilities[index].layer_type

    def layer_name(self, index: int) -> str:
        """Return how errors call a layer."""
        return f"layer {index} ({self.layer_type(index)})"

    def call(self, index: int, method: Callable[..., Any], *arguments: object) -> Any:
        """Call a method of a layer; what it raises says whose it was."""
        try:
            return method(*arguments)
        except Exception as error:
            error.add_note(f"raised by `{_name(method)}` of {self.layer_name(index)}")
            raise

    def checked(self, index: int, method: Callable[..., Any], result: Any, hidden: torch.Tensor) -> torch.Tensor:
        """Return the rows that a layer returned for hidden rows.

        Raises:
            LayerResultError: they have another shape or dtype, or are no tensor.
        """
        is_tensor = isinstance(result, torch.Tensor)
        if is_tensor and result.shape == hidden.shape and result.dtype == hidden.dtype:
            return result
        got = f"{result.dtype} {list(result.shape)}" if is_tensor else type(result).__qualname__
        detail = f"returned {got}; it must return rows as it was given them, {hidden.dtype} {list(hidden.shape)}"
        raise LayerResultError(index, self.layer_type(index), _name(method), detail)

    def context(self, index: int, context: _Context, states: LayerStates) -> _Context:
        """Return a step as one layer sees it."""
        own = tuple(sequence.get(index) for sequence in states)
        return context.for_layer(self.pages[index], self.ssm[index], own)

    def lacking(self, name: str) -> tuple[MissingMethodReason, ...]:
        """Return the layers without a method of a name."""
        return tuple(
            MissingMethodReason(index, self.layer_type(index), name)
            for index, layer in enumerate(self.plan.layers)
            if forward_method(layer, name) is None
        )

    def run(
        self, forwards: tuple[Forward[_Context], ...], hidden: torch.Tensor, context: _Context, states: LayerStates
    ) -> torch.Tensor:
        """Run hidden rows through the layers, each with the step as it sees it."""
        hidden = without_padding(hidden, context)
        for index, forward in enumerate(forwards):
            hidden = self.run_layer(index, forward, hidden, context, states)
        return hidden

    def run_layer(
        self, index: int, forward: Forward[_Context], hidden: torch.Tensor, context: _Context, states: LayerStates
    ) -> torch.Tensor:
        """Run hidden rows through one layer; rows of padding come out as zeros, whatever the layer made of them."""
        recorder = active_recorder()
        if recorder is not None:
            recorder.layer = index
        result = self.call(index, forward, hidden, self.context(index, context, states))
        hidden = without_padding(self.checked(index, forward, result, hidden), context)
        if recorder is not None:
            recorder.layer = None
        return hidden


def _name(method: Callable[..., Any]) -> str:
    return getattr(method, "__name__", type(method).__qualname__)


def without_padding(hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
    """Set the rows of padding to zero, in place, so that they poison no reduction over the batch."""
    if context.padding_rows:
        hidden[hidden.shape[0] - context.padding_rows :].zero_()
    return hidden
