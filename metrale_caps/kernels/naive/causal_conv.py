# SPDX-License-Identifier: MIT OR Apache-2.0
"""Twin of the causal convolution: sequences with as many rows as one another are convolved together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metrale_caps.kernels.host import host_integers
from metrale_caps.kernels.recording import recordable

if TYPE_CHECKING:
    from torch import Tensor


def _conv_result(x: Tensor, *_: object, **_options: object) -> Tensor:
    return x.new_empty(x.shape)


@recordable(_conv_result)
def causal_conv(
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
    """Convolve, advance states in place; see the kernel's launcher of the same name. The bound changes nothing here."""
    del max_rows
    y = x.new_zeros(x.shape)
    window, width = states.shape[1], weight.shape[0]
    taps = weight.float()
    starts, owners = host_integers(row_starts), host_integers(sequence_slots)
    alike: dict[int, list[int]] = {}
    for sequence, slot in enumerate(owners):
        if slot not in {-1, dummy_slot}:
            alike.setdefault(starts[sequence + 1] - starts[sequence], []).append(sequence)
    alike.pop(0, None)
    for count, members in alike.items():
        slots = torch.tensor([owners[member] for member in members], device=x.device)
        firsts = torch.tensor([starts[member] for member in members], device=x.device)
        rows = firsts[:, None] + torch.arange(count, device=x.device)
        # of each sequence its window and then its rows
        inputs = torch.cat([states[slots], x[rows]], dim=1)
        states[slots] = inputs[:, count:]
        if intermediates is not None:
            for row in range(count):
                intermediates[slots, row] = inputs[:, row + 1 : row + 1 + window]
        y[rows] = _convolved(inputs[:, window - width + 1 :].float(), taps).to(x.dtype)
    return y


def _convolved(inputs: Tensor, taps: Tensor) -> Tensor:
    """Return the SiLU of fp32 `[sequences, width - 1 + rows, channels]` convolved with `[width, channels]`."""
    width = taps.shape[0]
    rows = inputs.shape[1] - width + 1
    mixed = inputs[:, :rows] * taps[0]
    for tap in range(1, width):
        mixed += inputs[:, tap : tap + rows] * taps[tap]
    # torch's own SiLU has other bits at the end of a tensor than inside
    return mixed / mixed.neg().exp_().add_(1.0)
