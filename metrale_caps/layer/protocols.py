# SPDX-License-Identifier: MIT OR Apache-2.0
"""The forward protocols: what a layer implements, each method optional but `decode`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import Protocol, runtime_checkable

from metrale_caps.lookup import find_member

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from metrale_caps.layer.caches import KvCalibration, PagedKvSpec, SsmStateSpec
    from metrale_caps.layer.contexts import DecodeContext, PrefillContext, VerifyContext
    from metrale_caps.layer.row_buffers import RowBuffer, SplitPrefillBuffers


@runtime_checkable
class DecodeLayer(Protocol):
    """A layer that decodes one token of one sequence. Every layer must."""

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:
        """Advance one sequence by one token.

        Args:
            hidden: `[1, hidden_size]`; may be overwritten.
            context: one row, one sequence.

        Returns:
            `[1, hidden_size]`.
        """
        ...


@runtime_checkable
class MultiSeqDecodeLayer(Protocol):
    """A layer that decodes one token of each of several sequences in one call."""

    def decode_multi_seq(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:
        """Advance N sequences by one token each.

        Args:
            hidden: `[N, hidden_size]`; may be overwritten.
            context: N rows, N sequences.

        Returns:
            `[N, hidden_size]`.
        """
        ...


@runtime_checkable
class VerifyLayer(Protocol):
    """A layer that verifies the drafts of one sequence in one call."""

    def decode_verify(self, hidden: Tensor, context: VerifyContext, /) -> Tensor:
        """Compute K rows of one sequence, each seeing the rows before it.

        Args:
            hidden: `[K, hidden_size]`; may be overwritten.
            context: K rows, one sequence.

        Returns:
            `[K, hidden_size]`.
        """
        ...


@runtime_checkable
class MultiSeqVerifyLayer(Protocol):
    """A layer that verifies the drafts of several sequences in one call."""

    def decode_verify_multi(self, hidden: Tensor, context: VerifyContext, /) -> Tensor:
        """Compute ragged rows of several sequences, in sequence order.

        Args:
            hidden: `[rows, hidden_size]`; may be overwritten.
            context: `rows_per_sequence` says how many rows each sequence has.

        Returns:
            `[rows, hidden_size]`.
        """
        ...


@runtime_checkable
class PrefillLayer(Protocol):
    """A layer that computes a chunk of a prompt in one call."""

    def prefill(self, hidden: Tensor, context: PrefillContext, /) -> Tensor:
        """Compute one chunk of one sequence, after the history its pages and states hold.

        Args:
            hidden: `[rows, hidden_size]`; may be overwritten.
            context: the chunk.

        Returns:
            `[rows, hidden_size]`.
        """
        ...


@runtime_checkable
class SplitPrefillLayer(Protocol):
    """A recurrent layer whose prefill runs in phases: per chunk, once over the whole range, per chunk.

    A range is the whole of a long prompt. Memory for activations is then bounded by a chunk, while the recurrence runs
    in one launch, whose inner chunks start at the range's start. Other layers compute it chunk by chunk.
    """

    def prefill_phase1(self, hidden: Tensor, context: PrefillContext, buffers: SplitPrefillBuffers, /) -> None:
        """Project, convolve and gate one chunk's rows into the whole range's buffers.

        Args:
            hidden: `[rows, hidden_size]`; must not be changed, since the third phase adds to it.
            context: the chunk.
            buffers: what the layer asked for.
        """
        ...

    def prefill_gdn_full(self, context: PrefillContext, buffers: SplitPrefillBuffers, /) -> None:
        """Run the recurrence once over the whole range.

        Args:
            context: the whole range as one chunk.
            buffers: what the layer asked for, filled by the first phase.
        """
        ...

    def prefill_phase3(self, hidden: Tensor, context: PrefillContext, buffers: SplitPrefillBuffers, /) -> Tensor:
        """Normalise, project and add one chunk's output; return its hidden rows.

        Args:
            hidden: `[rows, hidden_size]` as the first phase saw them; may be overwritten.
            context: the chunk.
            buffers: what the layer asked for.
        """
        ...


@runtime_checkable
class RowBuffersLayer(Protocol):
    """A layer that keeps something of each row between the phases of a split prefill."""

    def split_prefill_buffers(self) -> tuple[RowBuffer, ...]:
        """Return what it keeps of a row. Asked once, when the model is built."""
        ...


@runtime_checkable
class PagedKvLayer(Protocol):
    """A layer that keeps keys and values in the engine's pages."""

    def kv_cache_spec(self) -> PagedKvSpec:
        """Return the shape of the pages this layer needs. Asked once, when the model is built."""
        ...


@runtime_checkable
class SsmPoolLayer(Protocol):
    """A recurrent layer that keeps its state in the engine's pool, unless it answers False to `uses_ssm_pool`."""

    def ssm_state_spec(self) -> SsmStateSpec:
        """Return the state this layer needs for a sequence. Asked once, when the model is built."""
        ...


@runtime_checkable
class Fp8KvLayer(Protocol):
    """A layer that can keep its pages in FP8 (E4M3).

    In every forward method it hands keys and values to the calibration, if it has one, and then stores them with the
    scales of `PagedKv`; `metrale_caps.kernels.store_kv_fp8` does so, and attention takes the scales.
    """

    def use_fp8_kv(self, calibration: KvCalibration | None, /) -> None:
        """Keep pages in FP8 from now on. Called at most once, before the first step.

        Args:
            calibration: what finds the scales; the layer's answer to `fp8_calibration_frozen` is then `frozen`. None
                where the scales are given, and the answer stays None.
        """
        ...


@runtime_checkable
class OwnStateLayer(Protocol):
    """A layer that allocates its own state for each sequence.

    Both methods are called under `torch.inference_mode()`, as the forward methods are: a state's tensors are then
    inference tensors, which may be changed in place here and there and nowhere else.
    """

    def alloc_state(self) -> object:
        """Return the state of a new sequence."""
        ...

    def release_state(self, state: Any, /) -> None:
        """Release what `alloc_state` returned. Called exactly once for each state."""
        ...


@runtime_checkable
class GraphReplayLayer(Protocol):
    """A layer with host bookkeeping that a graph replay bypasses.

    A replay runs none of the layer's Python. A capture runs it once without computing anything, so that bookkeeping
    may then be ahead: both methods speak of absolute lengths and never of "one more".
    """

    def check_replay_room(self, state: Any, length: int, rows: int, /) -> None:
        """Raise if rows `length` to `length + rows` do not fit; asked before a capture or replay, which then is none.

        Args:
            state: the layer's own state of the sequence, or None.
            length: tokens before the step.
            rows: rows of the step.
        """
        ...

    def sync_replayed_step(self, state: Any, length: int, rows: int, /) -> None:
        """Bring host bookkeeping to `length + rows`: after a replay, or with 0 rows after a capture that failed.

        It may be ahead of `length` and is then brought back; behind it, rows are missing, which is an error to raise.
        """
        ...


@runtime_checkable
class AuxStateLayer(Protocol):
    """A layer with state that must travel with a snapshot of its sequence."""

    def snapshot_aux(self, state: Any, /) -> bytes | None:
        """Return what a restored sequence needs, or None if there is nothing."""
        ...

    def restore_aux(self, state: Any, snapshot: bytes, /) -> None:
        """Bring `state` to what `snapshot_aux` saved."""
        ...


_PROTOCOLS = (
    DecodeLayer,
    MultiSeqDecodeLayer,
    VerifyLayer,
    MultiSeqVerifyLayer,
    PrefillLayer,
    SplitPrefillLayer,
    RowBuffersLayer,
    PagedKvLayer,
    SsmPoolLayer,
    Fp8KvLayer,
    OwnStateLayer,
    GraphReplayLayer,
    AuxStateLayer,
)
FORWARD_STUBS: Mapping[str, object] = {
    name: stub for protocol in _PROTOCOLS for name, stub in vars(protocol).items() if not name.startswith("_")
}
"""Every forward method by name, as its protocol has it: without a body."""


def forward_method(layer: object, name: str) -> Callable[..., Any] | None:
    """Return a layer's forward method, or None where it has none or only inherits the protocol's stub.

    This is how the engine looks at a layer, once, when a model is built: `isinstance` with a runtime protocol costs
    microseconds and answers differently for a compiled layer on different versions of Python.
    """
    method = find_member(layer, name, FORWARD_STUBS[name])
    return method if callable(method) else None
