# SPDX-License-Identifier: MIT OR Apache-2.0
"""What pyright refuses of the forward protocols: methods of the right names that the engine could not call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
        PagedKvSpec,
        PrefillContext,
        PrefillLayer,
        RowBuffer,
        RowBuffersLayer,
        SplitPrefillLayer,
        SsmPoolLayer,
        SsmStateSpec,
        VerifyContext,
        VerifyLayer,
    )


class Misshapen:
    """Has every forward method, each wrong in one way."""

    def decode(self, hidden: Any, /) -> Any:
        """Take no context."""
        return hidden

    def decode_multi_seq(self, hidden: Any, context: DecodeContext, rows: int, /) -> Any:
        """Need to be told the number of rows."""
        return hidden[:rows] + context.max_rows

    def decode_verify(self, hidden: Any, *, context: VerifyContext) -> Any:
        """Take the context by keyword alone."""
        return hidden + context.max_rows

    def decode_verify_multi(self, hidden: Any, context: DecodeContext, /) -> Any:
        """Pass for a decode, which no draft comes from."""
        return hidden + context.row(0).max_rows

    def prefill(self, hidden: Any, context: PrefillContext, chunk: range, /) -> Any:
        """Need to be told the chunk again."""
        return hidden[chunk.start] + context.chunk_start

    def split_prefill_buffers(self, rows: int, /) -> tuple[RowBuffer, ...]:
        """Need to know how many rows there will be."""
        del rows
        return ()

    def prefill_phase1(self, hidden: Any, context: PrefillContext, buffers: Any, /) -> None:
        """Be the only phase that can be called."""
        buffers[context.chunk_start] = hidden

    def prefill_gdn_full(self, buffers: Any, /) -> None:
        """Take no context."""
        buffers[0] = None

    def prefill_phase3(self, hidden: Any, context: PrefillContext, /) -> Any:
        """Take no buffers."""
        return hidden + context.chunk_start

    def kv_cache_spec(self) -> PagedKvSpec | None:
        """Leave it open whether there are pages."""
        return None

    def ssm_state_spec(self) -> list[SsmStateSpec]:
        """Ask for several states."""
        return []

    def use_fp8_kv(self) -> None:
        """Leave no place for what finds the scales."""

    def alloc_state(self, tokens: int) -> dict[str, int]:
        """Need to know the length of a sequence that has only begun."""
        return {"tokens": tokens}

    def release_state(self, state: dict[str, int], /) -> None:
        """End a sequence."""
        state.clear()

    async def check_replay_room(self, state: dict[str, int], length: int, rows: int, /) -> None:
        """Refuse too late."""
        if length + rows < state["tokens"]:
            raise ValueError(length)

    def sync_replayed_step(self, state: dict[str, int], length: int, rows: int, /) -> None:
        """Count what a replay computed."""
        state["tokens"] = length + rows

    def snapshot_aux(self, state: dict[str, int], /) -> dict[str, int]:
        """Save what is no bytes."""
        return dict(state)

    def restore_aux(self, state: dict[str, int], snapshot: bytes, /) -> None:
        """Restore what was never saved."""
        state["tokens"] = int.from_bytes(snapshot, "little")


decode: DecodeLayer = Misshapen()  # pyright: ignore[reportAssignmentType]
decode_multi_seq: MultiSeqDecodeLayer = Misshapen()  # pyright: ignore[reportAssignmentType]
verify: VerifyLayer = Misshapen()  # pyright: ignore[reportAssignmentType]
verify_multi: MultiSeqVerifyLayer = Misshapen()  # pyright: ignore[reportAssignmentType]
prefill: PrefillLayer = Misshapen()  # pyright: ignore[reportAssignmentType]
split_prefill: SplitPrefillLayer = Misshapen()  # pyright: ignore[reportAssignmentType]
row_buffers: RowBuffersLayer = Misshapen()  # pyright: ignore[reportAssignmentType]
paged_kv: PagedKvLayer = Misshapen()  # pyright: ignore[reportAssignmentType]
ssm_pool: SsmPoolLayer = Misshapen()  # pyright: ignore[reportAssignmentType]
fp8_kv: Fp8KvLayer = Misshapen()  # pyright: ignore[reportAssignmentType]
own_state: OwnStateLayer = Misshapen()  # pyright: ignore[reportAssignmentType]
graph_replay: GraphReplayLayer = Misshapen()  # pyright: ignore[reportAssignmentType]
calibration: KvCalibration = Misshapen()  # pyright: ignore[reportAssignmentType]
aux_state: AuxStateLayer = Misshapen()  # pyright: ignore[reportAssignmentType]
