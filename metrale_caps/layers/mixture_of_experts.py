# SPDX-License-Identifier: MIT OR Apache-2.0
"""Mixtures of experts: a feed-forward of which each row uses a few of many parts, chosen by a router.

Everything happens on the device and in shapes that the number of rows alone decides, so that a decode step with such
layers can be captured: the pairs of a row and an expert are sorted by expert, and one product reads each expert's rows
as a group, however many there are, or none. A third party's router fits if it keeps to the same; see `Router`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional
from typing_extensions import Protocol

from metrale_caps.errors import ConfigurationError
from metrale_caps.kernels.architecture import architecture_of
from metrale_caps.state.row_ladder import LADDER

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps.kernels.operations import Operations
    from metrale_caps.layers.feed_forward import FeedForward
    from metrale_caps.layers.projection import Projection

_GROUP_SCORE_EXPERTS = 2
_GROUPED_STRIDE_BYTES = 16
_GROUPED_GENERATIONS = frozenset({9, 10})
_GATHERED_BYTES = 64 * 2**20


class Routing(NamedTuple):
    """Which experts each row uses.

    Attributes:
        experts: `[rows, experts_per_row]`, int64; the experts of one row differ from each other.
        weights: `[rows, experts_per_row]`, what each one's result is multiplied by; the products and their sum are
            computed in the wider of this dtype and the rows'.
    """

    experts: Tensor
    weights: Tensor


class Router(Protocol):
    """Chooses experts.

    It runs inside captured steps: it may read no value on the host, index by no mask, and each row's choice must
    depend on that row alone. A row of zeros, which pads a batch, must be given finite weights.

    Attributes:
        experts: number of experts that it chooses from.
    """

    @property
    def experts(self) -> int: ...  # noqa: D102 - an attribute

    def __call__(self, rows: Tensor, /) -> Routing:
        """Choose experts for `[rows, hidden_size]`."""
        ...


@dataclass(frozen=True, slots=True)
class SoftmaxRouter:
    """The `experts_per_row` largest of a softmax over all experts, as in `qwen3_next`.

    Logits are computed in the rows' dtype, where two experts are often exactly equal in 16 bits; `torch.topk` says
    which of them is taken, as it does in `transformers`. The softmax is computed in fp32, and weights are rounded to
    the rows' dtype.

    Attributes:
        projection: `[experts, hidden_size]`.
        experts_per_row: experts that a row uses.
        normalise: divide a row's weights by their sum.

    Raises:
        ConfigurationError: there are fewer experts than a row uses.
    """

    projection: Projection
    experts_per_row: int
    normalise: bool

    def __post_init__(self) -> None:
        """Refuse what cannot be chosen."""
        _expect_enough(self.experts_per_row, self.experts)

    @property
    def experts(self) -> int:
        """Number of experts."""
        return self.projection.weight.shape[0]

    def __call__(self, rows: Tensor, /) -> Routing:
        """Choose experts for `[rows, hidden_size]`."""
        scores = functional.softmax(self.projection(rows), dim=-1, dtype=torch.float32)
        weights, experts = scores.topk(self.experts_per_row, dim=-1)
        if self.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return Routing(experts, weights.to(rows.dtype))


@dataclass(frozen=True, slots=True)
class SigmoidRouter:
    """The largest of sigmoids plus a correction, inside the best groups of experts, as in `kimi_linear` and DeepSeek.

    Experts form groups of equal size, neighbours in one group. A group's score is the sum of its two best experts'
    corrected scores. Weights are the scores without the correction, in fp32 throughout.

    Attributes:
        projection: `[experts, hidden_size]`, fp32 whatever the rows are; rows are widened for it.
        correction: `[experts]`, fp32, added for the choice only.
        experts_per_row: experts that a row uses.
        groups: number of groups.
        groups_per_row: best groups that a row may choose from; all of them if equal to `groups`.
        normalise: divide a row's weights by their sum.
        scale: what weights are multiplied by after that.

    Raises:
        ConfigurationError: experts do not divide into groups, a group that is to be scored has fewer than two, or
            there are fewer experts in a row's groups than it uses.
    """

    projection: Projection
    correction: Tensor
    experts_per_row: int
    groups: int = 1
    groups_per_row: int = 1
    normalise: bool = True
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what cannot be chosen."""
        if not 1 <= self.groups_per_row <= self.groups:
            raise ConfigurationError(f"a row chooses from {self.groups_per_row} of {self.groups} groups of experts")
        if self.experts % self.groups:
            raise ConfigurationError(f"{self.experts} experts do not divide into {self.groups} groups")
        members = self.experts // self.groups
        if self.groups_per_row < self.groups and members < _GROUP_SCORE_EXPERTS:
            raise ConfigurationError(
                f"{self.groups} groups of {members} expert: a group is scored by its best {_GROUP_SCORE_EXPERTS}"
            )
        _expect_enough(self.experts_per_row, members * self.groups_per_row)

    @property
    def experts(self) -> int:
        """Number of experts."""
        return self.projection.weight.shape[0]

    def __call__(self, rows: Tensor, /) -> Routing:
        """Choose experts for `[rows, hidden_size]`."""
        scores = self.projection(rows.float()).sigmoid()
        eligible = self._inside_best_groups(scores + self.correction)
        experts = eligible.topk(self.experts_per_row, dim=-1, sorted=False).indices
        weights = scores.gather(1, experts)
        if self.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return Routing(experts, weights * self.scale)

    def _inside_best_groups(self, corrected: Tensor) -> Tensor:
        """Return corrected scores `[rows, experts]` with those outside a row's best groups at minus infinity."""
        if self.groups_per_row == self.groups:
            return corrected
        grouped = corrected.view(corrected.shape[0], self.groups, self.experts // self.groups)
        group_scores = grouped.topk(_GROUP_SCORE_EXPERTS, dim=-1).values.sum(-1)
        best = group_scores.topk(self.groups_per_row, dim=-1, sorted=False).indices
        outside = torch.full_like(group_scores, -torch.inf).scatter(1, best, 0.0)
        return (grouped + outside.unsqueeze(-1)).view(corrected.shape)


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """The weighted sum of the experts that a router chooses for each row, and what an expert shared by all adds.

    Each expert is a SwiGLU. A row's result depends on the other rows only by the rounding of the matrix library,
    and a row of zeros gives exactly zeros.

    Attributes:
        router: chooses experts.
        gate_up: gate and up projections, gate rows first, `[experts, 2 * intermediate_size, hidden_size]`, contiguous.
        down: `[experts, hidden_size, intermediate_size]`, contiguous.
        shared_expert: what every row goes through besides.
        shared_expert_gate: one output; its sigmoid multiplies what the shared expert gives.

    Raises:
        ConfigurationError: sizes or dtypes of the weights do not fit each other or the router, a gate has no shared
            expert, or rows of weights do not fill whole 16 bytes, which torch's grouped product asks for.
    """

    router: Router
    gate_up: Tensor
    down: Tensor
    shared_expert: FeedForward | None = None
    shared_expert_gate: Projection | None = None

    def __post_init__(self) -> None:
        """Refuse weights that do not fit."""
        experts, hidden_size, intermediate_size = self.down.shape
        if self.gate_up.shape != (experts, 2 * intermediate_size, hidden_size):
            raise ConfigurationError(
                f"gate_up is {list(self.gate_up.shape)}; with down {list(self.down.shape)} it must be "
                f"{[experts, 2 * intermediate_size, hidden_size]}"
            )
        if self.gate_up.dtype != self.down.dtype:
            raise ConfigurationError(f"gate_up is {self.gate_up.dtype}, and down is {self.down.dtype}")
        if not (self.gate_up.is_contiguous() and self.down.is_contiguous()):
            raise ConfigurationError("gate_up and down must be contiguous; call `.contiguous()`")
        if self.router.experts != experts:
            raise ConfigurationError(f"the router chooses from {self.router.experts} experts, but there are {experts}")
        unit = _GROUPED_STRIDE_BYTES // self.down.element_size()
        if hidden_size % unit or intermediate_size % unit:
            raise ConfigurationError(
                f"experts of {intermediate_size} x {hidden_size} in {self.down.dtype}: both sizes must be multiples of "
                f"{unit}; fill the intermediate size up with zeros"
            )
        if self.shared_expert_gate is not None and self.shared_expert is None:
            raise ConfigurationError("shared_expert_gate has no shared_expert")

    def __call__(self, rows: Tensor, operations: Operations, /) -> Tensor:
        """Map `[rows, hidden_size]`, in the dtype of the weights, to `[rows, hidden_size]`."""
        routed = self._routed(rows, operations)
        if self.shared_expert is None:
            return routed
        shared = self.shared_expert(rows, operations)
        if self.shared_expert_gate is not None:
            shared = self.shared_expert_gate(rows).sigmoid() * shared
        return routed + shared

    def _routed(self, rows: Tensor, operations: Operations) -> Tensor:
        routing = self.router(rows)
        count, experts_per_row = routing.experts.shape
        # stable, so that the order of an expert's rows, and with it the result, never changes
        experts, pairs = routing.experts.reshape(-1).sort(stable=True)
        groups = _Groups(experts, self.router.experts, gathered=_gathers(rows))
        gate_up = groups.product(rows.index_select(0, pairs // experts_per_row), self.gate_up)
        down = groups.product(operations.silu_mul(gate_up), self.down)
        # summed in the order of choice and not with atomic additions, whose order would be another each time
        place = torch.empty_like(pairs).scatter_(0, pairs, torch.arange(pairs.shape[0], device=pairs.device))
        chosen = down.index_select(0, place).view(count, experts_per_row, rows.shape[1])
        return (chosen * routing.weights.unsqueeze(-1)).sum(1).to(rows.dtype)


class _Groups:
    """Rows sorted by the expert they go to."""

    def __init__(self, experts: Tensor, count: int, *, gathered: bool) -> None:
        """Take the expert of each row, `[pairs]`, ascending, the number of experts, and the way to multiply."""
        self._gathered = gathered
        self._experts = experts
        numbers = torch.arange(count, device=experts.device)
        self._ends = torch.searchsorted(experts, numbers, right=True, out_int32=True)

    def product(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Multiply each of `[pairs, in]` with its expert of `[experts, out, in]`.

        Returns:
            `[pairs, out]`, the last axis contiguous.
        """
        if self._gathered:
            return _gathered_product(rows, self._experts, weight)
        return functional.grouped_mm(rows, weight.mT, offs=self._ends)


def _gathers(rows: Tensor) -> bool:
    """Return whether rows that a graph may be captured for are multiplied with copies of their experts.

    Torch's grouped product is a kernel of its own for bfloat16 on NVIDIA's Hopper and Blackwell. On other GPUs it
    takes the groups' ends to the host and loops, which a CUDA graph cannot hold. On a CPU it loops too, but inside
    one operator, which a recorded step holds as one call.
    """
    architecture = architecture_of(rows.device)
    if architecture.is_cpu or rows.shape[0] > LADDER[-1]:
        return False
    own_kernel = architecture.vendor == "nvidia" and architecture.generation in _GROUPED_GENERATIONS
    return not (own_kernel and rows.dtype == torch.bfloat16)


def _gathered_product(rows: Tensor, experts: Tensor, weight: Tensor) -> Tensor:
    """Multiply each row with a copy of its expert, made for as many rows at a time as fit a fixed amount of memory.

    Which experts they are is read on the device only. Three times the grouped product's traffic of memory, and more
    where rows share experts, so only for as few rows as there are in a decode step.
    """
    at_a_time = max(1, _GATHERED_BYTES // (weight[0].numel() * weight.element_size()))
    products: list[Tensor] = []
    for first in range(0, max(1, rows.shape[0]), at_a_time):
        some = slice(first, first + at_a_time)
        copies = weight.index_select(0, experts[some])
        products.append(torch.bmm(copies, rows[some].unsqueeze(-1)).squeeze(-1))
    return torch.cat(products)


def _expect_enough(experts_per_row: int, experts: int) -> None:
    if not 1 <= experts_per_row <= experts:
        raise ConfigurationError(f"a row uses {experts_per_row} experts and can choose from {experts}")
