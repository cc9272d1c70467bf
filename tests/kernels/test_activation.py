# SPDX-License-Identifier: MIT OR Apache-2.0
"""The SwiGLU gate against its definition in float64."""

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


def _strided(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    wide = torch.full((rows + 1, 2 * width + 5), float("nan"), dtype=dtype)
    inner = wide[:rows, 3 : 3 + 2 * width]
    inner.copy_(torch.randn(rows, 2 * width, generator=torch.Generator().manual_seed(rows)) * 4)
    return inner


def _exact(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize(
    ("width", "dtype"), [(1, FP32), (16, FP16), (63, BF16), (1000, FP32), (1536, BF16), (4097, FP16)]
)
def test_gate_is_exact_but_for_rounding(each: Operations, width: int, dtype: torch.dtype) -> None:
    """The activation and the product are rounded once each, for any width and any rows of a wider tensor."""
    unit = torch.finfo(dtype).eps / 2
    for rows in (1, 15, 16, 17, 32, 33):
        gate_up = _strided(rows, width, dtype)
        before = gate_up.clone()
        exact = _exact(before)
        output = each.silu_mul(gate_up)
        assert output.shape == exact.shape
        assert output.dtype == dtype
        # an activation below 2^-14 is as coarse as 2^-25 in fp16, and is multiplied by `up`
        coarse = 2.0**-24 * (1 + before[:, width:].double().abs()) if dtype == FP16 else 0
        bound = exact.abs() * (2 * unit * (1 + unit) + 1e-6) + coarse
        assert bool(((output.double() - exact).abs() <= bound).all())
        assert torch.equal(gate_up, before)


@given(rows=st.integers(1, 80), width=st.sampled_from([5, 48]))
@settings(max_examples=15, derandomize=True, deadline=None)
def test_kernel_and_twin_agree(kernels: Operations, twins: Operations, rows: int, width: int) -> None:
    """For any number of rows they have the same bits but at ties, so both round at the same places."""
    gate_up = _strided(rows, width, BF16)
    check_same_roundings(kernels.silu_mul(gate_up), twins.silu_mul(gate_up))


def test_gates_that_overflow_an_exponential(each: Operations) -> None:
    """Far negative gates close, far positive ones pass, and neither gives NaN."""
    gate_up = torch.tensor([[-1e4, -200.0, -0.0, 200.0, 1e4, 1.0, 1.0, 1.0, 1.0, 1.0]])
    assert each.silu_mul(gate_up).tolist() == [[0.0, 0.0, 0.0, 200.0, 1e4]]  # pyright: ignore[reportUnknownMemberType]


def test_no_rows_give_no_rows(each: Operations) -> None:
    """An empty input runs nothing."""
    assert each.silu_mul(torch.zeros(0, 16)).shape == (0, 8)
