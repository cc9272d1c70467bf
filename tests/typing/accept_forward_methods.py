# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every type checker accepts of the forward protocols: a layer that has all of their methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metrale_caps import PagedKvSpec, RowBuffer, SsmStateSpec

if TYPE_CHECKING:
    from metrale_caps import (
        AuxStateLayer,
        DecodeContext,
        DecodeLayer,
        Fp8KvLayer,
        GraphReplayLayer,
        KvCalibration,
        MultiSeqDecodeLayer,
        MultiSeqVerifyLayer,
        OwnStateLayer,
        PagedKvLayer,
        PrefillContext,
        PrefillLayer,
        RowBuffersLayer,
        SplitPrefillBuffers,
        SplitPrefillLayer,
        SsmPoolLayer,
        VerifyContext,
        VerifyLayer,
    )


class Calibrates:
    """Finds the scales at the first rows."""

    def __init__(self) -> None:
        """Start without scales."""
        self.frozen = False

    def observe(self, keys: Any, values: Any, cache_slots: Any, /) -> None:
        """Take these for all that there will be."""
        self.frozen = keys is not values and cache_slots is not None


class Whole:
    """Has every forward method, and inherits nothing."""

    def decode(self, hidden: Any, context: DecodeContext, /) -> Any:
        """Add a number that the host knows."""
        return hidden + context.max_rows

    def decode_multi_seq(self, hidden: Any, context: DecodeContext, /) -> Any:
        """Add a number that the host knows."""
        return hidden + context.max_rows

    def decode_verify(self, hidden: Any, context: VerifyContext, /) -> Any:
        """Add a number that the host knows."""
        return hidden + context.max_rows

    def decode_verify_multi(self, hidden: Any, context: VerifyContext, /) -> Any:
        """Add a number that the host knows."""
        return hidden + context.max_rows

    def prefill(self, hidden: Any, context: PrefillContext, /) -> Any:
        """Add a number that the host knows."""
        return hidden + context.max_rows

    def split_prefill_buffers(self) -> tuple[RowBuffer, ...]:
        """Keep one number of each row."""
        return (RowBuffer("rows", (1,), float32=True),)

    def prefill_phase1(self, hidden: Any, context: PrefillContext, buffers: SplitPrefillBuffers, /) -> None:
        """Fill the buffers with one chunk."""
        buffers.chunk("rows", context).copy_(hidden)

    def prefill_gdn_full(self, context: PrefillContext, buffers: SplitPrefillBuffers, /) -> None:
        """Run the recurrence."""
        buffers.whole("rows").add_(context.max_length)

    def prefill_phase3(self, hidden: Any, context: PrefillContext, buffers: SplitPrefillBuffers, /) -> Any:
        """Add one chunk's output."""
        return hidden + buffers.chunk("rows", context)

    def kv_cache_spec(self) -> PagedKvSpec:
        """Ask for the smallest pages."""
        return PagedKvSpec(key_value_heads=1, head_dim=16, value_head_dim=16)

    def ssm_state_spec(self) -> SsmStateSpec:
        """Ask for the smallest state."""
        return SsmStateSpec(convolution=(3, 16), recurrent=(1, 16, 16))

    def use_fp8_kv(self, calibration: KvCalibration | None, /) -> None:
        """Keep what finds the scales."""
        self.calibration = calibration

    def alloc_state(self) -> dict[str, int]:
        """Start a sequence."""
        return {"tokens": 0}

    def release_state(self, state: dict[str, int], /) -> None:
        """End a sequence."""
        state.clear()

    def check_replay_room(self, state: dict[str, int], length: int, rows: int, /) -> None:
        """Refuse nothing that keeps the order of tokens."""
        if length + rows < state["tokens"]:
            raise ValueError(length)

    def sync_replayed_step(self, state: dict[str, int], length: int, rows: int, /) -> None:
        """Count what a replay computed."""
        state["tokens"] = length + rows

    def snapshot_aux(self, state: dict[str, int], /) -> bytes:
        """Save the count."""
        return state["tokens"].to_bytes(8, "little")

    def restore_aux(self, state: dict[str, int], snapshot: bytes, /) -> None:
        """Restore the count."""
        state["tokens"] = int.from_bytes(snapshot, "little")


decode: DecodeLayer = Whole()
decode_multi_seq: MultiSeqDecodeLayer = Whole()
verify: VerifyLayer = Whole()
verify_multi: MultiSeqVerifyLayer = Whole()
prefill: PrefillLayer = Whole()
split_prefill: SplitPrefillLayer = Whole()
row_buffers: RowBuffersLayer = Whole()
paged_kv: PagedKvLayer = Whole()
ssm_pool: SsmPoolLayer = Whole()
fp8_kv: Fp8KvLayer = Whole()
own_state: OwnStateLayer = Whole()
graph_replay: GraphReplayLayer = Whole()
calibration: KvCalibration = Calibrates()
aux_state: AuxStateLayer = Whole()
