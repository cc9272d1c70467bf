# SPDX-License-Identifier: MIT OR Apache-2.0
"""Depthwise causal convolution with SiLU over packed sequences, whose last inputs are a state kept between steps.

`y_t[c] = silu(sum_j w[j, c] * x_{t - K + 1 + j}[c])`, summed from the oldest tap to the newest, so that a row has the
same bits in whatever step it is computed. Inputs before a step's first row come from the state, at negative places.

Shapes: K taps, W inputs of a state (the window), C channels, R rows of all sequences, S sequences.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.architecture import architecture_of
from metrale_caps.kernels.checks import FLOATS, expect_dtype, expect_inner_contiguous, expect_shape
from metrale_caps.kernels.launch import launch
from metrale_caps.kernels.tiles import next_power_of_two

WIDTHS = range(2, 9)
"""Taps that a convolution may have."""
LARGEST_WINDOW = 16
"""Inputs that a state may hold: all of them are in registers at once when it is shifted."""

_EXECUTOR_ELEMENTS = 16384
_EXECUTOR_ROWS = 64
_ROWS = 32
_LINE_BYTES = 128
_LANE_BYTES = 16


@triton.jit
def _inputs(
    history_end: tl.tensor,
    first_input: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    stride_place: tl.tensor,
    stride_row: tl.tensor,
) -> tl.tensor:
    """Return the inputs at places `at` from a step's first row on; negative ones lie in the state."""
    is_past = (at < 0)[:, None]
    past = tl.load(history_end + (at * stride_place)[:, None], mask=inside & is_past, other=0.0)
    now = tl.load(first_input + (at * stride_row)[:, None], mask=inside & (at >= 0)[:, None], other=0.0)
    return tl.where(is_past, past, now)


@triton.jit
def _state_after(
    history_end: tl.tensor,
    first_input: tl.tensor,
    row_count: tl.tensor,
    within: tl.tensor,
    stride_place: tl.tensor,
    stride_row: tl.tensor,
    WINDOW: tl.constexpr,
    PLACES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the last inputs, the places of the state they belong to, and which of these there are."""
    place = tl.arange(0, PLACES).to(tl.int64) - WINDOW
    inside = (place < 0)[:, None] & within[None, :]
    kept = _inputs(history_end, first_input, row_count + place, inside, stride_place, stride_row)
    return kept, history_end + (place * stride_place)[:, None], inside


@triton.jit
def _history_taps(
    mixed: tl.tensor,
    history_end: tl.tensor,
    weight: tl.tensor,
    row: tl.tensor,
    inside: tl.tensor,
    within: tl.tensor,
    stride_place: tl.tensor,
    stride_tap: tl.tensor,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """Add the products of the inputs in the state."""
    for tap in tl.static_range(WIDTH - 1):
        at = row + (tap - WIDTH + 1)
        place = history_end + (at * stride_place)[:, None]
        value = tl.load(place, mask=inside & (at < 0)[:, None], other=0.0).to(tl.float32)
        factor = tl.load(weight + tap * stride_tap, mask=within, other=0.0).to(tl.float32)
        mixed += value * factor[None, :]
    return mixed


@triton.jit(do_not_specialize=["dummy_slot", "tiles"])
def causal_conv_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    states: tl.tensor,
    sequence_slots: tl.tensor,
    row_starts: tl.tensor,
    intermediates: tl.tensor,
    y: tl.tensor,
    dummy_slot: tl.tensor,
    tiles: tl.tensor,
    stride_row: tl.tensor,
    stride_tap: tl.tensor,
    stride_slot: tl.tensor,
    stride_place: tl.tensor,
    stride_kept_slot: tl.tensor,
    stride_kept_row: tl.tensor,
    stride_kept_place: tl.tensor,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PLACES: tl.constexpr,
    FIRST_TAP: tl.constexpr,
    ONE_TILE: tl.constexpr,
    HAS_INTERMEDIATES: tl.constexpr,
):
    sequence = tl.program_id(0) // tiles
    first_row = (tl.program_id(0) % tiles) * ROWS
    slot = tl.load(sequence_slots + sequence)
    start = tl.load(row_starts + sequence)
    row_count = tl.load(row_starts + sequence + 1) - start
    if first_row >= row_count:
        return
    is_owned = (slot != -1) & (slot != dummy_slot)
    # of a sequence that belongs to nobody no row is looked at, and each comes out as zeros
    read_rows = tl.where(is_owned, row_count, 0)

    row = first_row.to(tl.int64) + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    within = column < CHANNELS
    inside = (row < read_rows)[:, None] & within[None, :]
    first_input = x + start.to(tl.int64) * stride_row + column[None, :]
    history_end = states + slot.to(tl.int64) * stride_slot + WINDOW * stride_place + column[None, :]

    # taps on the state come before those on rows; where a tap is on the other, it adds an exact zero
    mixed = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    if ONE_TILE:
        after, target, is_kept = _state_after(
            history_end, first_input, row_count, within & is_owned, stride_place, stride_row, WINDOW, PLACES
        )
        mixed = _history_taps(mixed, history_end, weight + column, row, inside, within, stride_place, stride_tap, WIDTH)
    else:  # noqa: PLR5501 - the one branch is the compiler's, the other the kernel's
        if first_row < WIDTH - 1:
            mixed = _history_taps(
                mixed, history_end, weight + column, row, inside, within, stride_place, stride_tap, WIDTH
            )
    for tap in tl.static_range(FIRST_TAP, WIDTH):
        at = row + (tap - WIDTH + 1)
        place = first_input + (at * stride_row)[:, None]
        value = tl.load(place, mask=inside & (at >= 0)[:, None], other=0.0).to(tl.float32)
        factor = tl.load(weight + column + tap * stride_tap, mask=within, other=0.0).to(tl.float32)
        mixed += value * factor[None, :]
    output = y + (start + row)[:, None] * CHANNELS + column[None, :]
    tl.store(output, mixed / (1.0 + tl.exp(-mixed)), mask=(row < row_count)[:, None] & within[None, :])

    if HAS_INTERMEDIATES:
        kept = intermediates + slot.to(tl.int64) * stride_kept_slot + (row * stride_kept_row)[:, None] + column[None, :]
        for place in tl.static_range(WINDOW):
            at = row + (place - WINDOW + 1)
            value = _inputs(history_end, first_input, at, inside, stride_place, stride_row)
            tl.store(kept + place * stride_kept_place, value, mask=inside)
    if ONE_TILE:
        # what one thread overwrites another may have yet to read
        tl.debug_barrier()
        tl.store(target, after, mask=is_kept)  # pyright: ignore[reportPossiblyUnboundVariable] - of the same condition


@triton.jit(do_not_specialize=["dummy_slot"])
def causal_conv_states_kernel(
    x: tl.tensor,
    states: tl.tensor,
    sequence_slots: tl.tensor,
    row_starts: tl.tensor,
    dummy_slot: tl.tensor,
    stride_row: tl.tensor,
    stride_slot: tl.tensor,
    stride_place: tl.tensor,
    CHANNELS: tl.constexpr,
    WINDOW: tl.constexpr,
    COLUMNS: tl.constexpr,
    PLACES: tl.constexpr,
):
    sequence = tl.program_id(0)
    slot = tl.load(sequence_slots + sequence)
    start = tl.load(row_starts + sequence)
    row_count = tl.load(row_starts + sequence + 1) - start
    if (row_count <= 0) | (slot == -1) | (slot == dummy_slot):
        return
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first_input = x + start.to(tl.int64) * stride_row + column[None, :]
    history_end = states + slot.to(tl.int64) * stride_slot + WINDOW * stride_place + column[None, :]
    after, target, is_kept = _state_after(
        history_end, first_input, row_count, column < CHANNELS, stride_place, stride_row, WINDOW, PLACES
    )
    tl.debug_barrier()
    tl.store(target, after, mask=is_kept)


class ConvTile(NamedTuple):
    """A tile of the convolution.

    Attributes:
        rows: rows of a program, a power of two.
        columns: channels of a program, a power of two.
        warps: warps of a program on a GPU.
    """

    rows: int
    columns: int
    warps: int


def conv_tile(device: torch.device, max_rows: int, channels: int, window: int, itemsize: int) -> ConvTile:
    """Return the tile for at most `max_rows` rows of a sequence."""
    architecture = architecture_of(device)
    rows, places = next_power_of_two(max_rows), next_power_of_two(window)
    if architecture.is_cpu:
        rows = min(rows, _EXECUTOR_ROWS)
        return ConvTile(rows, min(next_power_of_two(channels), _EXECUTOR_ELEMENTS // max(rows, places)), 1)
    # a lane has 16 bytes of a row, so that there are registers for all it needs to be in flight at once, and at most
    # four times as much of a state; few rows are of many channels
    warp_bytes = _LANE_BYTES * (64 if architecture.vendor == "amd" else 32)
    rows = min(rows, _ROWS)
    row_bytes = min(max(_LINE_BYTES, warp_bytes // rows), next_power_of_two(channels) * itemsize)
    warps = max(rows * row_bytes, places * row_bytes // 4) // warp_bytes
    return ConvTile(rows, row_bytes // itemsize, max(1, warps))


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    states: torch.Tensor,
    sequence_slots: torch.Tensor,
    row_starts: torch.Tensor,
    *,
    max_rows: int,
    dummy_slot: int | None,
    intermediates: torch.Tensor | None = None,
) -> torch.Tensor:
    """Convolve each channel with its own taps, apply SiLU, and advance the states.

    Products and sums are in fp32, and rounded once at the end. A prompt in chunks gives the bits of the prompt whole.
    A sequence without rows keeps its state. One whose slot is -1 or `dummy_slot` belongs to nobody: its rows come out
    as zeros, and neither they nor any state are read or written for it. Slots of other sequences have to differ.

    Args:
        x: `[rows, channels]` fp32, fp16 or bf16; any row stride.
        weight: `[width, channels]` fp32, fp16 or bf16, two to eight taps, the newest last; any tap stride.
        states: `[slots, window, channels]` in the dtype of `x`, the newest input last, of which the last `width - 1`
            come before a sequence's first row; at least that many and at most 16; advanced in place; outer strides
            are free.
        sequence_slots: `[sequences]` int32, the state of each sequence.
        row_starts: `[sequences + 1]` int32, the rows of each sequence.
        max_rows: upper bound of the rows of a sequence.
        dummy_slot: the slot of sequences that belong to nobody, beside -1.
        intermediates: `[slots, verify_rows, window, channels]` in the dtype of `x`, outer strides free; gets in place
            the state after row i of a sequence at `[slot, i]`. None for none.

    Returns:
        `[rows, channels]`, new, in the dtype of `x`.

    Raises:
        LaunchError: an argument does not fit; it is named.
    """
    check_conv(x, weight, states, sequence_slots, row_starts)
    check_conv_rows(x, states, max_rows, intermediates)
    rows, channels = x.shape
    sequences, window, width = sequence_slots.shape[0], states.shape[1], weight.shape[0]
    y = torch.empty(rows, channels, dtype=x.dtype, device=x.device)
    tile = conv_tile(x.device, max_rows, channels, window, x.element_size())
    tiles = triton.cdiv(max_rows, tile.rows)
    # what a tile's first rows need of a state, the last tile would overwrite
    one_tile = tiles <= 1
    kept_strides = (0, 0, 0) if intermediates is None else intermediates.stride()[:3]
    written = ("states",) * one_tile + ("intermediates",) * (intermediates is not None)
    launch(
        causal_conv_kernel,
        (sequences * tiles, triton.cdiv(channels, tile.columns)),
        writes=("y", *written),
        num_warps=tile.warps,
        x=x,
        weight=weight,
        states=states,
        sequence_slots=sequence_slots,
        row_starts=row_starts,
        intermediates=intermediates,
        y=y,
        dummy_slot=-1 if dummy_slot is None else dummy_slot,
        tiles=tiles,
        stride_row=x.stride(0),
        stride_tap=weight.stride(0),
        stride_slot=states.stride(0),
        stride_place=states.stride(1),
        stride_kept_slot=kept_strides[0],
        stride_kept_row=kept_strides[1],
        stride_kept_place=kept_strides[2],
        CHANNELS=channels,
        WIDTH=width,
        WINDOW=window,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        PLACES=next_power_of_two(window),
        FIRST_TAP=max(0, width - tile.rows) if one_tile else 0,
        ONE_TILE=one_tile,
        HAS_INTERMEDIATES=intermediates is not None,
    )
    if not one_tile:
        _write_states(x, states, sequence_slots, row_starts, dummy_slot)
    return y


def _write_states(
    x: torch.Tensor,
    states: torch.Tensor,
    sequence_slots: torch.Tensor,
    row_starts: torch.Tensor,
    dummy_slot: int | None,
) -> None:
    channels, window = x.shape[1], states.shape[1]
    tile = conv_tile(x.device, 1, channels, window, x.element_size())
    launch(
        causal_conv_states_kernel,
        (sequence_slots.shape[0], triton.cdiv(channels, tile.columns)),
        writes=("states",),
        num_warps=tile.warps,
        x=x,
        states=states,
        sequence_slots=sequence_slots,
        row_starts=row_starts,
        dummy_slot=-1 if dummy_slot is None else dummy_slot,
        stride_row=x.stride(0),
        stride_slot=states.stride(0),
        stride_place=states.stride(1),
        CHANNELS=channels,
        WINDOW=window,
        COLUMNS=tile.columns,
        PLACES=next_power_of_two(window),
    )


def check_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    states: torch.Tensor,
    sequence_slots: torch.Tensor,
    row_starts: torch.Tensor,
) -> None:
    """Check the tensors of `causal_conv`, intermediates apart.

    Raises:
        LaunchError: a shape, dtype or stride does not fit; it is named.
    """
    expect_shape("x", x, rows=None, channels=None)
    channels = x.shape[1]
    expect_shape("weight", weight, width=None, channels=channels)
    expect_shape("states", states, slots=None, window=None, channels=channels)
    expect_shape("sequence_slots", sequence_slots, sequences=None)
    expect_shape("row_starts", row_starts, sequences_and_one=sequence_slots.shape[0] + 1)
    expect_dtype("x", x, *FLOATS)
    expect_dtype("weight", weight, *FLOATS)
    expect_dtype("states", states, x.dtype)
    for name, tensor in (("sequence_slots", sequence_slots), ("row_starts", row_starts)):
        expect_dtype(name, tensor, torch.int32)
        expect_inner_contiguous(name, tensor)
    for name, tensor in (("x", x), ("weight", weight), ("states", states)):
        expect_inner_contiguous(name, tensor)
    width, window = weight.shape[0], states.shape[1]
    if width not in WIDTHS:
        raise LaunchError(f"weight has {width} taps, but a convolution has {WIDTHS[0]} to {WIDTHS[-1]} here")
    if not width - 1 <= window <= LARGEST_WINDOW:
        raise LaunchError(
            f"states have a window of {window} inputs, but {width} taps need {width - 1} to {LARGEST_WINDOW}"
        )


def check_conv_rows(x: torch.Tensor, states: torch.Tensor, max_rows: int, intermediates: torch.Tensor | None) -> None:
    """Check the bound of rows of `causal_conv` and its intermediates.

    Raises:
        LaunchError: the bound has no meaning, or the intermediates do not fit it or the states.
    """
    if max_rows < 1 and x.shape[0]:
        raise LaunchError(f"max_rows is {max_rows}, but x has {x.shape[0]} rows")
    if intermediates is None:
        return
    slots, window, channels = states.shape
    expect_shape("intermediates", intermediates, slots=slots, verify_rows=None, window=window, channels=channels)
    expect_dtype("intermediates", intermediates, x.dtype)
    expect_inner_contiguous("intermediates", intermediates)
    if max_rows > intermediates.shape[1]:
        raise LaunchError(
            f"intermediates have room for {intermediates.shape[1]} rows of a sequence, but max_rows is {max_rows}"
        )
