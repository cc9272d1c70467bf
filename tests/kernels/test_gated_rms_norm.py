# SPDX-License-Identifier: MIT OR Apache-2.0
"""The RMS norm of heads with a gate, against its definition in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import LaunchError
from metrale_caps.kernels import gated_rms_norm as launcher
from metrale_caps.kernels.graphs import capture
from metrale_caps.kernels.naive import head_norms
from tests.kernels.batches import check_same_roundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from metrale_caps.kernels.gated_rms_norm import GateActivation

    Normalise = Callable[..., Tensor]

pytestmark = pytest.mark.usefixtures("poisoned_empty")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
EPS = 1e-5
ACTIVATIONS: tuple[GateActivation, ...] = ("silu", "sigmoid")


@pytest.fixture(scope="module", params=["triton", "naive"])
def normalise(request: pytest.FixtureRequest) -> Normalise:
    """Kernel and twin in turn."""
    return launcher.gated_rms_norm if request.param == "triton" else head_norms.gated_rms_norm


def _operands(rows: int, heads: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Heads, gates as a slice of a packed projection whose other cells are NaN, and a weight."""
    generator = torch.Generator().manual_seed(rows)
    rest = torch.full((rows + 1, heads + 1, width + 2), float("nan"), dtype=dtype)
    packed = torch.full((rows, 3 * heads * width + 5), float("nan"), dtype=dtype)
    x = rest[:rows, 1:, 1 : 1 + width]
    gate = packed[:, heads * width : 2 * heads * width].view(rows, heads, width)
    for part, size in ((x, 3), (gate, 2)):
        part.copy_(torch.randn(part.shape, generator=generator) * size)
    return x, gate, torch.randn(width, generator=generator).to(dtype)


def _check(output: Tensor, x: Tensor, gate: Tensor, weight: Tensor, activation: str) -> None:
    """Require the error of one rounding, and of sums and products in fp32."""
    wide, gates = x.double(), gate.double()
    opened = torch.sigmoid(gates) * (gates if activation == "silu" else 1)
    exact = weight.double() * wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * opened
    unit = torch.finfo(output.dtype).eps / 2
    assert output.dtype == x.dtype
    assert output.shape == x.shape
    assert output.is_contiguous()
    bound = exact.abs() * (unit + 3e-6) + (2.0**-25 if output.dtype == FP16 else 0)
    assert bool(((output.double() - exact).abs() <= bound).all())


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("heads", "width", "dtype"),
    [(1, 1, FP32), (3, 16, FP16), (5, 63, BF16), (16, 128, BF16), (7, 80, FP32), (2, 1000, FP32), (1, 4097, BF16)],
)
def test_norm_is_exact_but_for_rounding(
    normalise: Normalise, heads: int, width: int, dtype: torch.dtype, activation: GateActivation
) -> None:
    """Any heads of any width, which may be slices of packed tensors; nothing else is read, nor changed."""
    for rows in (1, 2, 17):
        x, gate, weight = _operands(rows, heads, width, dtype)
        before, gate_before = x.clone(), gate.clone()
        _check(normalise(x, gate, weight, EPS, activation=activation), before, gate_before, weight, activation)
        assert torch.equal(x, before)
        assert torch.equal(gate, gate_before)


@given(rows=st.integers(1, 60), heads=st.integers(1, 9), activation=st.sampled_from(ACTIVATIONS))
@settings(max_examples=20, derandomize=True, deadline=None)
def test_kernel_and_twin_agree(rows: int, heads: int, activation: GateActivation) -> None:
    """For any number of rows and heads they have the same bits but at ties, so both round at the same place."""
    x, gate, weight = _operands(rows, heads, 32, BF16)
    check_same_roundings(
        launcher.gated_rms_norm(x, gate, weight, EPS, activation=activation),
        head_norms.gated_rms_norm(x, gate, weight, EPS, activation=activation),
    )


@pytest.mark.usefixtures("tile_sizes")
@given(rows=st.integers(1, 40), first=st.integers(0, 39), activation=st.sampled_from(ACTIVATIONS))
@settings(max_examples=15, derandomize=True, deadline=None)
def test_row_has_the_same_bits_in_any_step(
    normalise: Normalise, rows: int, first: int, activation: GateActivation
) -> None:
    """A part of the rows gives what it gives among the others."""
    x, gate, weight = _operands(rows, 3, 24, FP32)
    part = normalise(x[first:], gate[first:], weight, EPS, activation=activation)
    assert torch.equal(part, normalise(x, gate, weight, EPS, activation=activation)[first:])


def test_weight_of_another_dtype_does_not_change_the_dtype(normalise: Normalise) -> None:
    """A weight kept in fp32 beside bf16 heads multiplies in fp32 and gives bf16."""
    x, gate, _ = _operands(4, 2, 64, BF16)
    weight = torch.linspace(0.5, 2, 64)
    _check(normalise(x, gate, weight, EPS, activation="silu"), x, gate, weight, "silu")


def test_gates_that_overflow_an_exponential(normalise: Normalise) -> None:
    """Far negative gates close, far positive ones pass, and neither gives NaN; a head of zeros stays one."""
    x, weight = torch.ones(1, 1, 4), torch.ones(4)
    gate = torch.tensor([[[-1e4, -200.0, 200.0, 1e4]]])
    for activation, expected in (("silu", [0.0, 0.0, 200.0, 1e4]), ("sigmoid", [0.0, 0.0, 1.0, 1.0])):
        output = normalise(x, gate, weight, 0.0, activation=activation)
        torch.testing.assert_close(output, torch.tensor([[expected]]), rtol=1e-6, atol=0)
        assert not normalise(x * 0, gate, weight, EPS, activation=activation).any()


def test_heads_on_both_sides_of_the_wrap(normalise: Normalise) -> None:
    """Rows and heads that begin past 2^31 elements are found."""
    x, gate, weight = _operands(3, 3, 32, BF16)
    expected = normalise(x, gate, weight, EPS, activation="silu")
    for strides in ((2**30 + 64, 32, 1), (96, 2**30 + 64, 1)):
        far_x, far_gate = (torch.empty_strided((3, 3, 32), strides, dtype=BF16).copy_(dense) for dense in (x, gate))
        assert torch.equal(normalise(far_x, gate, weight, EPS, activation="silu"), expected)
        assert torch.equal(normalise(x, far_gate, weight, EPS, activation="silu"), expected)


def test_replay_normalises_what_is_there_then(normalise: Normalise) -> None:
    """A captured step holds the operation as one call."""
    x, gate, weight = _operands(5, 2, 24, BF16)
    step = capture(lambda: normalise(x, gate, weight, EPS, activation="silu"), torch.device("cpu"))
    gate.mul_(-0.25)
    step.replay()
    assert torch.equal(step.output, normalise(x, gate, weight, EPS, activation="silu"))


def test_no_rows_give_no_rows(normalise: Normalise) -> None:
    """An empty input runs nothing."""
    for shape in ((0, 4, 16), (3, 0, 16)):
        empty = torch.zeros(shape)
        assert normalise(empty, empty, torch.ones(16), EPS, activation="sigmoid").shape == shape


def test_activation_that_there_is_not_is_named(normalise: Normalise) -> None:
    """Both implementations refuse it with the same words."""
    x = torch.zeros(1, 1, 4)
    with pytest.raises(LaunchError, match="activation is 'gelu'; it must be 'silu' or 'sigmoid'"):
        normalise(x, x, torch.ones(4), EPS, activation=cast("GateActivation", "gelu"))


HEADS = torch.zeros(3, 2, 8)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": HEADS[0]}, r"x must be \[rows, heads, width\]"),
        ({"x": HEADS.int()}, "x must be .* but is torch.int32"),
        ({"x": torch.zeros(3, 8, 2).mT}, "the last axis of x must be contiguous"),
        ({"gate": HEADS[:2]}, "rows is 2 rather than 3"),
        ({"gate": HEADS[:, :1]}, "heads is 1 rather than 2"),
        ({"gate": HEADS.half()}, "gate must be torch.float32, but is torch.float16"),
        ({"gate": torch.zeros(3, 8, 2).mT}, "the last axis of gate must be contiguous"),
        ({"weight": torch.ones(7)}, "width is 7 rather than 8"),
        ({"weight": torch.ones(8).double()}, "weight must be .* but is torch.float64"),
        ({"weight": torch.ones(16)[::2]}, "the last axis of weight must be contiguous"),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, Any], message: str) -> None:
    """The error says which argument, and what was expected of it."""
    given: dict[str, Any] = {"x": HEADS, "gate": HEADS, "weight": torch.ones(8), "eps": EPS, "activation": "silu"}
    with pytest.raises(LaunchError, match=message):
        launcher.gated_rms_norm(**(given | changed))
