# SPDX-License-Identifier: MIT OR Apache-2.0
"""A decoder block whose mixer is a gated delta rule: gated delta nets (Qwen) and Kimi delta attention alike.

What differs between the two is how rows become inputs of the rule, whether a head has one decay or one for each key
channel, and how the output is gated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from typing_extensions import Protocol, override

from metrale_caps.layer import RowBuffer, SsmStateSpec
from metrale_caps.layers.block import PreNormBlock

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.kernels.gated_rms_norm import GateActivation
    from metrale_caps.layer import (
        DecodeContext,
        ForwardContext,
        PrefillContext,
        SplitPrefillBuffers,
        SsmLayerState,
        VerifyContext,
    )
    from metrale_caps.layers.block import BlockParts
    from metrale_caps.layers.projection import Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetShape:
    """Sizes of the mixer.

    Attributes:
        key_heads: heads of queries and keys; divides `heads`.
        heads: heads of values and of the state.
        key_dim: width of a query and a key.
        value_dim: width of a value.
        convolution_width: taps of the convolution.
    """

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    convolution_width: int

    @property
    def channels(self) -> int:
        """Channels of the convolution: all queries, all keys, all values."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim


class DeltaInputs(NamedTuple):
    """Rows projected to what the mixer needs.

    Attributes:
        mixed: `[rows, channels]`, queries, keys and values before the convolution.
        decay: `[rows, heads]` or `[rows, heads, key_dim]`, before the softplus.
        beta: `[rows, heads]`, before the sigmoid.
        gate: `[rows, heads, value_dim]`, before its activation.
    """

    mixed: Tensor
    decay: Tensor
    beta: Tensor
    gate: Tensor


class InputProjection(Protocol):
    """Projects normalised rows."""

    def __call__(self, rows: Tensor, shape: DeltaNetShape, /) -> DeltaInputs:
        """Project `[rows, hidden_size]`."""
        ...


@dataclass(frozen=True, slots=True)
class GatedDeltaNetProjection:
    """One decay for each head, as in Qwen3-Next and Qwen3.5.

    Attributes:
        packed: all queries, all keys, all values, the gate, beta and decay of each head in one projection.
    """

    packed: Projection

    def __call__(self, rows: Tensor, shape: DeltaNetShape, /) -> DeltaInputs:
        """Project `[rows, hidden_size]`."""
        heads = shape.heads
        sizes = [shape.channels, heads * shape.value_dim, heads, heads]
        mixed, gate, beta, decay = torch.split(self.packed(rows), sizes, dim=-1)
        return DeltaInputs(mixed, decay, beta, gate.view(rows.shape[0], heads, shape.value_dim))


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDeltaProjection:
    """One decay for each key channel, as in Kimi Linear; decay and gate go through a narrow projection.

    Attributes:
        packed: all queries, all keys, all values, beta of each head, and the narrow rows of decay and gate in one
            projection.
        decay: `[heads * key_dim, narrow]`.
        gate: `[heads * value_dim, narrow]`.
    """

    packed: Projection
    decay: Projection
    gate: Projection

    def __call__(self, rows: Tensor, shape: DeltaNetShape, /) -> DeltaInputs:
        """Project `[rows, hidden_size]`."""
        heads = shape.heads
        sizes = [shape.channels, heads, self.decay.weight.shape[1], self.gate.weight.shape[1]]
        mixed, beta, narrow_decay, narrow_gate = torch.split(self.packed(rows), sizes, dim=-1)
        decay = self.decay(narrow_decay).view(rows.shape[0], heads, shape.key_dim)
        gate = self.gate(narrow_gate).view(rows.shape[0], heads, shape.value_dim)
        return DeltaInputs(mixed, decay, beta, gate)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetWeights:
    """Weights of the mixer.

    Attributes:
        inputs: what projects rows to the inputs of the convolution and the gates.
        convolution: `[width, channels]`, the newest tap last.
        a_log: `[heads]`, logarithm of the decay's rate.
        dt_bias: `[heads]` or `[heads, key_dim]`, added to the decay's input.
        output_norm: `[value_dim]`, RMS norm of each head's output.
        output_gate: activation of the gate that multiplies it.
        output: `[hidden_size, heads * value_dim]`.
    """

    inputs: InputProjection
    convolution: Tensor
    a_log: Tensor
    dt_bias: Tensor
    output_norm: Tensor
    output_gate: GateActivation
    output: Projection


class _RuleInputs(NamedTuple):
    """What the rule is given: normalised queries and keys, values, log decay and beta, all `[rows, heads, ...]`."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor
    beta: Tensor


class StepState(NamedTuple):
    """Where the sequences of a step have their state.

    Attributes:
        memory: the states by slot.
        slots: `[sequences]` int32.
        dummy_slot: the slot of padding rows, or None.
    """

    memory: SsmLayerState
    slots: Tensor
    dummy_slot: int | None


class DeltaNetBlock(PreNormBlock, ABC):
    """Pre-norm decoder block: delta rule, then feed-forward, each added to the residual stream.

    Prefill takes chunks of rows, decode and verify the recurrence. Where the state lies is for subclasses to say.
    """

    def __init__(self, *, mixer: DeltaNetWeights, shape: DeltaNetShape, block: BlockParts) -> None:
        super().__init__(block)
        self._mixer = mixer
        self._shape = shape

    @abstractmethod
    def _state(self, context: ForwardContext) -> StepState:
        """Return where the sequences of a step have their state."""

    def state_spec(self) -> SsmStateSpec:
        """Return the state of one sequence: `[width - 1, channels]` and `[heads, value_dim, key_dim]`."""
        shape = self._shape
        return SsmStateSpec(
            convolution=(shape.convolution_width - 1, shape.channels),
            recurrent=(shape.heads, shape.value_dim, shape.key_dim),
        )

    def _recur(self, residual: Tensor, context: ForwardContext, *, keeps_rows: bool = False) -> Tensor:
        """Advance each sequence row by row."""
        state = self._state(context)
        kept, recurrent = state.memory.intermediates() if keeps_rows else (None, None)
        rule, gate = self._rule_inputs(residual, context, state, kept)
        mixed = self.operations.recurrent_delta_rule(
            *rule,
            state.memory.recurrent,
            state.slots,
            context.row_starts,
            scale=self._scale,
            max_rows=context.max_rows,
            dummy_slot=state.dummy_slot,
            intermediates=recurrent,
        )
        return self._finish(residual, mixed, gate)

    def _chunk(self, residual: Tensor, context: ForwardContext) -> Tensor:
        """Advance each sequence chunk by chunk."""
        state = self._state(context)
        rule, gate = self._rule_inputs(residual, context, state, None)
        return self._finish(residual, self._chunked_rule(rule, context, state), gate)

    def _chunked_rule(self, rule: _RuleInputs, context: ForwardContext, state: StepState) -> Tensor:
        return self.operations.chunked_delta_rule(
            *rule,
            state.memory.recurrent,
            state.slots,
            context.row_starts,
            scale=self._scale,
            max_rows=context.max_rows,
            dummy_slot=state.dummy_slot,
        )

    @property
    def _scale(self) -> float:
        return self._shape.key_dim**-0.5

    def _rule_inputs(
        self, residual: Tensor, context: ForwardContext, state: StepState, intermediates: Tensor | None
    ) -> tuple[_RuleInputs, Tensor]:
        """Norm, project, convolve and gate rows; the convolution's state is advanced. Return the output's gate too."""
        operations, mixer, shape = self.operations, self._mixer, self._shape
        inputs = mixer.inputs(self.normalised(residual), shape)
        mixed = operations.causal_conv(
            inputs.mixed,
            mixer.convolution,
            state.memory.convolution,
            state.slots,
            context.row_starts,
            max_rows=context.max_rows,
            dummy_slot=state.dummy_slot,
            intermediates=intermediates,
        )
        rows, both_heads = residual.shape[0], 2 * shape.key_heads
        both, value = torch.split(mixed, [both_heads * shape.key_dim, shape.heads * shape.value_dim], dim=-1)
        unit = operations.l2_norm(both.view(rows, both_heads, shape.key_dim))
        log_decay, beta = operations.delta_gates(inputs.decay, inputs.beta, mixer.a_log, mixer.dt_bias)
        rule = _RuleInputs(
            unit[:, : shape.key_heads],
            unit[:, shape.key_heads :],
            value.view(rows, shape.heads, shape.value_dim),
            log_decay,
            beta,
        )
        return rule, inputs.gate

    def _finish(self, residual: Tensor, mixed: Tensor, gate: Tensor) -> Tensor:
        """Norm, gate and project the rule's output, add it, and add the feed-forward's; in place."""
        mixer = self._mixer
        gated = self.operations.gated_rms_norm(
            mixed, gate, mixer.output_norm, self.norm_eps, activation=mixer.output_gate
        )
        return self.add_mixed(residual, mixer.output(gated.flatten(1)))


class DeltaNetLayer(DeltaNetBlock):
    """Such a block with its state in the engine's pool.

    It computes any rows of any sequences, and leaves the state after each row where a verify step asks for it. It does
    not rewind by itself: the engine brings the pool's state back.
    """

    def uses_ssm_pool(self) -> bool:
        """Its state lies in the engine's pool."""
        return True

    def is_ssm_layer(self) -> bool:
        """A split prefill runs it in phases."""
        return True

    def ssm_state_spec(self) -> SsmStateSpec:
        """Return the state this layer needs for a sequence."""
        return self.state_spec()

    def split_prefill_buffers(self) -> tuple[RowBuffer, ...]:
        """Return what the layer keeps of a row between phases."""
        shape = self._shape
        decay = self._mixer.dt_bias.shape
        return (
            RowBuffer("query_key", (2 * shape.key_heads, shape.key_dim)),
            RowBuffer("value", (shape.heads, shape.value_dim)),
            RowBuffer("gate", (shape.heads, shape.value_dim)),
            RowBuffer("log_decay", tuple(decay), float32=True),
            RowBuffer("beta", (shape.heads,), float32=True),
            RowBuffer("output", (shape.heads, shape.value_dim)),
        )

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:
        """Advance one sequence by one token; see `DecodeLayer`."""
        return self._recur(hidden, context)

    def decode_multi_seq(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:
        """Advance N sequences by one token each; see `MultiSeqDecodeLayer`."""
        return self._recur(hidden, context)

    def decode_verify(self, hidden: Tensor, context: VerifyContext, /) -> Tensor:
        """Compute K rows of one sequence, keeping the state after each; see `VerifyLayer`.

        Raises:
            LookupError: the pool has no room for the states of rows.
        """
        return self._recur(hidden, context, keeps_rows=True)

    def decode_verify_multi(self, hidden: Tensor, context: VerifyContext, /) -> Tensor:
        """Compute ragged rows of several sequences, likewise; see `MultiSeqVerifyLayer`."""
        return self._recur(hidden, context, keeps_rows=True)

    def prefill(self, hidden: Tensor, context: PrefillContext, /) -> Tensor:
        """Compute one chunk of a prompt; see `PrefillLayer`."""
        return self._chunk(hidden, context)

    def prefill_phase1(self, hidden: Tensor, context: PrefillContext, buffers: SplitPrefillBuffers, /) -> None:
        """Project, convolve and gate one chunk's rows into the buffers; see `SplitPrefillLayer`."""
        rule, gate = self._rule_inputs(hidden, context, self._state(context), None)
        heads = self._shape.key_heads
        query_key = buffers.chunk("query_key", context)
        query_key[:, :heads].copy_(rule.query)
        query_key[:, heads:].copy_(rule.key)
        for name, rows in (("value", rule.value), ("gate", gate), ("log_decay", rule.log_decay), ("beta", rule.beta)):
            buffers.chunk(name, context).copy_(rows)

    def prefill_gdn_full(self, context: PrefillContext, buffers: SplitPrefillBuffers, /) -> None:
        """Run the recurrence over the whole range; see `SplitPrefillLayer`."""
        query_key, heads = buffers.whole("query_key"), self._shape.key_heads
        value, log_decay, beta = (buffers.whole(name) for name in ("value", "log_decay", "beta"))
        rule = _RuleInputs(query_key[:, :heads], query_key[:, heads:], value, log_decay, beta)
        buffers.whole("output").copy_(self._chunked_rule(rule, context, self._state(context)))

    def prefill_phase3(self, hidden: Tensor, context: PrefillContext, buffers: SplitPrefillBuffers, /) -> Tensor:
        """Norm, gate, project and add one chunk's output; see `SplitPrefillLayer`."""
        return self._finish(hidden, buffers.chunk("output", context), buffers.chunk("gate", context))

    @override
    def _state(self, context: ForwardContext) -> StepState:
        memory = context.ssm_state()
        return StepState(memory, context.sequence_slots, memory.dummy_slot)
