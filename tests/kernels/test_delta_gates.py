# SPDX-License-Identifier: MIT OR Apache-2.0
"""The gates of the delta rule against their definition in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import LaunchError
from metrale_caps.kernels import delta_rule
from metrale_caps.kernels.naive import delta_rule as naive
from tests.kernels.delta_inputs import NAN

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Gates = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

pytestmark = pytest.mark.usefixtures("poisoned_empty")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
UNIT = 2.0**-24
each_gates = pytest.mark.parametrize("gates", [delta_rule.delta_gates, naive.delta_gates], ids=["kernel", "twin"])


class Inputs(NamedTuple):
    """Arguments of the gates."""

    decay_input: Tensor
    beta_input: Tensor
    a_log: Tensor
    dt_bias: Tensor

    def check(self, log_decay: Tensor, beta: Tensor) -> None:
        """Require results to be new, contiguous, fp32, and as exact as fp32 arithmetic is.

        The sum of input and bias is rounded to fp32, and where it is negative an error of it is a relative one of the
        result, as an error of `a_log` would be. The functions themselves are exact but for a few units. Numbers below
        the least normal one may be zeros.
        """
        x, b, a, bias = (one.double() for one in self)
        rate = a.exp().reshape(-1, *[1] * (x.dim() - 2))
        exact = -rate * torch.nn.functional.softplus(x + bias, threshold=100.0)
        # float64 loses log(1 + s) for tiny s where fp32 still has it
        small = x + bias < -30
        exact = torch.where(small, -rate * (x + bias).exp(), exact)
        for found, expected, units in (
            (log_decay, exact, 16 + 2 * (x + bias).abs().clamp(max=120)),
            (beta, torch.sigmoid(b), 16 + 2 * b.abs().clamp(max=120)),
        ):
            assert found.dtype == FP32
            assert found.is_contiguous()
            assert found.shape == expected.shape
            beyond = expected.abs() > torch.finfo(FP32).max
            assert torch.equal(found[beyond].double(), expected[beyond].sign() * float("inf"))
            error = (found.double() - expected).abs()[~beyond]
            bound = (units * UNIT * expected.abs() + torch.finfo(FP32).smallest_normal)[~beyond]
            assert bool((error <= bound).all()), f"{(error / bound).max():.3g} of the bound"


def _inputs(rows: int, heads: int, width: int | None, dtype: torch.dtype, spread: float = 4.0, seed: int = 0) -> Inputs:
    """Random inputs as the engine has them, slices of one projection's rows; parameters are fp32."""
    generator = torch.Generator().manual_seed(seed)
    channels = () if width is None else (width,)
    columns = heads * (width or 1)
    packed = torch.full((rows + 1, 7 + columns + heads), NAN, dtype=dtype)[:rows]
    decay_input, beta_input = packed[:, 3 : 3 + columns], packed[:, 5 + columns : 5 + columns + heads]
    for part in (decay_input, beta_input):
        part.copy_(spread * torch.randn(part.shape, generator=generator))
    return Inputs(
        decay_input.view(rows, heads, *channels),
        beta_input,
        4 * torch.rand(heads, generator=generator) - 2,
        torch.randn(heads, *channels, generator=generator),
    )


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize(
    ("heads", "width"), [(1, None), (4, None), (33, None), (1, 1), (3, 20), (4, 64), (16, 128), (2, 1)]
)
@each_gates
def test_gates_are_exact_but_for_rounding(gates: Gates, heads: int, width: int | None, dtype: torch.dtype) -> None:
    """For any heads and channels, in slices of a wider tensor, whose neighbours are not read."""
    for rows in (1, 3, 17, 64):
        inputs = _inputs(rows, heads, width, dtype)
        before = Inputs(*(one.clone() for one in inputs))
        inputs.check(*gates(*inputs))
        assert all(torch.equal(*pair) for pair in zip(before, inputs, strict=True))


@given(
    rows=st.integers(1, 9),
    heads=st.integers(1, 5),
    width=st.none() | st.integers(1, 7),
    spread=st.sampled_from([0.01, 1.0, 30.0, 1e4]),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, derandomize=True, deadline=None)
@each_gates
def test_any_shape_and_any_spread(
    gates: Gates, rows: int, heads: int, width: int | None, spread: float, seed: int
) -> None:
    """Inputs from about zero to far beyond what an exponential holds."""
    inputs = _inputs(rows, heads, width, FP32, spread, seed)
    inputs.check(*gates(*inputs))


_FAR = (-3e38, -1e4, -200.0, -104.0, -88.0, -20.0, -2.0, -1.3, 0.0, 1.4, 2.0, 20.0, 21.0, 89.0, 1e4, 3e38)


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("width", [None, 3])
@each_gates
def test_far_inputs_give_no_nan(gates: Gates, width: int | None) -> None:
    """Decays reach 0 and -3e38, and -inf where fp32 ends; strengths reach 0 and 1."""
    for a_log in (-80.0, 0.0, 5.0):
        inputs = _inputs(len(_FAR), 2, width, FP32)
        far = torch.tensor(_FAR)
        inputs.decay_input.copy_(far.view(-1, *[1] * (inputs.decay_input.dim() - 1)).expand_as(inputs.decay_input))
        inputs.beta_input.copy_(far[:, None].expand_as(inputs.beta_input))
        inputs.a_log.fill_(a_log)
        inputs.dt_bias.zero_()
        log_decay, beta = gates(*inputs)
        inputs.check(log_decay, beta)
        assert bool((log_decay <= 0).all())
        assert beta.min() == 0
        assert beta.max() == 1


@each_gates
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
def test_parameters_of_any_dtype(gates: Gates, dtype: torch.dtype) -> None:
    """They are widened before anything is computed."""
    inputs = _inputs(5, 3, 4, BF16)
    inputs = inputs._replace(a_log=inputs.a_log.to(dtype), dt_bias=inputs.dt_bias.to(dtype))
    inputs.check(*gates(*inputs))


@each_gates
@pytest.mark.parametrize("width", [None, 5])
def test_no_rows_give_no_rows(gates: Gates, width: int | None) -> None:
    """An empty input runs nothing."""
    inputs = _inputs(0, 3, width, BF16)
    log_decay, beta = gates(*inputs)
    assert log_decay.shape == inputs.decay_input.shape
    assert beta.shape == (0, 3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"beta_input": torch.zeros(2, 3, 4)}, r"beta_input must be \[rows, heads\], but has the shape"),
        ({"decay_input": torch.zeros(2, 4)}, r"decay_input must be .* heads is 4 rather than 3"),
        ({"decay_input": torch.zeros(1, 3)}, r"decay_input must be .* rows is 1 rather than 2"),
        ({"decay_input": torch.zeros(2, 3, 5)}, r"dt_bias must be \[heads=3, key_dim=5\], but has the shape \[3\]"),
        ({"a_log": torch.zeros(4)}, r"a_log must be .* heads is 4 rather than 3"),
        ({"dt_bias": torch.zeros(4)}, r"dt_bias must be .* heads is 4 rather than 3"),
        ({"dt_bias": torch.zeros(3, 1)}, r"dt_bias must be \[heads=3\], but has the shape"),
        ({"decay_input": torch.zeros(2, 3).double()}, "decay_input must be .*, but is torch.float64"),
        ({"beta_input": torch.zeros(2, 3).int()}, "beta_input must be .*, but is torch.int32"),
        ({"a_log": torch.zeros(3).long()}, "a_log must be .*, but is torch.int64"),
        ({"dt_bias": torch.zeros(3).double()}, "dt_bias must be .*, but is torch.float64"),
        ({"decay_input": torch.zeros(3, 2).t()}, "the last axis of decay_input must be contiguous"),
        ({"beta_input": torch.zeros(3, 2).t()}, "the last axis of beta_input must be contiguous"),
        ({"a_log": torch.zeros(6)[::2]}, "the last axis of a_log must be contiguous"),
        ({"dt_bias": torch.zeros(6)[::2]}, "the last axis of dt_bias must be contiguous"),
        (
            {"decay_input": torch.zeros(2, 3, 4), "dt_bias": torch.zeros(3, 5)[:, :4]},
            "dt_bias must be contiguous",
        ),
        (
            {"decay_input": torch.zeros(2, 3, 5)[..., :4], "dt_bias": torch.zeros(3, 4)},
            "a row of decay_input must be contiguous",
        ),
    ],
)
@each_gates
def test_argument_that_does_not_fit_is_named(gates: Gates, changed: dict[str, Tensor], message: str) -> None:
    """Kernel and twin refuse with the same words."""
    inputs = Inputs(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3), torch.zeros(3))
    with pytest.raises(LaunchError, match=message):
        gates(*inputs._replace(**changed))
