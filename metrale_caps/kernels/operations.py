# SPDX-License-Identifier: MIT OR Apache-2.0
"""The operations a layer calls, as kernels or as their plain-torch twins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from typing_extensions import Protocol

from metrale_caps.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.kernels.gated_rms_norm import GateActivation
    from metrale_caps.kernels.rotary import RotaryTable


class RmsNorm(Protocol):
    """Normalises rows; shapes and effects as in `metrale_caps.kernels.rms_norm.rms_norm`."""

    def __call__(self, x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
        """Normalise `[rows, width]`."""
        ...


class AddRmsNorm(Protocol):
    """Adds in place and normalises; as in `metrale_caps.kernels.rms_norm.add_rms_norm`."""

    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add `x` to `residual` and normalise the sum."""
        ...


class RopeWriteKv(Protocol):
    """Rotates and writes pages; as in `metrale_caps.kernels.rope.rope_write_kv`."""

    def __call__(
        self,
        qkv: Tensor,
        rotary: RotaryTable,
        positions: Tensor,
        cache_slots: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        *,
        query_heads: int,
        key_value_heads: int,
        query_norm: Tensor | None = None,
        key_norm: Tensor | None = None,
        eps: float = 1e-6,
    ) -> Tensor:
        """Return the rotated queries."""
        ...


class StoreKvFp8(Protocol):
    """Writes FP8 pages; as in `metrale_caps.kernels.store_kv_fp8.store_kv_fp8`."""

    def __call__(
        self,
        keys: Tensor,
        values: Tensor,
        cache_slots: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        key_scale: Tensor,
        value_scale: Tensor,
    ) -> None:
        """Write keys and values over their scales, in place."""
        ...


class PagedAttention(Protocol):
    """Attends over pages; as in `metrale_caps.kernels.attention.paged_attention`."""

    def __call__(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
        row_starts: Tensor,
        *,
        scale: float,
        max_rows: int,
        max_length: int,
        window: int | None = None,
        splits: int | None = None,
        key_scale: Tensor | None = None,
        value_scale: Tensor | None = None,
    ) -> Tensor:
        """Return `[rows, query_heads, value_dim]`."""
        ...


class SiluMul(Protocol):
    """Gates a feed-forward; as in `metrale_caps.kernels.activation.silu_mul`."""

    def __call__(self, gate_up: Tensor) -> Tensor:
        """Return `[rows, width]` of `[rows, 2 * width]`."""
        ...


class L2Norm(Protocol):
    """Scales heads to unit length; as in `metrale_caps.kernels.l2_norm.l2_norm`."""

    def __call__(self, x: Tensor, eps: float = 1e-6) -> Tensor:
        """Return `[rows, heads, width]`, new."""
        ...


class GatedRmsNorm(Protocol):
    """Normalises heads and gates them; as in `metrale_caps.kernels.gated_rms_norm.gated_rms_norm`."""

    def __call__(self, x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, activation: GateActivation) -> Tensor:
        """Return `[rows, heads, width]`, new."""
        ...


class CausalConv(Protocol):
    """Convolves packed sequences; as in `metrale_caps.kernels.causal_conv.causal_conv`."""

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        states: Tensor,
        sequence_slots: Tensor,
        row_starts: Tensor,
        *,
        max_rows: int,
        dummy_slot: int | None,
        intermediates: Tensor | None = None,
    ) -> Tensor:
        """Return `[rows, channels]`, new; states are advanced in place."""
        ...


class DeltaGates(Protocol):
    """Computes gates; as in `metrale_caps.kernels.delta_rule.delta_gates`."""

    def __call__(
        self, decay_input: Tensor, beta_input: Tensor, a_log: Tensor, dt_bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return log decay and beta, fp32, new."""
        ...


class RecurrentDeltaRule(Protocol):
    """Runs the delta rule row by row; as in `metrale_caps.kernels.delta_rule.recurrent_delta_rule`."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        states: Tensor,
        sequence_slots: Tensor,
        row_starts: Tensor,
        *,
        scale: float,
        max_rows: int,
        dummy_slot: int | None = None,
        intermediates: Tensor | None = None,
    ) -> Tensor:
        """Return `[rows, heads, value_dim]`, new; states are advanced in place."""
        ...


class ChunkedDeltaRule(Protocol):
    """Runs the delta rule chunk by chunk; as in `metrale_caps.kernels.delta_rule.chunked_delta_rule`."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        states: Tensor,
        sequence_slots: Tensor,
        row_starts: Tensor,
        *,
        scale: float,
        max_rows: int,
        dummy_slot: int | None = None,
    ) -> Tensor:
        """Return `[rows, heads, value_dim]`, new; states are advanced in place."""
        ...


class LatentStore(Protocol):
    """Writes latents into pages; as in `metrale_caps.kernels.latent_store.latent_store`."""

    def __call__(
        self, latents: Tensor, weight: Tensor, eps: float, cache_slots: Tensor, pages: Tensor, *, rank: int
    ) -> None:
        """Normalise the first `rank` channels and write all, in place."""
        ...


class LatentAttention(Protocol):
    """Attends over pages of latents; as in `metrale_caps.kernels.latent_attention.latent_attention`."""

    def __call__(
        self,
        query: Tensor,
        latents: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
        row_starts: Tensor,
        *,
        rank: int,
        scale: float,
        max_rows: int,
        max_length: int,
        splits: int | None = None,
    ) -> Tensor:
        """Return `[rows, heads, rank]`, new."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """One implementation of every operation.

    Attributes:
        name: "triton" or "naive".
    """

    name: str
    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    rope_write_kv: RopeWriteKv
    store_kv_fp8: StoreKvFp8
    paged_attention: PagedAttention
    silu_mul: SiluMul
    l2_norm: L2Norm
    gated_rms_norm: GatedRmsNorm
    causal_conv: CausalConv
    delta_gates: DeltaGates
    recurrent_delta_rule: RecurrentDeltaRule
    chunked_delta_rule: ChunkedDeltaRule
    latent_store: LatentStore
    latent_attention: LatentAttention


def operations(name: Literal["triton", "naive"]) -> Operations:
    """Return the kernels ("triton") or their twins ("naive"). Only the first imports Triton.

    Raises:
        ConfigurationError: the name is neither.
    """
    if name == "triton":
        return _kernels()
    if name == "naive":
        return _twins()
    raise ConfigurationError(f"kernels is {name!r}; it must be 'triton' or 'naive'")


def _kernels() -> Operations:
    from metrale_caps.kernels import (
        activation,
        attention,
        causal_conv,
        delta_rule,
        gated_rms_norm,
        l2_norm,
        latent_attention,
        latent_store,
        rms_norm,
        rope,
        store_kv_fp8,
    )

    return Operations(
        name="triton",
        rms_norm=rms_norm.rms_norm,
        add_rms_norm=rms_norm.add_rms_norm,
        rope_write_kv=rope.rope_write_kv,
        store_kv_fp8=store_kv_fp8.store_kv_fp8,
        paged_attention=attention.paged_attention,
        silu_mul=activation.silu_mul,
        l2_norm=l2_norm.l2_norm,
        gated_rms_norm=gated_rms_norm.gated_rms_norm,
        causal_conv=causal_conv.causal_conv,
        delta_gates=delta_rule.delta_gates,
        recurrent_delta_rule=delta_rule.recurrent_delta_rule,
        chunked_delta_rule=delta_rule.chunked_delta_rule,
        latent_store=latent_store.latent_store,
        latent_attention=latent_attention.latent_attention,
    )


def _twins() -> Operations:
    from metrale_caps.kernels.naive import attention, causal_conv, delta_rule, fp8, head_norms, latent, rope, rows

    return Operations(
        name="naive",
        rms_norm=rows.rms_norm,
        add_rms_norm=rows.add_rms_norm,
        rope_write_kv=rope.rope_write_kv,
        store_kv_fp8=fp8.store_kv_fp8,
        paged_attention=attention.paged_attention,
        silu_mul=rows.silu_mul,
        l2_norm=head_norms.l2_norm,
        gated_rms_norm=head_norms.gated_rms_norm,
        causal_conv=causal_conv.causal_conv,
        delta_gates=delta_rule.delta_gates,
        recurrent_delta_rule=delta_rule.recurrent_delta_rule,
        chunked_delta_rule=delta_rule.chunked_delta_rule,
        latent_store=latent.latent_store,
        latent_attention=latent.latent_attention,
    )
