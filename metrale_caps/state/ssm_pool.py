# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pool of recurrent state: for each slot, what all recurrent layers keep of one sequence.

A slot is one run of bytes that holds every layer's convolution and recurrent state, so that a sequence's whole state is
zeroed, saved or brought back with one copy. Layers see it as tensors with a row for each slot.

Invariants: addresses never change. Slot `max_slots`, after the claimable ones, is the dummy of padding rows. A claimed
slot starts as zeros, belongs to one sequence, and is released once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from metrale_caps.errors import ConfigurationError, SlotError
from metrale_caps.layer import SsmLayerState, SsmStateSpec, forward_method

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALIGNMENT = 256
"""Bytes; the start of every state is aligned for the widest accesses."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One state of one layer inside a slot."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def of(self, memory: torch.Tensor) -> torch.Tensor:
        """Return this part of `[..., slot bytes]` as `[..., *shape]`."""
        run = memory[..., self.offset : self.offset + math.prod(self.shape) * self.dtype.itemsize]
        return run.view(self.dtype).view(*memory.shape[:-1], *self.shape)


def ssm_specs(layers: Sequence[object], own_state_layers: Sequence[int]) -> tuple[SsmStateSpec | None, ...]:
    """Return what each layer asks of the pool, None for a layer that asks for nothing or owns its state.

    Raises:
        ConfigurationError: a layer asks for something else than a `SsmStateSpec`.
    """
    own = frozenset(own_state_layers)
    return tuple(None if index in own else _spec(index, layer) for index, layer in enumerate(layers))


def _spec(index: int, layer: object) -> SsmStateSpec | None:
    method = forward_method(layer, "ssm_state_spec")
    spec: object = None if method is None else method()
    if method is not None and not isinstance(spec, SsmStateSpec):
        raise ConfigurationError(
            f"layer {index} ({type(layer).__qualname__}): `ssm_state_spec` returned {type(spec).__qualname__}; it must "
            "return a `metrale_caps.SsmStateSpec`"
        )
    return cast("SsmStateSpec | None", spec)


class SsmPool:
    """Slots of recurrent state with a fixed stride.

    Attributes:
        max_slots: claimable slots.
        layers: each layer's part, None for a layer that asked for none.
        bytes_per_slot: bytes of one sequence's state.
    """

    def __init__(
        self,
        specs: Sequence[SsmStateSpec | None],
        max_slots: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        verify_rows: int = 0,
    ) -> None:
        """Allocate it, all zeros.

        Args:
            specs: what each layer asks for.
            max_slots: claimable slots.
            dtype: type of the weights.
            device: where the weights are.
            verify_rows: rows of a sequence in a verify step at most: so many states of single rows are held beside the
                state, and a checkpoint to go back to if no draft is accepted. 0 for neither.
        """
        self.max_slots = max_slots
        self._claimed: set[int] = set()
        self._verified: dict[int, int] = {}  # rows of the verify step since the checkpoint of a slot
        parts, bytes_per_slot = _placed(specs, dtype)
        self.bytes_per_slot: int = bytes_per_slot
        self._memory = _zeros(device, max_slots + 1, self.bytes_per_slot)
        self._checkpoints = _zeros(device, max_slots + 1, self.bytes_per_slot) if verify_rows else None
        self._rows = _zeros(device, max_slots + 1, verify_rows, self.bytes_per_slot) if verify_rows else None
        self.layers: tuple[SsmLayerState | None, ...] = tuple(
            None if pair is None else self._layer(*pair) for pair in parts
        )

    def _layer(self, convolution: _Part, recurrent: _Part) -> SsmLayerState:
        state = convolution.of(self._memory), recurrent.of(self._memory)
        if self._rows is None:
            return SsmLayerState(*state)
        return SsmLayerState(*state, convolution.of(self._rows), recurrent.of(self._rows))

    @property
    def num_bytes(self) -> int:
        """Bytes of everything that was allocated."""
        held = (self._memory, self._checkpoints, self._rows)
        return sum(memory.numel() for memory in held if memory is not None)

    @property
    def verify_rows(self) -> int:
        """Rows of a sequence in a verify step at most."""
        return 0 if self._rows is None else self._rows.shape[1]

    def claim(self, slot: int) -> None:
        """Give a slot to a new sequence, with a state of zeros.

        Raises:
            SlotError: there is no such slot, or a sequence holds it.
        """
        if not 0 <= slot < self.max_slots:
            raise SlotError(f"slot {slot} cannot be claimed; slots go from 0 to {self.max_slots - 1}")
        if slot in self._claimed:
            raise SlotError(f"slot {slot} is claimed already; release it first")
        self._claimed.add(slot)
        self._memory[slot].zero_()

    def release(self, slot: int) -> None:
        """Take a slot back.

        Raises:
            SlotError: no sequence holds it.
        """
        self._check_claimed(slot)
        self._claimed.remove(slot)
        self._verified.pop(slot, None)

    def checkpoint(self, slot: int, rows: int) -> None:
        """Save a sequence's state before a verify step of `rows` rows.

        Raises:
            SlotError: no sequence holds the slot, or the pool has no room for so many rows.
        """
        self._check_claimed(slot)
        if self._checkpoints is None or not 0 < rows <= self.verify_rows:
            raise SlotError(
                f"a verify step of {rows} rows in slot {slot} could not be taken back; the pool holds the states of "
                f"{self.verify_rows} rows"
            )
        self._checkpoints[slot].copy_(self._memory[slot])
        self._verified[slot] = rows

    def accept(self, slot: int, rows: int) -> None:
        """Bring a sequence's state to what it was after the first rows of the verify step since its checkpoint.

        Args:
            slot: the sequence's slot.
            rows: rows that are kept; with 0 the checkpoint is restored.

        Raises:
            SlotError: no sequence holds the slot, it has no checkpoint, or the step had fewer rows.
        """
        self._check_claimed(slot)
        verified = self._verified.get(slot)
        if verified is None or self._checkpoints is None or self._rows is None:
            raise SlotError(f"slot {slot} has no checkpoint; make one before each verify step")
        if not 0 <= rows <= verified:
            raise SlotError(f"{rows} rows of slot {slot} cannot be kept; its verify step had {verified}")
        kept = self._checkpoints[slot] if not rows else self._rows[slot, rows - 1]
        self._memory[slot].copy_(kept)
        del self._verified[slot]

    def _check_claimed(self, slot: int) -> None:
        if slot not in self._claimed:
            raise SlotError(f"slot {slot} is not claimed; the claimed slots are {sorted(self._claimed)}")


def _placed(specs: Sequence[SsmStateSpec | None], dtype: torch.dtype) -> tuple[list[tuple[_Part, _Part] | None], int]:
    """Return where the states of each layer lie inside a slot, and the bytes of a slot."""
    parts: list[tuple[_Part, _Part] | None] = []
    end = 0
    for spec in specs:
        if spec is None:
            parts.append(None)
            continue
        convolution = _Part(end, spec.convolution, dtype)
        end = _after(convolution)
        recurrent = _Part(end, spec.recurrent, torch.float32)
        end = _after(recurrent)
        parts.append((convolution, recurrent))
    return parts, end


def _after(part: _Part) -> int:
    end = part.offset + math.prod(part.shape) * part.dtype.itemsize
    return -(-end // _ALIGNMENT) * _ALIGNMENT


def _zeros(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8, device=device)
