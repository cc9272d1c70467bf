# SPDX-License-Identifier: MIT OR Apache-2.0
"""The gated delta rule, with one decay for each head (gated delta nets) or for each key channel (Kimi delta attention).

A head keeps a state `S` of `[value_dim, key_dim]` fp32 and computes for each row, in order:

    S <- S * exp(g)                      g: log decay, a number or one for each key channel
    S <- S + beta * (v - S k) k^T        what the state says of k is corrected towards v
    o  = S (scale * q)

Yang, Kautz, Hatamizadeh (2024), "Gated Delta Networks"; Kimi Team (2025), "Kimi Linear". The recurrence itself serves
decode and verify; prefill takes 64 rows at a time, which gives the same numbers but for rounding.
"""

from __future__ import annotations

from metrale_caps.kernels.delta_rule.chunked import chunked_delta_rule as chunked_delta_rule
from metrale_caps.kernels.delta_rule.gates import delta_gates as delta_gates
from metrale_caps.kernels.delta_rule.recurrent import recurrent_delta_rule as recurrent_delta_rule

__all__ = ["chunked_delta_rule", "delta_gates", "recurrent_delta_rule"]
