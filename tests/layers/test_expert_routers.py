# SPDX-License-Identifier: MIT OR Apache-2.0
"""Routers take the best experts, among equals too, and weigh them as their definitions say."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import ConfigurationError
from metrale_caps.layers.mixture_of_experts import SigmoidRouter, SoftmaxRouter
from metrale_caps.layers.projection import Projection

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def _close(result: Tensor, expected: Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(result, expected, rtol=0, atol=tolerance)


# few different logits, so that most choices are between equals
_LOGITS = st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0]), min_size=8, max_size=8)
_IDENTITY = Projection(torch.eye(8))


@settings(max_examples=100, derandomize=True, deadline=None)
@given(logits=st.lists(_LOGITS, min_size=1, max_size=4), experts_per_row=st.integers(1, 8), normalise=st.booleans())
def test_softmax_router_takes_the_best_whichever_of_equals_they_are(
    logits: list[list[float]], experts_per_row: int, normalise: bool
) -> None:
    """Experts differ, none that is left out is better than one that is taken, and weights are their own scores."""
    rows = torch.tensor(logits)
    experts, weights = SoftmaxRouter(_IDENTITY, experts_per_row, normalise=normalise)(rows)
    assert experts.dtype == torch.int64
    scores = rows.double().softmax(-1)
    for row, chosen, amounts in zip(scores, experts, weights.double(), strict=True):
        assert int(torch.bincount(chosen, minlength=8).max()) == 1
        assert torch.equal(row[chosen].sort().values, row.sort().values[-experts_per_row:])
        _close(amounts, row[chosen] / (row[chosen].sum() if normalise else 1))


@settings(max_examples=150, derandomize=True, deadline=None)
@given(data=st.data(), logits=st.lists(_LOGITS, min_size=1, max_size=4), normalise=st.booleans())
def test_sigmoid_router_takes_the_best_of_the_best_groups(
    data: st.DataObject, logits: list[list[float]], normalise: bool
) -> None:
    """For some choice among equal groups, the experts are the best ones of these groups, with their plain scores."""
    groups = data.draw(st.sampled_from([1, 2, 4]))
    kept = data.draw(st.integers(1, groups))
    experts_per_row = data.draw(st.integers(1, kept * 8 // groups))
    correction = torch.tensor(data.draw(st.lists(st.sampled_from([-0.25, 0.0, 0.5]), min_size=8, max_size=8)))
    router = SigmoidRouter(_IDENTITY, correction, experts_per_row, groups, kept, normalise, scale=2.5)
    rows = torch.tensor(logits)
    experts, weights = router(rows)
    plain = rows.sigmoid()
    for row, chosen, amounts in zip(plain, experts, weights.double(), strict=True):
        assert int(torch.bincount(chosen, minlength=8).max()) == 1
        assert _is_best_of_groups(row + correction, chosen, groups, kept)
        own = row[chosen].double()
        _close(amounts, 2.5 * own / (own.sum() if normalise else 1))


def _is_best_of_groups(corrected: Tensor, chosen: Tensor, groups: int, kept: int) -> bool:
    members = corrected.view(groups, -1)
    scores = members.topk(2).values.sum(-1)
    best = scores.sort().values[-kept:]
    taken = corrected[chosen].sort().values
    numbers = torch.arange(len(corrected)).view(groups, -1)
    return any(
        torch.equal(scores[list(some)].sort().values, best)
        and torch.equal(members[list(some)].flatten().sort().values[-len(chosen) :], taken)
        and bool(torch.isin(chosen, numbers[list(some)]).all())
        for some in itertools.combinations(range(groups), kept)
    )


def test_correction_chooses_and_does_not_weigh() -> None:
    """An expert far behind is taken because of its correction, and its weight is its own score."""
    correction = torch.zeros(8)
    correction[5] = 10
    experts, weights = SigmoidRouter(_IDENTITY, correction, 1, normalise=False, scale=3.0)(torch.full((2, 8), -1.0))
    assert torch.equal(experts, torch.full((2, 1), 5))
    _close(weights, 3 * torch.sigmoid(torch.full((2, 1), -1.0)))


def test_sigmoid_router_stays_in_fp32() -> None:
    """Experts that would be equal in the rows' 16 bits are told apart, and weights are not rounded."""
    weight = torch.zeros(2, 8)
    weight[:, 0] = torch.tensor([1.0, 1.0 + 2**-20])
    rows = torch.ones(3, 8, dtype=torch.bfloat16)
    experts, weights = SigmoidRouter(Projection(weight), torch.zeros(2), 1)(rows)
    assert torch.equal(experts, torch.ones(3, 1, dtype=torch.int64))
    assert weights.dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SoftmaxRouter(_IDENTITY, 9, normalise=True), "uses 9 experts and can choose from 8"),
        (lambda: SoftmaxRouter(_IDENTITY, 0, normalise=True), "uses 0 experts"),
        (lambda: SigmoidRouter(_IDENTITY, torch.zeros(8), 2, 3, 1), "8 experts do not divide into 3 groups"),
        (
            lambda: SigmoidRouter(_IDENTITY, torch.zeros(8), 1, 8, 1),
            "8 groups of 1 expert: a group is scored by its",
        ),
        (lambda: SigmoidRouter(_IDENTITY, torch.zeros(8), 5, 2, 1), "uses 5 experts and can choose from 4"),
        (lambda: SigmoidRouter(_IDENTITY, torch.zeros(8), 1, 2, 3), "chooses from 3 of 2 groups"),
        (lambda: SigmoidRouter(_IDENTITY, torch.zeros(8), 1, 2, 0), "chooses from 0 of 2 groups"),
    ],
)
def test_choices_that_cannot_be_made_are_refused(make: Callable[[], object], message: str) -> None:
    """A router that has fewer experts than it is to choose is told when it is made."""
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_groups_of_one_expert_are_fine_where_all_are_kept() -> None:
    """Groups that are all kept need no score, and so no second expert."""
    router = SigmoidRouter(_IDENTITY, torch.zeros(8), 8, 8, 8)
    assert torch.equal(router(torch.zeros(1, 8)).experts.sort().values, torch.arange(8).view(1, 8))
