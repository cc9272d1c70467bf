# SPDX-License-Identifier: MIT OR Apache-2.0
"""Whenever it freezes, all that was written is there at the scales that hold, and those cover it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import KvScaleError
from metrale_caps.kernels.graphs import capture
from metrale_caps.kernels.operations import operations
from metrale_caps.kernels.recording import is_capturing
from metrale_caps.layer import PagedKv, PagedKvSpec
from metrale_caps.state.fp8_calibration import LARGEST, PROVISIONAL_SCALE, Fp8Calibration, check_scales
from metrale_caps.state.paged_kv import FP8, PageLayout, allocate_pages

_STORE = operations("naive").store_kv_fp8
_CELLS = 32
_CPU = torch.device("cpu")


def _make_pages() -> PagedKv:
    (pages,) = allocate_pages([PageLayout(PagedKvSpec(2, 8, 4), FP8)], _CELLS // 4 - 1, 4, device=_CPU)
    assert pages is not None
    return pages


def _rows(seed: int, rows: int, size: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(rows, 2, 8, generator=generator) * size
    return keys, torch.randn(rows, 2, 4, generator=generator) * size * 0.1


def _write(
    pages: PagedKv, calibration: Fp8Calibration, keys: torch.Tensor, values: torch.Tensor, slots: list[int]
) -> None:
    cache_slots = torch.tensor(slots)
    calibration.observe(keys, values, cache_slots)
    _STORE(keys, values, cache_slots, pages.keys, pages.values, *pages.scales())


def _read(pages: PagedKv) -> tuple[torch.Tensor, torch.Tensor]:
    key_scale, value_scale = pages.scales()
    return pages.keys.float().flatten(0, 1) * key_scale, pages.values.float().flatten(0, 1) * value_scale


def _check_held(pages: PagedKv, written: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Each cell holds what was written to it last, within half a unit in the last place of E4M3."""
    for read, scale, which in zip(_read(pages), pages.scales(), (0, 1), strict=True):
        for cell, rows in written.items():
            expected = rows[which]
            allowed = expected.abs() * 2**-4 + scale * 2**-10
            assert ((read[cell] - expected).abs() <= allowed).all()


_BATCHES = st.lists(
    st.tuples(st.lists(st.integers(-1, _CELLS - 1), min_size=1, max_size=6), st.sampled_from([0.01, 1.0, 300.0])),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(batches=_BATCHES, window=st.integers(1, 40))
def test_every_cell_belongs_to_the_scales_that_hold(batches: list[tuple[list[int], float]], window: int) -> None:
    """Through any writes, cells written again, padding among them: before the freeze, at it and after it."""
    pages = _make_pages()
    places = [tensor.data_ptr() for tensor in pages.scales()]
    calibration = Fp8Calibration(pages, _STORE, capturing=is_capturing, window=window)
    written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    tokens, peak = 0, 0.0
    for seed, (cells, size) in enumerate(batches):
        slots = list({cell: None for cell in cells if cell >= 0}) + [cell for cell in cells if cell < 0]
        keys, values = _rows(seed, len(slots), size)
        keys[len(slots) - slots.count(-1) :] = torch.nan
        before = calibration.frozen
        if before:
            keys, values = keys.clamp(-peak, peak), values.clamp(-peak * 1e-6, peak * 1e-6)
        _write(pages, calibration, keys, values, slots)
        for row, slot in enumerate(slots):
            if slot >= 0:
                written[slot] = (keys[row], values[row])
                tokens += not before
                peak = max(peak, float(keys[row].abs().max()) if not before else 0.0)
        _check_held(pages, written)
        assert calibration.frozen == (tokens >= window)
    assert calibration.tokens == tokens
    assert [tensor.data_ptr() for tensor in pages.scales()] == places
    if calibration.frozen:
        torch.testing.assert_close(pages.scales()[0].item(), peak / LARGEST)
        assert calibration.staged_bytes == 0


def test_rows_of_nobody_count_for_nothing() -> None:
    """A dummy pass neither fills the window nor shows in the scales, however long it is."""
    pages = _make_pages()
    calibration = Fp8Calibration(pages, _STORE, capturing=is_capturing, window=4)
    keys, values = _rows(0, 8, size=1000.0)
    _write(pages, calibration, keys, values, [-1] * 8)
    assert (calibration.tokens, calibration.frozen, calibration.staged_bytes) == (0, False, 0)
    keys, values = _rows(1, 4)
    _write(pages, calibration, keys, values, [0, 1, 2, 3])
    assert calibration.frozen
    torch.testing.assert_close(pages.scales()[0].item(), keys.abs().max().item() / LARGEST)


def test_zeros_alone_do_not_freeze() -> None:
    """Their scale stays finite and above 0, they are read as zeros, and the first other number settles it."""
    pages = _make_pages()
    calibration = Fp8Calibration(pages, _STORE, capturing=is_capturing, window=2)
    keys, values = _rows(0, 3)
    _write(pages, calibration, keys, torch.zeros_like(values), [0, 1, 2])
    assert not calibration.frozen
    assert pages.scales()[1].item() == PROVISIONAL_SCALE
    assert _read(pages)[1][:3].eq(0).all()
    _write(pages, calibration, *_rows(1, 1), [3])
    assert calibration.frozen
    assert all(0 < scale.item() < 1 for scale in pages.scales())
    assert _read(pages)[1][:3].eq(0).all()


def test_values_that_are_always_zero_freeze_in_the_end() -> None:
    """Or a layer that has none would hold back the graphs of all for ever."""
    pages = _make_pages()
    calibration = Fp8Calibration(pages, _STORE, capturing=is_capturing, window=2)
    for step in range(8):
        assert not calibration.frozen
        keys, values = _rows(step, 1)
        _write(pages, calibration, keys, torch.zeros_like(values), [step])
    assert calibration.frozen
    assert pages.scales()[1].item() == PROVISIONAL_SCALE


def test_numbers_that_are_not_finite_do_not_show_in_a_scale() -> None:
    """One overflow would make the scale infinite, and all that is read NaN."""
    pages = _make_pages()
    calibration = Fp8Calibration(pages, _STORE, capturing=is_capturing, window=2)
    keys, values = _rows(0, 2)
    keys[0, 0, 0], keys[1, 0, 1], values[0, 1, 1] = torch.inf, torch.nan, -torch.inf
    _write(pages, calibration, keys, values, [0, 1])
    assert calibration.frozen
    finite = keys[keys.isfinite()].abs().max().item()
    torch.testing.assert_close(pages.scales()[0].item(), finite / LARGEST)


def test_headroom_leaves_room_for_larger_numbers() -> None:
    """What is twice as large as anything observed still fits at a headroom of 2."""
    pages = _make_pages()
    calibration = Fp8Calibration(pages, _STORE, capturing=is_capturing, window=4, headroom=2.0)
    keys, values = _rows(0, 4)
    _write(pages, calibration, keys, values, [0, 1, 2, 3])
    _write(pages, calibration, keys * 2, values * 2, [4, 5, 6, 7])
    _check_held(pages, {4 + row: (2 * keys[row], 2 * values[row]) for row in range(4)})


def test_captured_step_observes_nothing() -> None:
    """What a capture hands over holds no numbers yet."""
    pages = _make_pages()
    calibration = Fp8Calibration(pages, _STORE, capturing=is_capturing, window=1)
    keys, values = _rows(0, 1)

    def body() -> torch.Tensor:
        calibration.observe(keys, values, torch.zeros(1, dtype=torch.int64))
        return keys + 1

    capture(body, _CPU)
    assert (calibration.tokens, calibration.frozen) == (0, False)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-50, 1e300, float("nan"), float("inf")])
@pytest.mark.parametrize("which", [0, 1])
def test_scale_that_fp32_cannot_hold_above_zero_is_refused(scale: float, which: int) -> None:
    """With the layer, the tensor and what came."""
    scales = (scale, 0.5) if which == 0 else (0.5, scale)
    with pytest.raises(KvScaleError, match=rf"{('key', 'value')[which]} scale of layer 7 \(Layer\) is "):
        check_scales(scales, layer_index=7, layer_type="Layer")


def test_many_zeros_at_once_do_not_freeze_either() -> None:
    """However long the chunk that they come in."""
    pages = _make_pages()
    calibration = Fp8Calibration(pages, _STORE, capturing=is_capturing, window=2)
    keys, values = _rows(0, 16)
    _write(pages, calibration, keys, torch.zeros_like(values), list(range(16)))
    assert not calibration.frozen


def test_rewrite_that_fails_leaves_everything_at_the_old_scales() -> None:
    """And the window open: the same rows count once when they are written again."""
    pages, failing = _make_pages(), [False]

    def store(*arguments: Any, **named: Any) -> None:
        if failing[0]:
            failing[0] = False
            raise RuntimeError("out of memory")
        _STORE(*arguments, **named)

    calibration = Fp8Calibration(pages, store, capturing=is_capturing, window=6)
    keys, values = _rows(0, 4)
    _write(pages, calibration, keys, values, [0, 1, 2, 3])
    before = [tensor.clone() for tensor in (*pages.scales(), pages.keys.float()[:1], pages.values.float()[:1])]
    failing[0] = True
    with pytest.raises(RuntimeError, match="out of memory"):
        _write(pages, calibration, keys * 9, values * 9, [4, 5, 6, 7])
    assert (calibration.frozen, calibration.tokens) == (False, 4)
    for was, now in zip(before, (*pages.scales(), pages.keys.float()[:1], pages.values.float()[:1]), strict=True):
        assert torch.equal(was, now)
    _write(pages, calibration, keys * 9, values * 9, [4, 5, 6, 7])
    assert (calibration.frozen, calibration.tokens) == (True, 8)
    _check_held(pages, {row: (keys[row], values[row]) for row in range(4)})
