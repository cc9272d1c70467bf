# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where a step that is being captured is noted down, and how operations that torch cannot see get there.

A captured step on a CPU is a list of calls on fixed tensors. Torch's own operators are seen by the recorder itself; a
kernel launch and a plain-torch twin, which reads lengths on the host, hand themselves over as one call each.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, ParamSpec

import torch
from typing_extensions import Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

_Arguments = ParamSpec("_Arguments")


class Recorder(Protocol):
    """What notes a step down while it is captured.

    Attributes:
        layer: index of the layer that is running, or None outside the stack.
    """

    layer: int | None

    def record_launch(self, run: Callable[[], None], tensors: Iterable[Tensor]) -> None:
        """Note a kernel launch, or another call that only writes to these tensors; `run` makes it again."""
        ...

    def record_operation(self, run: Callable[[], Tensor], result: Callable[[], Tensor], operands: object) -> Tensor:
        """Note an operation and return its result, whose shape `result` makes without computing it."""
        ...


_active: ContextVar[Recorder | None] = ContextVar("active_recorder", default=None)


def active_recorder() -> Recorder | None:
    """Return the recorder of the step that is being captured in this thread, or None."""
    return _active.get()


class recording_with:  # noqa: N801 - used as a function in `with`, and cheaper than a generator
    """Make a recorder the active one inside a `with` block."""

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        """Set the recorder."""
        self._token = _active.set(self._recorder)

    def __exit__(self, *_: object) -> None:
        """Set the one before."""
        _active.reset(self._token)


def is_capturing() -> bool:
    """Return whether the current step is being captured, so that nothing may be read on the host."""
    return _active.get() is not None or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def recordable(
    result: Callable[..., Tensor],
) -> Callable[[Callable[_Arguments, Tensor]], Callable[_Arguments, Tensor]]:
    """Return a decorator for an operation that a captured step holds as one call.

    Args:
        result: takes the operation's arguments and returns an uninitialised tensor of its result's shape and dtype,
            or the argument that the operation writes its result to.
    """

    def decorate(operation: Callable[_Arguments, Tensor]) -> Callable[_Arguments, Tensor]:
        @functools.wraps(operation)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Tensor:
            recorder = _active.get()
            if recorder is None:
                return operation(*args, **kwargs)
            return recorder.record_operation(
                lambda: operation(*args, **kwargs), lambda: result(*args, **kwargs), (args, kwargs)
            )

        return call

    return decorate


def recordable_in_place(operation: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Decorate an operation that returns nothing and whose tensors are all arguments, as `recordable` does others."""

    @functools.wraps(operation)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        recorder = _active.get()
        if recorder is None:
            operation(*args, **kwargs)
            return
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        recorder.record_launch(lambda: operation(*args, **kwargs), tensors)

    return call
