# SPDX-License-Identifier: MIT OR Apache-2.0
"""RMS norm of rows, with and without a residual, against its definition in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.batches import check_same_roundings

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.kernels.operations import Operations

pytestmark = pytest.mark.usefixtures("poisoned_empty")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
EPS = 1e-5
ROWS = [1, 15, 16, 17, 32, 33]


def _strided(rows: int, width: int, dtype: torch.dtype, *, seed: int) -> Tensor:
    """Random rows as columns of a wider tensor, all of whose other cells are NaN."""
    wide = torch.full((rows + 1, width + 5), float("nan"), dtype=dtype)
    inner = wide[:rows, 3 : 3 + width]
    inner.copy_(torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3)
    return inner


def _weight(width: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(width, generator=torch.Generator().manual_seed(width)).to(dtype)


def _check(output: Tensor, x: Tensor, weight: Tensor) -> None:
    """Require the error of two roundings, of the normalised row and of the product, and of a sum in fp32."""
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
    unit = torch.finfo(output.dtype).eps / 2
    assert output.dtype == x.dtype
    bound = exact.abs() * (2 * unit * (1 + unit) + 2e-6) + (2.0**-23 if output.dtype == FP16 else 0)
    assert bool(((output.double() - exact).abs() <= bound).all())


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize(
    ("width", "dtype"), [(1, FP32), (16, FP16), (63, BF16), (64, FP32), (576, BF16), (1000, FP32), (4097, BF16)]
)
def test_norm_is_exact_but_for_rounding(each: Operations, width: int, dtype: torch.dtype) -> None:
    """Any width and any number of rows, which may be columns of a wider tensor; nothing else is read."""
    weight = _weight(width, dtype)
    for rows in ROWS:
        x = _strided(rows, width, dtype, seed=rows)
        before = x.clone()
        _check(each.rms_norm(x, weight, EPS), before, weight)
        assert torch.equal(x, before)


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize(("width", "dtype"), [(24, FP32), (63, BF16), (576, FP16), (1000, BF16)])
def test_residual_is_added_in_place(each: Operations, width: int, dtype: torch.dtype) -> None:
    """The sum is rounded, kept in the residual, and normalised; cells beside the residual keep their bits."""
    weight = _weight(width, dtype)
    for rows in ROWS:
        x, residual = _strided(rows, width, dtype, seed=rows), _strided(rows, width, dtype, seed=rows + 100)
        expected = (x.double() + residual.double()).to(dtype)
        output = each.add_rms_norm(x, residual, weight, EPS)
        assert torch.equal(residual, expected)
        _check(output, expected, weight)
        storage = residual.as_strided((rows + 1, width + 5), (width + 5, 1), 0)
        residual.fill_(float("nan"))
        assert storage.isnan().all()


@given(rows=st.integers(1, 80), width=st.sampled_from([7, 32, 50]), residual=st.booleans())
@settings(max_examples=20, derandomize=True, deadline=None)
def test_kernel_and_twin_agree(kernels: Operations, twins: Operations, rows: int, width: int, residual: bool) -> None:
    """For any number of rows they have the same bits but at ties, so both round at the same places."""
    weight = _weight(width, BF16)
    outputs: list[Tensor] = []
    for operations in (kernels, twins):
        x = _strided(rows, width, BF16, seed=rows)
        if residual:
            outputs.append(operations.add_rms_norm(x, _strided(rows, width, BF16, seed=1), weight, EPS))
        else:
            outputs.append(operations.rms_norm(x, weight, EPS))
    check_same_roundings(*outputs)


def test_out_is_written_where_it_lies(each: Operations) -> None:
    """A strided output gets the rows and keeps what lies between them."""
    x, weight = _strided(17, 40, FP32, seed=0), _weight(40, FP32)
    wide = torch.full((18, 45), 5.0)
    out = wide[1:, 2:42]
    assert each.rms_norm(x, weight, EPS, out=out) is out
    assert torch.equal(out, each.rms_norm(x, weight, EPS))
    out.fill_(5.0)
    assert torch.equal(wide, torch.full_like(wide, 5.0))


def test_out_may_be_the_input(each: Operations) -> None:
    """Normalising in place gives what normalising into a new tensor gives."""
    x, weight = _strided(17, 40, FP32, seed=0), _weight(40, FP32)
    expected = each.rms_norm(x, weight, EPS)
    each.rms_norm(x, weight, EPS, out=x)
    assert torch.equal(x, expected)


def test_weight_of_another_dtype_does_not_change_the_dtype(each: Operations) -> None:
    """A weight kept in fp32 beside bf16 rows multiplies in fp32 and gives bf16."""
    x, weight = _strided(4, 64, BF16, seed=0), _weight(64, FP32)
    _check(each.rms_norm(x, weight, EPS), x, weight)
    residual = torch.zeros_like(x)
    _check(each.add_rms_norm(x, residual, weight, EPS), x, weight)


def test_zero_row_stays_zero(each: Operations) -> None:
    """Epsilon keeps a row of zeros from dividing by zero."""
    assert not each.rms_norm(torch.zeros(2, 16), torch.ones(16), EPS).any()


def test_no_rows_give_no_rows(each: Operations) -> None:
    """An empty input runs nothing."""
    weight = torch.ones(16)
    assert each.rms_norm(torch.zeros(0, 16), weight, EPS).shape == (0, 16)
    assert each.add_rms_norm(torch.zeros(0, 16), torch.zeros(0, 16), weight, EPS).shape == (0, 16)
