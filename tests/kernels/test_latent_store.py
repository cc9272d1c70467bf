# SPDX-License-Identifier: MIT OR Apache-2.0
"""The store of latents against its definition in float64, and which cells are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import LaunchError, MemoryFaultError, RaceError
from metrale_caps.kernels.graphs import capture
from metrale_caps.kernels.latent_store import latent_store
from metrale_caps.kernels.naive import latent as naive
from tests.kernels.batches import check_same_roundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = pytest.mark.usefixtures("poisoned_empty")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
EPS = 1e-6
GUARD = 77.0
NAN = float("nan")
WRAP = 2**31


class Shape(NamedTuple):
    """Channels of latents, positional channels, tokens of a block, and the dtype."""

    rank: int
    rotary: int
    block_size: int = 16
    dtype: torch.dtype = FP32


@dataclass(frozen=True, slots=True)
class Step:
    """Arguments of one call, and the whole storage that the pages are a view of."""

    shape: Shape
    latents: Tensor
    weight: Tensor
    slots: Tensor
    storage: Tensor

    @property
    def pages(self) -> Tensor:
        return self.storage[:, 1, : self.shape.block_size, 4 : 4 + self.shape.rank + self.shape.rotary]

    def run(self, store: Callable[..., None]) -> None:
        store(self.latents, self.weight, EPS, self.slots, self.pages, rank=self.shape.rank)

    def check(self) -> None:
        """Require exact cells but for two roundings, copies of positional channels, and guards everywhere else."""
        kept = self.slots >= 0
        rows, rank = self.latents[kept], self.shape.rank
        cell = (self.slots[kept] // self.shape.block_size, self.slots[kept] % self.shape.block_size)
        written = self.pages[cell]
        assert torch.equal(written[:, rank:], rows[:, rank:])
        x = rows[:, :rank].double()
        exact = x * (x.square().mean(1, keepdim=True) + EPS).rsqrt() * self.weight.double()
        unit = torch.finfo(self.shape.dtype).eps / 2
        # subnormals of fp16 are as coarse as 2^-25
        bound = exact.abs() * (2 * unit * (1 + unit) + 1e-6) + (2.0**-23 if self.shape.dtype == FP16 else 1e-12)
        assert bool(((written[:, :rank].double() - exact).abs() <= bound).all())
        self.pages[cell] = GUARD
        assert torch.equal(self.storage, torch.full_like(self.storage, GUARD))


def make_step(shape: Shape, rows: int, *, skipped: int = 0) -> Step:
    """Return rows that are a slice of a packed projection; every `skipped`-th is NaN and not to be written."""
    generator = torch.Generator().manual_seed(rows)
    width = shape.rank + shape.rotary
    packed = torch.full((rows + 1, width + 11), NAN, dtype=shape.dtype)
    latents = packed[:rows, 8 : 8 + width]
    latents.copy_(torch.randn(rows, width, generator=generator) * torch.rand(rows, 1, generator=generator) * 8)
    weight = torch.linspace(-0.5, 2, shape.rank).to(shape.dtype)
    blocks = rows // shape.block_size + 2
    slots = torch.randperm(blocks * shape.block_size, generator=generator)[:rows]
    if skipped:
        slots[::skipped] = -1
        latents[::skipped] = NAN
    storage = torch.full((blocks, 2, shape.block_size + 1, width + 8), GUARD, dtype=shape.dtype)
    return Step(shape, latents, weight, slots, storage)


@pytest.fixture(scope="module", params=[latent_store, naive.latent_store], ids=["triton", "naive"])
def each(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Kernel and twin in turn."""
    return request.param


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize(
    "shape",
    [
        Shape(512, 64, dtype=BF16),
        Shape(512, 64, dtype=FP32),
        Shape(32, 8, 4),
        Shape(100, 24, 12, FP16),
        Shape(33, 7, 5, BF16),
        Shape(80, 0, dtype=FP16),
        Shape(1, 3, 1),
    ],
    ids=lambda shape: "x".join(map(str, shape)),
)
def test_cells_hold_normalised_latents(each: Callable[..., None], shape: Shape) -> None:
    """Norm and weight are rounded once each, positional channels are copied, and no other cell changes."""
    for rows in (1, 15, 16, 17, 33):
        step = make_step(shape, rows)
        before = step.latents.clone()
        step.run(each)
        step.check()
        assert torch.equal(step.latents, before)


@given(
    rows=st.integers(0, 70),
    rank=st.integers(1, 40),
    rotary=st.integers(0, 20),
    block_size=st.integers(1, 20),
    dtype=st.sampled_from([FP32, BF16, FP16]),
    skipped=st.integers(0, 3),
)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_any_rows_and_widths(
    rows: int, rank: int, rotary: int, block_size: int, dtype: torch.dtype, skipped: int
) -> None:
    """Kernel and twin round at the same places, and rows of slot -1 may be NaN."""
    shape = Shape(rank, rotary, block_size, dtype)
    steps = [make_step(shape, rows, skipped=skipped) for _ in range(2)]
    for step, store in zip(steps, (latent_store, naive.latent_store), strict=True):
        step.run(store)
    if dtype != FP32:
        check_same_roundings(steps[0].storage, steps[1].storage)
    for step in steps:
        step.check()


def test_weight_of_another_dtype(each: Callable[..., None]) -> None:
    """A weight that is kept in fp32 is multiplied as it is."""
    step = make_step(Shape(64, 16, dtype=BF16), 5)
    step = Step(step.shape, step.latents, step.weight.float() * 1.001, step.slots, step.storage)
    step.run(each)
    step.check()


def test_captured_step_writes_rows_and_slots_of_the_moment(each: Callable[..., None]) -> None:
    """A capture writes nothing and notes the pages; each replay reads rows and slots anew."""
    step = make_step(Shape(32, 8, 4), 5)

    def body() -> Tensor:
        step.run(each)
        return step.pages

    graph = capture(body, torch.device("cpu"))
    assert graph.calls == 1
    held = {buffer.storage for buffer in graph.baked}
    everything = (step.latents, step.weight, step.slots, step.storage)
    assert {tensor.untyped_storage().data_ptr() for tensor in everything} <= held
    assert torch.equal(step.storage, torch.full_like(step.storage, GUARD))
    for _ in range(2):
        step.latents.normal_()
        step.slots[2] = -1
        graph.replay()
        step.check()


def test_slot_past_the_pool_is_a_fault() -> None:
    """A store to a block that the pool does not have names the pages."""
    step = make_step(Shape(16, 8), 2)
    step.slots[1] = step.pages.shape[0] * 16
    with pytest.raises(MemoryFaultError, match="outside") as caught:
        step.run(latent_store)
    assert caught.value.argument == "pages"


@pytest.mark.usefixtures("tile_sizes")
def test_two_rows_of_one_slot_are_a_race() -> None:
    """Rows that would write different latents to one cell are found, within a program and between programs."""
    step = make_step(Shape(16, 8), 3)
    step.slots[2] = step.slots[0]
    with pytest.raises(RaceError) as caught:
        step.run(latent_store)
    assert caught.value.argument == "pages"


@pytest.mark.parametrize("strides", [(1024, 40), (80, WRAP // 2)], ids=["blocks", "tokens"])
def test_cells_past_32_bits(each: Callable[..., None], strides: tuple[int, int]) -> None:
    """Cells on both sides of 2^31 elements are found where the strides say."""
    expanse = torch.empty_strided((WRAP + 2**20,), (1,), dtype=BF16)  # `empty` would be filled here
    step = make_step(Shape(32, 8, 3, BF16), 4)
    small = step.pages
    blocks = [0, WRAP // 1024 - 1, WRAP // 1024 + 3, 5] if strides[0] == 1024 else [5, 0, 2, 3]
    slots = torch.tensor(blocks) * 3 + 2
    pages = expanse.as_strided((max(blocks) + 1, 3, 40), (*strides, 1))
    each(step.latents, step.weight, EPS, slots, pages, rank=32)
    step.run(each)
    assert torch.equal(pages[slots // 3, 2], small[step.slots // 3, step.slots % 3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latents": torch.zeros(40)}, r"latents must be \[rows, width\], but has the shape \[40\]"),
        ({"latents": torch.zeros(2, 40, dtype=torch.float64)}, "latents must be torch.float32 or .*torch.float64"),
        ({"latents": torch.zeros(40, 2).t()}, "the last axis of latents must be contiguous"),
        ({"weight": torch.ones(40)}, r"weight must be \[rank=32\], .*rank is 40 rather than 32"),
        ({"weight": torch.ones(64)[::2]}, "the last axis of weight must be contiguous"),
        ({"cache_slots": torch.zeros(3, dtype=torch.int64)}, "cache_slots must be .*rows is 3 rather than 2"),
        ({"cache_slots": torch.zeros(2, dtype=torch.int32)}, "cache_slots must be torch.int64, but is torch.int32"),
        ({"cache_slots": torch.zeros(4, dtype=torch.int64)[::2]}, "the last axis of cache_slots must be contiguous"),
        ({"pages": torch.zeros(2, 4, 32)}, "pages must be .*width is 32 rather than 40"),
        ({"pages": torch.zeros(2, 4, 40, dtype=BF16)}, "pages must be torch.float32, but is torch.bfloat16"),
        ({"pages": torch.zeros(2, 40, 4).mT}, "the last axis of pages must be contiguous"),
        ({"rank": 41}, "rank is 41, but latents have 40 channels"),
        ({"rank": 0}, "rank is 0, but latents have 40 channels"),
    ],
)
def test_argument_that_does_not_fit(changes: dict[str, object], message: str) -> None:
    """The error names the argument, what came and what was expected."""
    arguments: dict[str, object] = {
        "latents": torch.zeros(2, 40),
        "weight": torch.ones(32),
        "eps": EPS,
        "cache_slots": torch.zeros(2, dtype=torch.int64),
        "pages": torch.zeros(2, 4, 40),
        "rank": 32,
    }
    call: Callable[..., None] = latent_store
    with pytest.raises(LaunchError, match=message):
        call(**{**arguments, **changes})
