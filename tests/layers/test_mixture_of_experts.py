# SPDX-License-Identifier: MIT OR Apache-2.0
"""Mixtures of experts compute what `transformers` computes, in a captured step too, and each row on its own."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from typing_extensions import override

from metrale_caps.errors import CaptureError, ConfigurationError
from metrale_caps.kernels.architecture import Architecture
from metrale_caps.kernels.graphs import capture
from metrale_caps.kernels.operations import Operations, operations
from metrale_caps.layers import mixture_of_experts
from metrale_caps.layers.feed_forward import SwiGlu
from metrale_caps.layers.mixture_of_experts import (
    MixtureOfExperts,
    Router,
    Routing,
    SigmoidRouter,
    SoftmaxRouter,
)
from metrale_caps.layers.projection import Projection
from tests.tiny_models import make_hybrid, shared_tiny

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_CPU = torch.device("cpu")
_EXPERTS, _HIDDEN, _INTERMEDIATE = 8, 64, 24
TOLERANCE = 1e-5


@pytest.fixture(scope="session", params=["triton", "naive"])
def each(request: pytest.FixtureRequest) -> Operations:
    """Kernels and twins in turn."""
    return operations(request.param)


def _always(_: Tensor) -> bool:
    return True


@pytest.fixture(params=["grouped", "gathered", "gathered one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The ways to multiply rows with their experts; copies are made of three experts or of one at a time."""
    if request.param != "grouped":
        few = 3 * 2 * _INTERMEDIATE * _HIDDEN * 4 if request.param == "gathered" else 1
        monkeypatch.setattr(mixture_of_experts, "_GATHERED_BYTES", few)
        monkeypatch.setattr(mixture_of_experts, "_gathers", _always)
    return request.param


def _swiglu(module: Any) -> SwiGlu:
    gate_up = torch.cat([module.gate_proj.weight, module.up_proj.weight]).detach()
    return SwiGlu(Projection(gate_up), Projection(module.down_proj.weight.detach()))


def _from_qwen3_next(block: Any) -> MixtureOfExperts:
    gate = block.gate
    return MixtureOfExperts(
        router=SoftmaxRouter(Projection(gate.weight.detach()), gate.top_k, normalise=gate.norm_topk_prob),
        gate_up=block.experts.gate_up_proj.detach(),
        down=block.experts.down_proj.detach(),
        shared_expert=_swiglu(block.shared_expert),
        shared_expert_gate=Projection(block.shared_expert_gate.weight.detach()),
    )


def _from_kimi_linear(block: Any) -> MixtureOfExperts:
    gate = block.gate
    router = SigmoidRouter(
        Projection(gate.weight.detach().float()),
        gate.e_score_correction_bias.detach(),
        gate.top_k,
        groups=gate.num_group,
        groups_per_row=gate.topk_group,
        normalise=gate.norm_topk_prob,
        scale=gate.routed_scaling_factor,
    )
    return MixtureOfExperts(
        router=router,
        gate_up=block.experts.gate_up_proj.detach(),
        down=block.experts.down_proj.detach(),
        shared_expert=_swiglu(block.shared_experts),
    )


_READERS: dict[str, Callable[[Any], MixtureOfExperts]] = {
    "qwen3_next": _from_qwen3_next,
    "kimi_linear": _from_kimi_linear,
}


def _block(name: str) -> Any:
    return shared_tiny(name).model.layers[2].mlp


@pytest.fixture(scope="session", params=list(_READERS))
def both(request: pytest.FixtureRequest) -> tuple[MixtureOfExperts, Any]:
    """A layer of ours and the module of `transformers` that it took its weights from."""
    block = _block(request.param)
    return _READERS[request.param](block), block


@torch.no_grad()
def _expected(block: Any, rows: Tensor) -> Tensor:
    return block(rows.unsqueeze(0))[0]


def _rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, _HIDDEN, generator=torch.Generator().manual_seed(seed))


def _close(result: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(result, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("count", [1, 2, 7, 64])
@pytest.mark.usefixtures("way")
def test_result_is_that_of_transformers(both: tuple[MixtureOfExperts, Any], count: int, each: Operations) -> None:
    """Every number of rows gives what the library's module gives, and rows stay as they are."""
    layer, block = both
    packed = torch.cat([_rows(count, count), torch.full((count, 8), torch.nan)], dim=1)
    rows = packed[:, :_HIDDEN]
    before = rows.clone()
    result = layer(rows, each)
    assert result.dtype == torch.float32
    _close(result, _expected(block, rows.contiguous()))
    assert torch.equal(rows, before)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("qwen3_next", {"norm_topk_prob": False}),
        ("qwen3_next", {"num_experts_per_tok": 1}),
        ("qwen3_next", {"num_experts_per_tok": 8, "shared_expert_intermediate_size": 8}),
        ("kimi_linear", {"norm_topk_prob": False, "routed_scaling_factor": 1.5}),
        ("kimi_linear", {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 3}),
        ("kimi_linear", {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}),
        ("kimi_linear", {"n_group": 2, "topk_group": 2, "n_shared_experts": 2}),
    ],
    ids=str,
)
def test_every_option_of_a_configuration_is_followed(name: str, values: dict[str, Any]) -> None:
    """Renormalisation, scale, groups and numbers of experts are the ones of the library's module."""
    block = make_hybrid(name, **values).model.layers[2].mlp
    rows = _rows(33, seed=5)
    _close(_READERS[name](block)(rows, operations("naive")), _expected(block, rows))


@pytest.mark.parametrize("name", list(_READERS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_in_16_bits_is_that_of_transformers(name: str, dtype: torch.dtype) -> None:
    """Rows choose the same experts, though many logits are equal, and results differ by a unit in the last place."""
    block = make_hybrid(name).model.layers[2].mlp.to(dtype)
    if name == "kimi_linear":
        block.gate.float()  # as the library loads it
    rows = _rows(64, seed=3).to(dtype)
    layer = _READERS[name](block)
    with torch.no_grad():
        _, weights, experts = block.gate(rows)
    routing = layer.router(rows)
    assert torch.equal(routing.experts, experts)
    assert routing.weights.dtype == weights.dtype
    _close(routing.weights, weights, 0)
    expected = _expected(block, rows)
    result = layer(rows, operations("naive"))
    assert result.dtype == dtype
    _close(result, expected, float(expected.abs().max()) * torch.finfo(dtype).eps)


@pytest.mark.usefixtures("way")
def test_captured_step_replays_the_bits_of_the_eager_one(both: tuple[MixtureOfExperts, Any], each: Operations) -> None:
    """A graph that was captured over some rows computes others, whatever experts those choose, to the same bits."""
    layer, _ = both
    buffer = _rows(7)
    step = capture(lambda: layer(buffer, each), _CPU)
    alike = _rows(1, seed=9).expand(7, -1)
    padded = _rows(7, seed=2)
    padded[3:] = 0
    for rows in (_rows(7), _rows(7, seed=1), alike, padded, torch.zeros(7, _HIDDEN), _rows(7)):
        buffer.copy_(rows)
        step.replay()
        assert torch.equal(step.output, layer(rows.clone(), each))


@pytest.mark.usefixtures("way")
def test_row_does_not_depend_on_its_neighbours(both: tuple[MixtureOfExperts, Any], each: Operations) -> None:
    """Alone, among others and among rows that are not numbers, a row has the same result."""
    layer, _ = both
    rows = _rows(9, seed=4)
    together = layer(rows, each)
    spoilt = rows.clone()
    spoilt[1::2] = torch.nan
    among_spoilt = layer(spoilt, each)
    for index, row in enumerate(together):
        _close(layer(rows[index : index + 1], each)[0], row)
        if index % 2 == 0:
            _close(among_spoilt[index], row)
        else:
            assert bool(among_spoilt[index].isnan().all())
    _close(layer(rows.flip(0), each).flip(0), together)


@pytest.mark.usefixtures("way")
def test_rows_of_zeros_give_zeros(both: tuple[MixtureOfExperts, Any], each: Operations) -> None:
    """Padding costs nothing but time: exact zeros, and its neighbours are as they would be without it."""
    layer, block = both
    rows = _rows(6, seed=8)
    rows[[0, 3, 4]] = 0
    result = layer(rows, each)
    assert not bool(result[[0, 3, 4]].any())
    _close(result[[1, 2, 5]], _expected(block, rows[[1, 2, 5]]))
    assert not bool(layer(torch.zeros(1, _HIDDEN), each).any())


@pytest.mark.usefixtures("way")
def test_no_rows_give_no_rows(both: tuple[MixtureOfExperts, Any], each: Operations) -> None:
    """An empty batch is not an error."""
    assert both[0](torch.empty(0, _HIDDEN), each).shape == (0, _HIDDEN)


@dataclass(frozen=True)
class GivenRouter:
    """A third party's router, which takes experts from the first numbers of a row."""

    experts: int = _EXPERTS
    experts_per_row: int = 2

    def __call__(self, rows: Tensor, /) -> Routing:
        """Read experts and weights off the row itself."""
        numbers = rows[:, : self.experts_per_row]
        return Routing(numbers.round().long(), 0.5 + numbers / 16)


@dataclass(frozen=True)
class ReadingRouter(GivenRouter):
    """One that looks at a value on the host."""

    @override
    def __call__(self, rows: Tensor, /) -> Routing:
        """Read the first number."""
        rows[0, 0].item()
        return GivenRouter.__call__(self, rows)


@functools.cache
def _given(router: Router) -> MixtureOfExperts:
    generator = torch.Generator().manual_seed(0)
    gate_up = torch.randn(router.experts, 2 * _INTERMEDIATE, _HIDDEN, generator=generator) / 8
    down = torch.randn(router.experts, _HIDDEN, _INTERMEDIATE, generator=generator) / 5
    return MixtureOfExperts(router, gate_up, down)


def _defined(layer: MixtureOfExperts, rows: Tensor) -> Tensor:
    """Compute a layer without a shared expert expert by expert, in double precision."""
    experts, weights = layer.router(rows)
    total = torch.zeros(rows.shape, dtype=torch.float64)
    for row, (chosen, amounts) in enumerate(zip(experts, weights.double(), strict=True)):
        for expert, amount in zip(chosen, amounts, strict=True):
            gate, up = (layer.gate_up[expert].double() @ rows[row].double()).chunk(2)
            total[row] += amount * (layer.down[expert].double() @ (functional.silu(gate) * up))
    return total


_CHOICES = st.lists(st.permutations(range(_EXPERTS)).map(lambda order: order[:2]), min_size=1, max_size=12)


@pytest.mark.parametrize("gathered", [False, True])
@settings(max_examples=40, derandomize=True, deadline=None)
@given(choices=_CHOICES)
def test_experts_may_have_any_number_of_rows(choices: list[list[int]], gathered: bool) -> None:
    """Whether experts have all rows or none, the first or the last one too, the result is the weighted sum."""
    rows = _rows(len(choices), seed=len(choices))
    rows[:, :2] = torch.tensor(choices)
    layer = _given(GivenRouter())
    with pytest.MonkeyPatch.context() as patch:
        if gathered:
            patch.setattr(mixture_of_experts, "_gathers", _always)
        _close(layer(rows, operations("naive")).double(), _defined(layer, rows))


def test_router_that_reads_a_value_on_the_host_cannot_be_captured() -> None:
    """What a third party's router must not do is refused by name, and a router that keeps to it is captured."""
    rows = _rows(3).abs()
    capture(lambda: _given(GivenRouter())(rows, operations("naive")), _CPU).replay()
    with pytest.raises(CaptureError, match="`item` takes a tensor's values to the host"):
        capture(lambda: _given(ReadingRouter())(rows, operations("naive")), _CPU)


def test_gathered_products_are_for_gpus_that_read_groups_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of experts are made where a graph needs them: for its widest step and no wider, and never on a CPU."""

    def gathers(rows: int, dtype: torch.dtype, vendor: Literal["cpu", "nvidia", "amd"], generation: int = 0) -> bool:
        def architecture_of(_: torch.device) -> Architecture:
            return Architecture(vendor, generation)

        monkeypatch.setattr(mixture_of_experts, "architecture_of", architecture_of)
        return vars(mixture_of_experts)["_gathers"](torch.zeros(rows, 8, dtype=dtype))

    half = torch.bfloat16
    assert not gathers(1, half, "cpu")
    assert not gathers(1, half, "nvidia", 9)
    assert not gathers(1, half, "nvidia", 10)
    assert gathers(1, torch.float16, "nvidia", 9)
    assert gathers(128, half, "nvidia", 8)
    assert gathers(128, half, "nvidia", 12)
    assert gathers(128, half, "amd")
    assert not gathers(129, half, "nvidia", 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate_up": torch.zeros(8, 24, 64)}, r"gate_up is \[8, 24, 64\].*it must be \[8, 48, 64\]"),
        ({"gate_up": torch.zeros(8, 48, 64).half()}, "gate_up is torch.float16, and down is torch.float32"),
        ({"gate_up": torch.zeros(8, 64, 48).mT}, "must be contiguous"),
        ({"router": GivenRouter(9)}, "chooses from 9 experts, but there are 8"),
        ({"gate_up": torch.zeros(8, 46, 64), "down": torch.zeros(8, 64, 23)}, "23 x 64 in torch.float32.*of 4"),
        ({"gate_up": torch.zeros(8, 48, 62), "down": torch.zeros(8, 62, 24)}, "24 x 62 in torch.float32.*of 4"),
        ({"gate_up": torch.zeros(8, 40, 64).half(), "down": torch.zeros(8, 64, 20).half()}, "20 x 64.*of 8"),
        ({"shared_expert_gate": Projection(torch.zeros(1, 64))}, "shared_expert_gate has no shared_expert"),
    ],
)
def test_weights_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    """Whatever would be read wrongly, or fail in the middle of a step, is told when the layer is made."""
    with pytest.raises(ConfigurationError, match=message):
        replace(_given(GivenRouter()), **changes)


def test_expert_shared_by_all_is_added_with_its_gate_or_without() -> None:
    """Without a gate it is added as it is; a gate multiplies it by its sigmoid."""
    generator = torch.Generator().manual_seed(1)
    gate, gate_up, down = (
        Projection(torch.randn(shape, generator=generator)) for shape in ((1, _HIDDEN), (16, _HIDDEN), (_HIDDEN, 8))
    )
    shared = SwiGlu(gate_up, down)
    alone, rows, naive = _given(GivenRouter()), _rows(3).abs(), operations("naive")
    added = shared(rows, naive)
    _close(replace(alone, shared_expert=shared)(rows, naive) - alone(rows, naive), added, 1e-4)
    gated = replace(alone, shared_expert=shared, shared_expert_gate=gate)
    _close(gated(rows, naive) - alone(rows, naive), gate(rows).sigmoid() * added, 1e-4)
