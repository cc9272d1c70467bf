# SPDX-License-Identifier: MIT OR Apache-2.0
"""A delta rule block that owns its state: a host copy for each sequence, and one on the device while it is used there.

Once a device copy exists it is the state, and the host copy only what it was made from; a snapshot reads the device
copy, and a restored state has none until the next step. One sequence at a time, never in a graph: what Kimi K3's host
fallback is in the engine that the queries come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from typing_extensions import override

from metrale_caps.errors import SlotError, SnapshotError
from metrale_caps.layer import SsmLayerState
from metrale_caps.layers.delta_net import DeltaNetBlock, StepState

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from metrale_caps.layer import DecodeContext, ForwardContext, PrefillContext
    from metrale_caps.layers.block import BlockParts
    from metrale_caps.layers.delta_net import DeltaNetShape, DeltaNetWeights

_NAMES = ("convolution", "recurrent")


@dataclass(slots=True, eq=False)
class HostDeltaState:
    """One sequence's state.

    Attributes:
        host: the host copy, with one slot; None once it is released.
        device: the device copy, which is the state wherever there is one.
    """

    host: SsmLayerState | None
    device: SsmLayerState | None = None

    @property
    def current(self) -> SsmLayerState:
        """The copy that is the state.

        Raises:
            SlotError: it was released.
        """
        current = self.device or self.host
        if current is None:
            raise SlotError("this state was released, and is used again")
        return current

    def to_device(self, device: torch.device) -> None:
        """Make the device copy, if there is none."""
        if self.device is None:
            self.device = _moved(self.current, device)

    def to_host(self) -> None:
        """Bring the host copy up to date and drop the device copy."""
        if self.device is not None:
            self.host, self.device = _moved(self.device, torch.device("cpu")), None

    def release(self) -> None:
        """Drop both copies.

        Raises:
            SlotError: it was released before.
        """
        _ = self.current
        self.host = self.device = None


class HostStateDeltaNetLayer(DeltaNetBlock):
    """Such a block with states of its own.

    Its answers follow from that: no graph, no batch, no pool, no rollback by a lower cursor.
    """

    def __init__(
        self, *, mixer: DeltaNetWeights, shape: DeltaNetShape, block: BlockParts, keeps_device_copy: bool = True
    ) -> None:
        """Build it.

        Args:
            mixer: weights of the mixer.
            shape: sizes of the mixer.
            block: the block but for its mixer.
            keeps_device_copy: leave the state on the device between steps; otherwise it is brought to the host after
                each.
        """
        super().__init__(mixer=mixer, shape=shape, block=block)
        self._keeps_device_copy = keeps_device_copy

    def uses_ssm_pool(self) -> bool:
        """It allocates its own state."""
        return False

    def decode_graph_unsupported(self) -> bool:
        """Copies between host and device cannot be captured."""
        return True

    def decode_multi_seq_unsupported(self) -> bool:
        """It computes one sequence at a time."""
        return True

    def decode_verify_multi_unsupported(self) -> bool:
        """It computes one sequence at a time."""
        return True

    def decode_rollback_unsupported(self) -> bool:
        """Its state does not follow a lower cursor."""
        return True

    def graph_stale_on_new_sequence(self) -> bool:
        """Its buffers are new for each sequence."""
        return True

    def alloc_state(self) -> HostDeltaState:
        """Return zeros on the host."""
        spec = self.state_spec()
        dtype = self._mixer.convolution.dtype
        return HostDeltaState(
            SsmLayerState(torch.zeros(1, *spec.convolution, dtype=dtype), torch.zeros(1, *spec.recurrent))
        )

    def release_state(self, state: HostDeltaState, /) -> None:
        """Drop both copies; see `OwnStateLayer`."""
        state.release()

    def snapshot_aux(self, state: HostDeltaState, /) -> bytes:
        """Return the state in the safetensors format, read from the device copy where there is one."""
        from safetensors.torch import save

        return save({name: getattr(state.current, name).cpu().contiguous() for name in _NAMES})

    def restore_aux(self, state: HostDeltaState, snapshot: bytes, /) -> None:
        """Bring a state to what was saved; its device copy is dropped.

        Raises:
            SnapshotError: the bytes are no snapshot of such a state; nothing was changed.
        """
        saved = _checked_snapshot(snapshot, state.current)
        host = _moved(state.current, torch.device("cpu"))
        for name in _NAMES:
            getattr(host, name).copy_(saved[name])
        state.host, state.device = host, None

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:
        """Advance one sequence by one token; see `DecodeLayer`."""
        return self._stepped(self._recur, hidden, context)

    def prefill(self, hidden: Tensor, context: PrefillContext, /) -> Tensor:
        """Compute one chunk of a prompt; see `PrefillLayer`."""
        return self._stepped(self._chunk, hidden, context)

    def _stepped(
        self, forward: Callable[[Tensor, ForwardContext], Tensor], hidden: Tensor, context: ForwardContext
    ) -> Tensor:
        state = _own(context)
        state.to_device(hidden.device)
        hidden = forward(hidden, context)
        if not self._keeps_device_copy:
            state.to_host()
        return hidden

    @override
    def _state(self, context: ForwardContext) -> StepState:
        return StepState(_own(context).current, torch.zeros_like(context.sequence_slots), None)


def _own(context: ForwardContext) -> HostDeltaState:
    (state,) = context.states
    return cast("HostDeltaState", state)


def _moved(state: SsmLayerState, device: torch.device) -> SsmLayerState:
    return SsmLayerState(*(getattr(state, name).to(device, copy=True) for name in _NAMES))


def _checked_snapshot(snapshot: bytes, state: SsmLayerState) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        saved: dict[str, Tensor] = load(snapshot)
    except SafetensorError as error:
        raise SnapshotError(f"the bytes cannot be read as safetensors: {error}") from error
    wanted = {name: (tuple(getattr(state, name).shape), getattr(state, name).dtype) for name in _NAMES}
    found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in saved.items()}
    if found != wanted:
        raise SnapshotError(f"it holds {found}, but a state of this layer is {wanted}")
    return saved
