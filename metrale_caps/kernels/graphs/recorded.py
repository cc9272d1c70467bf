# SPDX-License-Identifier: MIT OR Apache-2.0
"""A recorded step: the stand-in for a CUDA graph on a CPU, with the same rules.

While it is recorded nothing from outside is written. Operators that compute something new run once, on memory that
holds no data yet, so that their results exist and have addresses; operators that write, launches and twins are only
noted. A replay runs every noted call again and leaves each result where the recording put it.

What a GPU could not capture is refused here too: reading a value on the host, and shapes that depend on values.
Python numbers, branches and loops are baked, on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from metrale_caps.errors import CaptureError
from metrale_caps.kernels.graphs.baked import MemoryNotes, storage_address, tensors_in
from metrale_caps.kernels.recording import recording_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from metrale_caps.kernels.graphs.baked import BakedBuffer

Call: TypeAlias = "Callable[[], object]"

# they leave the tensor library, so that what follows could not be recorded
_HOST_METHODS = frozenset(
    {"item", "tolist", "numpy", "cpu", "data_ptr", "__array__", "__dlpack__", "__bool__", "__int__", "__float__"}
)
_HOST_OPERATORS = frozenset({"_local_scalar_dense", "item", "is_nonzero", "equal", "set_", "resize_", "nonzero"})
_EMPTY_OPERATORS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_INDEX_OPERATORS = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})
# which of several kernels it runs is chosen where it is whole; taken apart it is another computation
_KEPT_WHOLE = frozenset({"scaled_dot_product_attention"})
_DYNAMIC = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class RecordedStep:
    """A step as a list of calls.

    Attributes:
        output: what the step returns; each replay overwrites it.
        baked: the buffers from outside whose addresses it holds.
    """

    def __init__(self, calls: list[Call], output: torch.Tensor, baked: tuple[BakedBuffer, ...]) -> None:
        self._calls = tuple(calls)
        self.output: torch.Tensor = output
        self.baked: tuple[BakedBuffer, ...] = baked

    @property
    def calls(self) -> int:
        """Number of recorded calls."""
        return len(self._calls)

    def replay(self) -> None:
        """Run the calls in order."""
        for call in self._calls:
            call()


def capture_recorded(body: Callable[[], torch.Tensor]) -> RecordedStep:
    """Record a step; see `metrale_caps.kernels.graphs.capture`."""
    tape = _Tape()
    with recording_with(tape), _HostReads(tape), _Operators(tape):
        output = body()
    tape.memory.used([output], None)
    return RecordedStep(tape.calls, output, tuple(tape.memory.external.values()))


class _Tape:
    """The calls of a step so far; the active `Recorder`."""

    def __init__(self) -> None:
        self.layer: int | None = None
        self.calls: list[Call] = []
        self.memory = MemoryNotes()

    def record_launch(self, run: Callable[[], None], tensors: Iterable[torch.Tensor]) -> None:
        """Note a kernel launch."""
        self.memory.used(tensors, self.layer)
        self.calls.append(run)

    def record_operation(
        self, run: Callable[[], torch.Tensor], result: Callable[[], torch.Tensor], operands: object
    ) -> torch.Tensor:
        """Note a call that makes one tensor, or writes to one of its operands."""
        self.memory.used(tensors_in(operands), self.layer)
        place = result()
        known = storage_address(place)
        if any(storage_address(tensor) == known for tensor in tensors_in(operands)):
            self.calls.append(run)
        else:
            self.calls.append(lambda: place.copy_(run()))
        return place

    def refuse(self, what: str) -> CaptureError:
        """Return the error for something that cannot be captured here."""
        return CaptureError(what, self.layer)


class _HostReads(TorchFunctionMode):
    """Refuses methods that leave the tensor library before any operator is seen."""

    def __init__(self, tape: _Tape) -> None:
        super().__init__()
        self._tape = tape

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _HOST_METHODS:
            raise self._tape.refuse(f"`{name}` takes a tensor's values to the host")
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    """Notes torch's operators, composite ones as the parts they are made of."""

    def __init__(self, tape: _Tape) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - torch leaves it unannotated
        self._tape = tape

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func.overloadpacket.__name__)
        if name not in _KEPT_WHOLE:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        self._refuse_dynamic(func, name, args)
        if name == "lift_fresh":
            number = func(*args, **kwargs)
            initial = number.clone()  # it stands in the code, and is written again at each replay
            self._tape.memory.made(number)
            self._tape.calls.append(lambda: number.copy_(initial))
            return number
        tensors = tensors_in((args, kwargs))
        self._tape.memory.used(tensors, self._tape.layer)
        if name == "detach_":
            return func(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags:
            raise self._tape.refuse(f"`{func}` changes the shape of a tensor in place")
        if func._schema.is_mutable:  # noqa: SLF001 - the only way to ask
            return self._note_write(func, args, kwargs)
        return self._note_result(func, name, args, kwargs, tensors)

    def _refuse_dynamic(self, func: Any, name: str, args: Any) -> None:
        if name in _INDEX_OPERATORS:
            if any(index.dtype in {torch.bool, torch.uint8} for index in tensors_in(args[1])):
                raise self._tape.refuse(f"`{func}` selects by a mask, so that a shape depends on values")
        elif name in _HOST_OPERATORS or any(tag in func.tags for tag in _DYNAMIC):
            raise self._tape.refuse(f"`{func}` takes a tensor's values to the host")
        elif name == "lift_fresh" and args[0].dim() > 0:
            raise self._tape.refuse("a tensor is made from values of the host")

    def _note_write(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Note an operator that writes to its arguments, and return those."""
        schema = func._schema  # noqa: SLF001
        given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
        written = [
            given[argument.name]
            for argument in schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if any(one.alias_info is None for one in schema.returns):
            raise self._tape.refuse(f"`{func}` both writes to its arguments and makes a new tensor")
        self._tape.calls.append(lambda: func(*args, **kwargs))
        if not schema.returns:
            return None
        return written[0] if len(schema.returns) == 1 else tuple(written)

    def _note_result(self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """Run an operator that makes something new, and note it; a view is only made."""
        result = func(*args, **kwargs)
        fresh = self._fresh(result, tensors)
        if not fresh:
            return result
        for tensor in fresh:
            self._tape.memory.made(tensor)
        if name in _EMPTY_OPERATORS:
            for tensor in fresh:  # an index that a launch has yet to compute must be one that exists
                tensor.zero_()
        else:
            self._tape.calls.append(_again(func, args, kwargs, result))
        return result

    def _fresh(self, result: object, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        given = {storage_address(tensor) for tensor in tensors}
        results = tensors_in(result)
        if any(tensor.layout != torch.strided for tensor in results):
            raise self._tape.refuse("a tensor is not strided")
        return [tensor for tensor in results if storage_address(tensor) not in given]


def _again(func: Any, args: Any, kwargs: Any, result: object) -> Call:
    """Return the call that computes a result again, into the same memory."""
    if isinstance(result, torch.Tensor):
        return lambda: result.copy_(func(*args, **kwargs))
    places = cast("tuple[torch.Tensor, ...] | list[torch.Tensor]", result)

    def call() -> None:
        for place, value in zip(tensors_in(places), tensors_in(func(*args, **kwargs)), strict=True):
            place.copy_(value)

    return call
