# SPDX-License-Identifier: MIT OR Apache-2.0
"""A projection is the affine map it says, whichever way its product is taken."""

from __future__ import annotations

import pytest
import torch

from metrale_caps.layers.projection import Projection


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 8, 33])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 40), (40, 96), (1, 1)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_product_is_the_same_for_any_number_of_rows(
    rows: int, outputs: int, inputs: int, biased: bool, dtype: torch.dtype
) -> None:
    """The result equals the product in double precision, is contiguous, and leaves the rows as they were."""
    generator = torch.Generator().manual_seed(rows)
    weight, x, bias = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((outputs, inputs), (rows, 2 * inputs), (outputs,))
    )
    x = x[:, :inputs]
    before = x.clone()
    result = Projection(weight, bias if biased else None)(x)
    expected = x.double() @ weight.double().t() + (bias.double() if biased else 0)
    unit = torch.finfo(dtype).eps
    bound = unit * (
        inputs * x.double().abs() @ weight.double().t().abs() * (dtype == torch.float32) + expected.abs() + 4
    )
    assert result.shape == (rows, outputs)
    assert result.dtype == dtype
    assert result.is_contiguous()
    assert bool(((result.double() - expected).abs() <= bound).all())
    assert torch.equal(x, before)
