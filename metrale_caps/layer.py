# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a layer implements and what it is handed: the forward protocols and the contexts of a step.

A layer is one decoder block: it takes hidden rows `[rows, hidden_size]` and returns hidden rows of the same shape and
dtype. The rows it is handed are its own for the call: it may overwrite them and return them. Everything else it
needs comes in a context, which is frozen and made once a step.

Only `decode` is required. What else a layer has decides how a step runs:

| protocol | when a layer lacks it |
|---|---|
| `DecodeLayer` | required |
| `MultiSeqDecodeLayer` | `decode` per row, each row with its own context |
| `VerifyLayer` | `decode` per row |
| `MultiSeqVerifyLayer` | the layer must declare `decode_verify_multi_unsupported` |
| `PrefillLayer` | `decode` per row |
| `SplitPrefillLayer` | required of a layer that says `is_ssm_layer` |
| `PagedKvLayer` | the layer is handed no paged cache |
| `Fp8KvLayer` | its pages have the type of the weights, also in an FP8 cache |
| `OwnStateLayer` | required of a layer that answers False to `uses_ssm_pool` |
| `GraphReplayLayer` | nothing to do |
| `AuxStateLayer` | nothing to save |

This module imports torch for type checking only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import Protocol, runtime_checkable

from metrale_caps.lookup import find_member

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class PagedKvSpec:
    """The shape of the paged cache a layer asks for.

    Attributes:
        key_value_heads: heads of keys and values.
        head_dim: width of a key.
        value_head_dim: width of a value.
    """

    key_value_heads: int
    head_dim: int
    value_head_dim: int


@dataclass(frozen=True, slots=True)
class PagedKv:
    """One layer's pages.

    Attributes:
        keys: `[blocks, block_size, key_value_heads, head_dim]`.
        values: `[blocks, block_size, key_value_heads, value_head_dim]`.
        key_scale: `[1]` fp32, the number that a code of FP8 pages is multiplied with; None for other pages. It may
            change between two steps and stays where it is.
        value_scale: likewise for values.
    """

    keys: Tensor
    values: Tensor
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None

    @property
    def block_size(self) -> int:
        """Tokens a block holds."""
        return self.keys.shape[1]

    def scales(self) -> tuple[Tensor, Tensor]:
        """Return the scales of keys and values of FP8 pages.

        Raises:
            LookupError: these pages are not FP8.
        """
        if self.key_scale is None or self.value_scale is None:
            raise LookupError(f"pages of {self.keys.dtype} have no scales; only FP8 pages do")
        return self.key_scale, self.value_scale


class KvCalibration(Protocol):
    """Finds the scales of one layer's FP8 pages from what is written to them first.

    Attributes:
        frozen: whether the scales are final; a layer with a calibration answers this to `fp8_calibration_frozen`.
    """

    @property
    def frozen(self) -> bool:
        """Whether the scales are final."""
        ...

    def observe(self, keys: Tensor, values: Tensor, cache_slots: Tensor, /) -> None:
        """Look at a step's rows; to be called before every store, with what the store is then called with.

        Until the scales are final it reads values on the host, may change the scales, and writes to the layer's pages
        what was stored before, at the new scales. While a step is captured it does nothing.

        Args:
            keys: `[rows, key_value_heads, head_dim]`, as they would be stored without FP8.
            values: `[rows, key_value_heads, value_head_dim]`.
            cache_slots: `[rows]` int64; rows with -1 count for nothing.
        """
        ...


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
    states: tuple[object, ...] = ()

    def for_layer(self, kv: PagedKv | None, states: tuple[object, ...]) -> Self:
        """Return the same step as one layer sees it, with its own pages and states."""
        return replace(self, kv=kv, states=states)

    def paged_kv(self) -> PagedKv:
        """Return this layer's pages.

        Raises:
            LookupError: the layer has no `kv_cache_spec`, so no pages were allocated for it.
        """
        if self.kv is None:
            raise LookupError("this layer has no paged cache; it must have a `kv_cache_spec` method to be given one")
        return self.kv


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
            states=self.states,
        )


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
    """A recurrent layer whose prefill runs in phases: per chunk, once over the whole range, per chunk."""

    def prefill_phase1(self, hidden: Tensor, context: PrefillContext, buffers: Any, /) -> None:
        """Project, convolve and gate one chunk's rows into the whole range's buffers."""
        ...

    def prefill_gdn_full(self, context: PrefillContext, buffers: Any, /) -> None:
        """Run the recurrence once over the whole range."""
        ...

    def prefill_phase3(self, hidden: Tensor, context: PrefillContext, buffers: Any, /) -> Tensor:
        """Normalise, project and add one chunk's output; return its hidden rows."""
        ...


@runtime_checkable
class PagedKvLayer(Protocol):
    """A layer that keeps keys and values in the engine's pages."""

    def kv_cache_spec(self) -> PagedKvSpec:
        """Return the shape of the pages this layer needs. Asked once, when the model is built."""
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
    PagedKvLayer,
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
