# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a layer is handed besides its hidden rows: the contexts of a step, frozen and made once for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.layer.caches import PagedKv, SsmLayerState


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardContext:
    """What a layer is handed besides its hidden rows. Rows are ordered by sequence.

    Attributes:
        positions: `[rows]` int64, each row's position in its sequence.
        cache_slots: `[rows]` int64, where each row's key and value go: block * block_size + offset in the block;
            -1 for a row that writes nothing.
        block_tables: `[sequences, blocks]` int32, each sequence's blocks in order; entries past those its length
            needs hold no meaning.
        lengths: `[sequences]` int32, tokens visible after this step: the history and this step's rows.
        row_starts: `[sequences + 1]` int32, sequence s owns rows `row_starts[s]` to `row_starts[s + 1]`.
        sequence_slots: `[sequences]` int32, the slot each sequence claimed.
        max_rows: upper bound of the rows of one sequence, known to the host.
        max_length: upper bound of `lengths`, known to the host.
        padding_rows: rows at the end that belong to nobody: dummy slot, dummy block, length 0, cache slot -1. Their
            hidden rows are zeros when a layer is called, and are set to zero after it. Only a stack in which no layer
            owns its state is padded.
        kv: this layer's pages, or None for a layer that asks for none.
        ssm: this layer's part of the pool of recurrent state, or None for a layer that keeps none there.
        states: this layer's own state of each sequence, None where it has none.
    """

    positions: Tensor
    cache_slots: Tensor
    block_tables: Tensor
    lengths: Tensor
    row_starts: Tensor
    sequence_slots: Tensor
    max_rows: int
    max_length: int
    padding_rows: int = 0
    kv: PagedKv | None = None
    ssm: SsmLayerState | None = None
    states: tuple[object, ...] = ()

    def for_layer(self, kv: PagedKv | None, ssm: SsmLayerState | None, states: tuple[object, ...]) -> Self:
        """Return the same step as one layer sees it, with its own pages and states."""
        return replace(self, kv=kv, ssm=ssm, states=states)

    def paged_kv(self) -> PagedKv:
        """Return this layer's pages.

        Raises:
            LookupError: the layer has no `kv_cache_spec`, so no pages were allocated for it.
        """
        if self.kv is None:
            raise LookupError("this layer has no paged cache; it must have a `kv_cache_spec` method to be given one")
        return self.kv

    def ssm_state(self) -> SsmLayerState:
        """Return this layer's part of the pool of recurrent state; sequence s has the slot `sequence_slots[s]` there.

        Raises:
            LookupError: the layer has no `ssm_state_spec`, or answers False to `uses_ssm_pool`.
        """
        if self.ssm is None:
            raise LookupError(
                "this layer has no state in the pool; it must have an `ssm_state_spec` method and answer True to "
                "`uses_ssm_pool` to be given one"
            )
        return self.ssm


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeContext(ForwardContext):
    """A decode step: one row for each sequence."""

    def row(self, index: int) -> DecodeContext:
        """Return the step of one row alone, so that a layer never sees another sequence's data."""
        rows = slice(index, index + 1)
        return replace(
            self,
            positions=self.positions[rows],
            cache_slots=self.cache_slots[rows],
            block_tables=self.block_tables[rows],
            lengths=self.lengths[rows],
            row_starts=self.row_starts[:2],
            sequence_slots=self.sequence_slots[rows],
            padding_rows=0,
            states=self.states[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyContext(ForwardContext):
    """A verify step: the last committed token and its drafts, for each sequence.

    Attributes:
        rows_per_sequence: rows of each sequence, in order.
    """

    rows_per_sequence: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MidchunkCapture:
    """A snapshot to be taken inside a prefill pass.

    Attributes:
        cap_local: row of the pass at which the state is captured; rows from there on are the tail.
        cap_local_early: an earlier row that is captured too, or None.
        snapshot_slot: slot of the snapshot pool for `cap_local`.
        snapshot_slot_early: slot for `cap_local_early`, or None.
        replay_tail: whether the tail must have the bits a pass starting at `cap_local` would give it.
    """

    cap_local: int
    snapshot_slot: int
    cap_local_early: int | None = None
    snapshot_slot_early: int | None = None
    replay_tail: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillContext(ForwardContext):
    """One chunk of one sequence's prompt.

    Attributes:
        chunk_start: position of the first row.
        midchunk_capture: a snapshot to take inside this pass, or None.
    """

    chunk_start: int
    midchunk_capture: MidchunkCapture | None = None

    def decode_row(self, index: int) -> DecodeContext:
        """Return row `index` of the chunk as a decode step of its own."""
        rows = slice(index, index + 1)
        return DecodeContext(
            positions=self.positions[rows],
            cache_slots=self.cache_slots[rows],
            block_tables=self.block_tables,
            lengths=(self.positions[rows] + 1).to(self.lengths.dtype),
            row_starts=self.row_starts.clamp(max=1),
            sequence_slots=self.sequence_slots,
            max_rows=1,
            max_length=self.max_length,
            kv=self.kv,
            ssm=self.ssm,
            states=self.states,
        )
