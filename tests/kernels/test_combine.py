# SPDX-License-Identifier: MIT OR Apache-2.0
"""Combining parts of attention: the mean weighted by their log-sum-exp, and parts that saw no key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.combine import combine

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.usefixtures("tile_sizes")

NAN = float("nan")
EMPTY = float("-inf")


def _parts(rows: int, heads: int, splits: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    partial = torch.randn(rows, heads, splits, width, generator=generator)
    logs = torch.randn(rows, heads, splits, generator=generator) * 8
    return partial, logs, torch.full((rows, heads, width), NAN)


@given(
    rows=st.integers(1, 40),
    shape=st.sampled_from([(3, 2, 16), (1, 3, 24), (9, 7, 40)]),
    empty=st.floats(0, 1),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=20, derandomize=True, deadline=None)
def test_parts_are_weighted_by_what_they_saw(
    rows: int, shape: tuple[int, int, int], empty: float, dtype: torch.dtype
) -> None:
    """Any number of parts, some of them or all empty and NaN, gives the exact mean."""
    partial, logs, output = _parts(rows, *shape)
    hidden = torch.rand(logs.shape, generator=torch.Generator().manual_seed(rows)) < empty
    weights = torch.exp2(logs.double()).masked_fill(hidden, 0.0)
    total = weights.sum(2, keepdim=True)
    weights = torch.where(total > 0, weights / total, 0.0)
    exact = (weights[..., None] * partial.double()).sum(2)
    logs[hidden] = EMPTY
    partial[hidden] = NAN
    output = output.to(dtype)
    assert combine(partial, logs, output) is output
    unit = torch.finfo(dtype).eps / 2
    assert bool(((output.double() - exact).abs() <= unit * exact.abs() * (1 + unit) + 4e-6).all())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("content", [0.0, NAN, float("inf")])
@pytest.mark.parametrize("log", [-300.0, -1.5, 0.0, 700.0])
def test_empty_part_leaves_the_other_as_it_is(order: tuple[int, int], content: float, log: float) -> None:
    """A part beside an empty one comes out with the same bits, whatever the empty part holds, in either order."""
    partial, logs, output = _parts(5, 2, 2, 24)
    logs[:, :, order[0]], logs[:, :, order[1]] = log, EMPTY
    partial[:, :, order[1]] = content
    assert torch.equal(combine(partial, logs, output), partial[:, :, order[0]])


def test_only_empty_parts_are_zero() -> None:
    """Where no part saw a key the result is zero, even if the parts hold NaN."""
    partial, logs, output = _parts(5, 2, 2, 24)
    logs.fill_(EMPTY)
    partial.fill_(NAN)
    assert torch.equal(combine(partial, logs, output), torch.zeros_like(output))


def test_parts_of_equal_weight_are_averaged_whatever_their_magnitude() -> None:
    """Log-sum-exps whose powers of two overflow or vanish still give the mean."""
    partial, logs, output = _parts(4, 2, 2, 16)
    for log in (-5000.0, 5000.0):
        logs.fill_(log)
        torch.testing.assert_close(combine(partial, logs, output), partial.mean(2), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4, 2, 16), (4, 4, 2), (4, 4, 16)), r"partial must be \[rows, heads, splits, width\]"),
        (((4, 4, 2, 16), (4, 4, 3), (4, 4, 16)), r"log_sum_exp.*splits is 3 rather than 2"),
        (((4, 4, 2, 16), (4, 4, 2), (4, 3, 16)), r"output.*heads is 3 rather than 4"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    """Parts, their log-sum-exps and the output must have the same rows, heads and widths."""
    partial, logs, output = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(LaunchError, match=message):
        combine(partial, logs, output)


@pytest.mark.parametrize("strided", [0, 1, 2])
def test_strided_parts_are_refused_by_name(strided: int) -> None:
    """Parts read with another's strides would give other numbers."""
    tensors = list(_parts(4, 4, 2, 16))
    tensors[strided] = tensors[strided].transpose(0, 1)
    name = ("partial", "log_sum_exp", "output")[strided]
    with pytest.raises(LaunchError, match=f"{name} must be contiguous"):
        combine(*tensors)
