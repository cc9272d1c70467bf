# SPDX-License-Identifier: MIT OR Apache-2.0
"""The ten capability queries, one protocol each.

A layer opts in by having the method; it inherits and registers nothing. Each protocol has exactly one member, a
method without arguments and without side effects, named as the query. Inheriting a protocol is allowed and makes a
checker compare the signature; an inherited method without a body of its own still counts as missing.

The meanings are those of the Rust trait `LayerCapabilities` in the inference engine Metrale, where these queries
were first written. Default, fold and time of asking stand in `metrale_caps.capabilities.QUERIES`.
"""

from __future__ import annotations

from typing_extensions import Protocol, runtime_checkable

__all__ = [
    "DecodeGraphUnsupported",
    "DecodeMultiSeqUnsupported",
    "DecodeRollbackUnsupported",
    "DecodeVerifyMultiUnsupported",
    "Fp8CalibrationFrozen",
    "GraphStaleOnNewSequence",
    "IsSsmLayer",
    "SupportsReplayTailSplit",
    "UsesLocalMlaPrefill",
    "UsesSsmPool",
]


@runtime_checkable
class UsesLocalMlaPrefill(Protocol):
    """A layer that says whether its prefill sees only the tokens it is handed.

    Asks: does this layer's prefill attend only over the keys and values it assembles for the rows of the current
        call, and not over the sequence's cached history? (Multi-head latent attention that expands its latents
        locally does.)
    Default: False.
    Asked by: the prefix lookup, at each lookup; any layer that says True decides for the stack.
    If the answer is wrong: False although True: after a prefix-cache hit the prompt's cached beginning is invisible
        and the model answers fluently from the end of the prompt alone. True although False: prompts are recomputed
        that need not be.
    """

    def uses_local_mla_prefill(self) -> bool:
        """Return True if prefill attends only over the rows it is handed."""
        ...


@runtime_checkable
class Fp8CalibrationFrozen(Protocol):
    """A layer that says where its online FP8 calibration of the KV cache stands.

    Asks: are this layer's FP8 scales final? None: the layer calibrates nothing. False: its window is still open.
        True: the scales are frozen.
    Default: None.
    Asked by: every step; no graph is captured or replayed while any layer says False.
    If the answer is wrong: a layer that never observes but says False keeps graphs off for ever. One that says True
        or None inside its window lets a graph bake a provisional scale.
    """

    def fp8_calibration_frozen(self) -> bool | None:
        """Return None without a calibrator, else whether its scales are final."""
        ...


@runtime_checkable
class DecodeGraphUnsupported(Protocol):
    """A layer that says its decode step cannot be captured in a graph.

    Asks: does this layer's decode do something a captured graph would freeze or forbid (a host round trip, a
        data-dependent branch, a choice between dense and sparse paths)?
    Default: False.
    Asked by: the route plan, once, when the model is built; one True makes the whole model decode eagerly.
    If the answer is wrong: False although True: replays repeat the branch taken at capture, for instance dense
        attention long after sparse selection should have begun. There is no error, only wrong attention.
    """

    def decode_graph_unsupported(self) -> bool:
        """Return True if decode must not be captured."""
        ...


@runtime_checkable
class DecodeMultiSeqUnsupported(Protocol):
    """A layer that says it cannot decode several sequences in one call.

    Asks: must each sequence's decode run on its own (because the layer indexes a buffer by a fixed row, or selects
        one index set for the whole batch)?
    Default: False.
    Asked by: the route plan, when the model is built; it governs the batched decode and the fused decode and
        prefill step alike.
    If the answer is wrong: False although True: rows compute with another sequence's data. True although False:
        batches run one sequence at a time.
    """

    def decode_multi_seq_unsupported(self) -> bool:
        """Return True if a batch must be decoded one sequence at a time."""
        ...


@runtime_checkable
class DecodeRollbackUnsupported(Protocol):
    """A layer that says its decode state cannot be rewound.

    Asks: does this layer keep state that lowering the sequence's cursor does not rewind and that no engine snapshot
        holds (a monotonic counter, a window ring, an n-gram history, a partly filled compressor group)?
    Default: False.
    Asked by: each rollback; one True makes `rollback_to_boundary` decline with `LayerStateNotRewindable`, before
        anything has changed.
    If the answer is wrong: False although True: tokens are rewound and the layer is not; text degenerates later.
        True although False: a watchdog ends sequences it could have steered back.
    """

    def decode_rollback_unsupported(self) -> bool:
        """Return True if the layer's state does not follow a lowered cursor."""
        ...


@runtime_checkable
class DecodeVerifyMultiUnsupported(Protocol):
    """A layer that says it cannot verify drafts of several sequences at once.

    Asks: is `decode_verify_multi` (rows of several sequences, in sequence order) impossible for this layer?
    Default: False.
    Asked by: each verify; one True makes `can_batch_verify_dispatch` refuse, and sequences are verified one by one.
    If the answer is wrong: False although True: the request dies in the middle of a verify, or rows of one sequence
        advance another's state. True although False: verifies are not batched.
    """

    def decode_verify_multi_unsupported(self) -> bool:
        """Return True if drafts must be verified one sequence at a time."""
        ...


@runtime_checkable
class GraphStaleOnNewSequence(Protocol):
    """A layer that says its captured graphs die with the sequence they were captured for.

    Asks: does a graph captured for a slot bake addresses or data that belong to the slot's current sequence (the
        layer owns per-sequence buffers)?
    Default: False.
    Asked by: each time a sequence is freed or its slot moved; True drops the slot's graphs of every kind, and only
        those.
    If the answer is wrong: False although True: the slot's next sequence replays addresses of freed buffers. True
        although False: graphs are captured again for every sequence.
    """

    def graph_stale_on_new_sequence(self) -> bool:
        """Return True if a slot's graphs must be dropped when its sequence ends."""
        ...


@runtime_checkable
class IsSsmLayer(Protocol):
    """A layer that says its prefill can run in the three phases of a recurrent layer.

    Asks: should a split prefill run `prefill_phase1`, `prefill_gdn_full` and `prefill_phase3` on this layer?
    Default: False.
    Asked by: the route plan, per layer, when the model is built.
    If the answer is wrong: False although True: long prompts lose the one launch over the whole range. True
        although the phases are missing: the model is refused when it is built.
    """

    def is_ssm_layer(self) -> bool:
        """Return True if a split prefill runs this layer in phases."""
        ...


@runtime_checkable
class UsesSsmPool(Protocol):
    """A layer that says whether its recurrent state lives in the engine's pool.

    Asks: is this layer's recurrent state kept in the slot-addressed pool of the engine?
    Default: **True**, the one query whose default grants something: a layer that owns its state must say False.
    Asked by: sequence set-up, per layer. True: a recurrent layer is handed an `SsmLayerState` with pool addresses
        and its `alloc_state` is never called. False: `alloc_state` is called and the layer owns what it returns.
    If the answer is wrong: True although False: the layer's own state is never allocated. False although True: the
        pool's slot is never written and snapshots save nothing of this layer.
    """

    def uses_ssm_pool(self) -> bool:
        """Return False if the layer allocates and owns its recurrent state."""
        ...


@runtime_checkable
class SupportsReplayTailSplit(Protocol):
    """A layer that says a prefill pass may be cut inside for a snapshot without changing bits.

    Asks: can this layer capture its state at a row inside a prefill pass, and compute the rows after the cut exactly
        as a pass that starts at the cut would?
    Default: False.
    Asked by: each prefill whose last chunk spans the cut; all layers of a stack that is not empty must say True.
        Otherwise the chunk runs as two passes.
    If the answer is wrong: True although False: a snapshot holds state that no pass produced, and the answer after
        a cache hit differs from the cold one. False although True: prompts pay for a second pass.
    """

    def supports_replay_tail_split(self) -> bool:
        """Return True if a pass can be captured at an inner row, bit for bit."""
        ...
