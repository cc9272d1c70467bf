# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention over FP8 pages against the definition in float64 on what the pages hold, and its scales."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.graphs import capture
from tests.kernels.batches import Batch, Heads, make_batch

if TYPE_CHECKING:
    from metrale_caps.kernels.operations import Operations

pytestmark = pytest.mark.usefixtures("poisoned_empty")

FP32, BF16, FP16, FP8 = torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn
SMALL = Heads(3, 1, 16, 16)
SCALES = (0.0371, 0.75)
RAGGED = [(0, 1), (16, 4), (33, 17), (0, 33), (149, 1), (131, 17)]


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize(
    ("heads", "block_size", "dtype"),
    [
        (Heads(9, 3, 64, 64), 16, BF16),
        (Heads(8, 1, 192, 128), 16, BF16),
        (Heads(2, 1, 256, 256), 16, FP16),
        (Heads(24, 1, 80, 80), 4, FP16),
        (Heads(4, 4, 96, 96), 12, FP32),
        (Heads(3, 1, 16, 24), 5, FP16),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, Heads) else str(value),
)
def test_every_shape_of_heads(
    kernels: Operations, twins: Operations, heads: Heads, block_size: int, dtype: torch.dtype
) -> None:
    """Kernel and twin give the exact attention over the numbers that the codes stand for."""
    batch = make_batch(RAGGED, heads, block_size=block_size, dtype=dtype, spare_columns=1, scales=SCALES)
    exact = batch.exact()
    exact.check(batch.attend(kernels), weights_rounded=True)
    exact.check(batch.attend(twins), weights_rounded=False)


@given(
    sequences=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=4),
    window=st.none() | st.integers(1, 40),
    splits=st.none() | st.integers(1, 5),
    dtype=st.sampled_from([FP32, BF16, FP16]),
    # numbers near 1 are then codes of every exponent, or all subnormal, or some of them saturated
    scales=st.tuples(st.floats(2.0**-8, 2.0**9, width=32), st.floats(2.0**-8, 2.0**9, width=32)),
)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_any_rows_windows_splits_and_scales(
    kernels: Operations,
    twins: Operations,
    sequences: list[tuple[int, int]],
    window: int | None,
    splits: int | None,
    dtype: torch.dtype,
    scales: tuple[float, float],
) -> None:
    """Keys before every row's window are NaN, as is what lies between heads, in free blocks and past a sequence."""
    hidden = [0 if window is None else max(0, history - window + 1) for history, _ in sequences]
    batch = make_batch(
        sequences, SMALL, block_size=4, dtype=dtype, hidden_before=hidden, spare_columns=1, scales=scales
    )
    assert batch.key_cache.isnan().any()
    exact = batch.exact(window)
    exact.check(batch.attend(kernels, window=window, splits=splits), weights_rounded=True)
    exact.check(batch.attend(twins, window=window), weights_rounded=False)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
def test_every_code_is_read_as_its_number(each: Operations, dtype: torch.dtype) -> None:
    """A row that sees one key gives its value, exactly, subnormals and NaN included."""
    batch = make_batch([(0, 1)], Heads(2, 1, 16, 256), dtype=dtype, scales=(1.0, 1.0))
    codes = torch.arange(256).to(torch.uint8)
    batch.value_cache[batch.block_tables[0, 0], 0, 0] = codes.view(FP8)
    expected = codes.view(FP8).float().to(dtype).expand(1, 2, 256)
    torch.testing.assert_close(batch.attend(each), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("part", ["key_cache", "value_cache"])
def test_visible_nan_shows_in_its_sequence_alone(each: Operations, part: str) -> None:
    """A NaN that was stored is not read as a number."""
    batch = make_batch([(5, 1), (5, 1)], SMALL, scales=SCALES)
    getattr(batch, part)[batch.block_tables[1, 0], 3, 0, 7] = float("nan")
    output = batch.attend(each)
    assert not output[0].isnan().any()
    assert output[1, :, 7].isnan().all()


@pytest.mark.parametrize("splits", [1, 3])
def test_padding_row_is_zero(each: Operations, splits: int) -> None:
    """A row of an empty sequence sees nothing, whatever its table names."""
    batch = make_batch([(16, 2), (-2, 2), (3, 2)], SMALL, dtype=BF16, scales=SCALES)
    output = batch.attend(each, splits=splits)
    assert torch.equal(output[2:4], torch.zeros_like(output[2:4]))
    batch.exact().check(output, weights_rounded=True)


def test_scales_are_read_at_each_replay(each: Operations) -> None:
    """A captured step that stores the last key and attends uses the scales, keys and slots of the moment."""
    batch = make_batch([(20, 1), (7, 1)], SMALL, scales=SCALES)
    assert batch.key_scale is not None
    assert batch.value_scale is not None
    new = torch.randn(2, 2, 1, 16)
    blocks = batch.block_tables.gather(1, torch.tensor([[1], [0]])).flatten().long()
    slots = blocks * 16 + torch.tensor([4, 7])

    def step(key_scale: torch.Tensor, value_scale: torch.Tensor) -> torch.Tensor:
        each.store_kv_fp8(new[0], new[1], slots, batch.key_cache, batch.value_cache, key_scale, value_scale)
        scaled = dataclasses.replace(batch, key_scale=key_scale, value_scale=value_scale)
        return scaled.attend(each)

    key_scale, value_scale = batch.key_scale, batch.value_scale
    before = batch.key_cache.view(torch.uint8).clone()
    graph = capture(lambda: step(key_scale, value_scale), torch.device("cpu"))
    assert torch.equal(batch.key_cache.view(torch.uint8), before), "a capture runs nothing"
    for factor in (1.0, 0.25, 3.0):
        key_scale.fill_(SCALES[0] * factor)
        value_scale.fill_(SCALES[1] * factor)
        new.normal_()
        slots[1] = -1 if factor == 3.0 else slots[1]
        graph.replay()
        replayed, cells = graph.output.clone(), batch.key_cache.view(torch.uint8).clone()
        batch.key_cache[blocks[0], 4], batch.value_cache[blocks[0], 4] = 1.0, 1.0
        assert torch.equal(step(key_scale.clone(), value_scale.clone()), replayed)
        assert torch.equal(batch.key_cache.view(torch.uint8), cells)


def _scaled(batch: Batch, **changes: Any) -> Batch:
    return dataclasses.replace(batch, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key_scale": None}, "key_scale is missing: pages of torch.float8_e4m3fn"),
        ({"value_scale": None}, "value_scale is missing"),
        ({"key_scale": torch.ones(2)}, r"key_scale must be \[numbers=1\].*2 rather than 1"),
        ({"value_scale": torch.ones(())}, r"value_scale must be \[numbers=1\]"),
        ({"value_scale": torch.ones(1).double()}, "value_scale must be torch.float32, but is torch.float64"),
    ],
)
def test_wrong_scale_is_named(each: Operations, changes: dict[str, Any], message: str) -> None:
    """FP8 pages need both scales, on the device, as fp32."""
    batch = make_batch([(3, 1)], SMALL, scales=SCALES)
    with pytest.raises(LaunchError, match=message):
        _scaled(batch, **changes).attend(each)


@pytest.mark.parametrize("name", ["key_scale", "value_scale"])
def test_scale_of_other_pages_is_refused(each: Operations, name: str) -> None:
    """A scale that would not be read is an error rather than ignored."""
    batch = make_batch([(3, 1)], SMALL, dtype=BF16)
    with pytest.raises(LaunchError, match=f"{name} is given, but pages of torch.bfloat16 hold"):
        _scaled(batch, **{name: torch.ones(1)}).attend(each)


def test_pages_of_two_dtypes_and_fp8_queries_are_refused(kernels: Operations) -> None:
    """Keys and values are both FP8 or neither, and queries never are."""
    batch, plain = make_batch([(3, 1)], SMALL, scales=SCALES), make_batch([(3, 1)], SMALL)
    with pytest.raises(LaunchError, match=r"value_cache must be torch.float8_e4m3fn, but is torch.float32"):
        _scaled(batch, value_cache=plain.value_cache).attend(kernels)
    with pytest.raises(LaunchError, match=r"value_cache must be torch.float32, but is torch.float8_e4m3fn"):
        _scaled(plain, value_cache=batch.value_cache).attend(kernels)
    with pytest.raises(LaunchError, match=r"query must be torch.float32 or .*, but is torch.float8_e4m3fn"):
        _scaled(batch, query=batch.query.to(FP8)).attend(kernels)
