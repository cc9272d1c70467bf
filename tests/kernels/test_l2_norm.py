# SPDX-License-Identifier: MIT OR Apache-2.0
"""The L2 norm of heads against its definition in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import LaunchError
from metrale_caps.kernels import l2_norm as launcher
from metrale_caps.kernels.graphs import capture
from metrale_caps.kernels.naive import head_norms
from tests.kernels.batches import check_same_roundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Normalise = Callable[..., Tensor]

pytestmark = pytest.mark.usefixtures("poisoned_empty")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture(scope="module", params=["triton", "naive"])
def normalise(request: pytest.FixtureRequest) -> Normalise:
    """Kernel and twin in turn."""
    return launcher.l2_norm if request.param == "triton" else head_norms.l2_norm


def _strided(rows: int, heads: int, width: int, dtype: torch.dtype) -> Tensor:
    """Random heads as columns of wider rows, all of whose other cells are NaN."""
    packed = torch.full((rows + 1, heads + 2, width + 3), float("nan"), dtype=dtype)
    inner = packed[:rows, 1 : 1 + heads, 2 : 2 + width]
    inner.copy_(torch.randn(inner.shape, generator=torch.Generator().manual_seed(rows)) * 3)
    return inner


def _check(output: Tensor, x: Tensor, eps: float) -> None:
    """Require the error of one rounding, and of a sum in fp32."""
    wide = x.double()
    exact = wide / (wide.square().sum(-1, keepdim=True) + eps).sqrt()
    unit = torch.finfo(output.dtype).eps / 2
    assert output.dtype == x.dtype
    assert output.shape == x.shape
    assert output.is_contiguous()
    bound = exact.abs() * (unit + 2e-6) + (2.0**-25 if output.dtype == FP16 else 0)
    assert bool(((output.double() - exact).abs() <= bound).all())


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize(
    ("heads", "width", "dtype"),
    [(1, 1, FP32), (3, 16, FP16), (5, 63, BF16), (16, 128, BF16), (7, 80, FP32), (2, 1000, FP32), (1, 4097, BF16)],
)
def test_norm_is_exact_but_for_rounding(normalise: Normalise, heads: int, width: int, dtype: torch.dtype) -> None:
    """Any heads of any width, which may be a slice of a packed tensor; nothing else is read, nor changed."""
    for rows in (1, 2, 17):
        x = _strided(rows, heads, width, dtype)
        before = x.clone()
        _check(normalise(x), before, 1e-6)
        _check(normalise(x, 0.5), before, 0.5)
        assert torch.equal(x, before)


@given(rows=st.integers(1, 60), heads=st.integers(1, 9), width=st.sampled_from([7, 32]))
@settings(max_examples=20, derandomize=True, deadline=None)
def test_kernel_and_twin_agree(rows: int, heads: int, width: int) -> None:
    """For any number of rows and heads they have the same bits but at ties, so both round at the same place."""
    x = _strided(rows, heads, width, BF16)
    check_same_roundings(launcher.l2_norm(x), head_norms.l2_norm(x))


@pytest.mark.usefixtures("tile_sizes")
@given(rows=st.integers(1, 40), first=st.integers(0, 39))
@settings(max_examples=15, derandomize=True, deadline=None)
def test_row_has_the_same_bits_in_any_step(normalise: Normalise, rows: int, first: int) -> None:
    """A part of the rows gives what it gives among the others."""
    x = _strided(rows, 3, 24, FP32)
    assert torch.equal(normalise(x[first:]), normalise(x)[first:])


def test_result_is_contiguous_whatever_the_order_of_axes(normalise: Normalise) -> None:
    """Heads may lie outside rows, and may share their memory."""
    heads_first = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0))
    _check(normalise(heads_first.transpose(0, 1)), heads_first.transpose(0, 1), 1e-6)
    repeated = heads_first[:, :1].expand(3, 5, 16)
    _check(normalise(repeated), repeated, 1e-6)


def test_large_heads_do_not_overflow(normalise: Normalise) -> None:
    """Squares are summed in fp32, whatever the dtype; zeros stay zeros, by virtue of epsilon."""
    x = torch.tensor([[[3e4, 4e4], [0.0, 0.0]]], dtype=FP16)
    assert torch.equal(normalise(x), torch.tensor([[[0.6, 0.8], [0.0, 0.0]]], dtype=FP16))


def test_heads_on_both_sides_of_the_wrap(normalise: Normalise) -> None:
    """Rows and heads that begin past 2^31 elements are found."""
    dense = _strided(3, 3, 32, BF16)
    for strides in ((2**30 + 64, 32, 1), (96, 2**30 + 64, 1)):
        far = torch.empty_strided((3, 3, 32), strides, dtype=BF16)
        far.copy_(dense)
        assert torch.equal(normalise(far), normalise(dense))


def test_replay_normalises_what_is_there_then(normalise: Normalise) -> None:
    """A captured step holds the operation as one call."""
    x = _strided(5, 2, 24, BF16)
    step = capture(lambda: normalise(x), torch.device("cpu"))
    x.mul_(-0.25)
    step.replay()
    assert torch.equal(step.output, normalise(x))


def test_no_rows_give_no_rows(normalise: Normalise) -> None:
    """An empty input runs nothing."""
    assert normalise(torch.zeros(0, 4, 16)).shape == (0, 4, 16)
    assert normalise(torch.zeros(3, 0, 16)).shape == (3, 0, 16)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, 8), r"x must be \[rows, heads, width\], but has the shape \[3, 8\]"),
        (torch.zeros(3, 2, 8).double(), "x must be .* but is torch.float64"),
        (torch.zeros(3, 8, 2).mT, "the last axis of x must be contiguous"),
    ],
)
def test_what_does_not_fit_is_named(x: Tensor, message: str) -> None:
    """The error says what was expected."""
    with pytest.raises(LaunchError, match=message):
        launcher.l2_norm(x)
