# SPDX-License-Identifier: MIT OR Apache-2.0
"""Latent attention against the definition in float64: heads, widths, rows, pages, and nothing unseen is read."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import LaunchError
from metrale_caps.kernels import latent_attention
from metrale_caps.kernels.architecture import Architecture, assume_architecture
from metrale_caps.kernels.graphs import capture
from metrale_caps.kernels.host import host_integers
from metrale_caps.kernels.naive import latent as naive
from tests.kernels.batches import NO_BLOCK, Exact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

pytestmark = pytest.mark.usefixtures("poisoned_empty")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
NAN = float("nan")
DECODE = [(length - 1, 1) for length in (1, 15, 16, 17, 32, 33, 150)]
RAGGED = [(0, 1), (16, 4), (33, 17), (0, 4), (0, 33), (16, 1), (131, 9), (33, 0)]
KERNEL, TWIN = latent_attention.latent_attention, naive.latent_attention


class Shape(NamedTuple):
    """Heads, channels of latents, positional channels, and tokens of a block."""

    heads: int
    rank: int
    rotary: int
    block_size: int = 16


SMALL = Shape(3, 32, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Arguments of latent attention, and the latents of each sequence as dense tensors."""

    query: Tensor
    latents: Tensor
    block_tables: Tensor
    lengths: Tensor
    row_starts: Tensor
    rank: int
    sequences: tuple[tuple[int, int], ...]
    dense: tuple[Tensor, ...]

    @property
    def scale(self) -> float:
        return self.query.shape[2] ** -0.5

    def attend(self, attention: Callable[..., Tensor], *, splits: int | None = None, more_rows: int = 0) -> Tensor:
        """Run latent attention; `more_rows` loosens the upper bound of the rows."""
        return attention(
            self.query,
            self.latents,
            self.block_tables,
            self.lengths,
            self.row_starts,
            rank=self.rank,
            scale=self.scale,
            max_rows=max(rows for _, rows in self.sequences) + more_rows,
            max_length=max(history + rows for history, rows in self.sequences),
            splits=splits,
        )

    def exact(self) -> Exact:
        """The attention of each row over the latents it sees, one row at a time, in float64."""
        mixed = torch.zeros(*self.query.shape[:2], self.rank, dtype=torch.float64)
        magnitude = torch.zeros_like(mixed)
        at = 0
        for (history, rows), dense in zip(self.sequences, self.dense, strict=True):
            for position in range(history, history + rows):
                if position >= 0:
                    keys = dense[: position + 1].double()
                    weights = (self.query[at].double() @ keys.T * self.scale).softmax(-1)
                    mixed[at] = weights @ keys[:, : self.rank]
                    magnitude[at] = weights @ keys[:, : self.rank].abs()
                at += 1
        return Exact(mixed, magnitude, self.query.dtype)


def make_batch(
    sequences: Sequence[tuple[int, int]],
    shape: Shape,
    *,
    dtype: torch.dtype = FP32,
    spare_columns: int = 0,
    guards: int = 1,
) -> Batch:
    """Return a batch of sequences with random contents; a negative history makes rows that see nothing.

    Cells that belong to no latent are NaN, entries of tables that belong to no block are far outside of the pool, which
    is one layer's share of a wider one. With `guards` there is NaN around the channels of pages and queries, too.
    """
    generator = torch.Generator().manual_seed(0)
    width, block_size = shape.rank + shape.rotary, shape.block_size
    lengths = [history + rows for history, rows in sequences]
    needed = [max(0, -(-length // block_size)) for length in lengths]
    order = torch.randperm(sum(needed) + 3, generator=generator)
    pool = torch.full((len(order), 2, block_size + guards, width + 8 * guards), NAN, dtype=dtype)
    latents = pool[:, 1, :block_size, 4 * guards : 4 * guards + width]
    wide = torch.full((len(lengths), max(1, *needed) + spare_columns + 2 * guards), NO_BLOCK, dtype=torch.int32)
    tables = wide[:, guards : wide.shape[1] - guards]
    dense: list[Tensor] = []
    for index, length in enumerate(lengths):
        blocks = order[sum(needed[:index]) : sum(needed[: index + 1])]
        tables[index, : len(blocks)] = blocks.int()
        positions = torch.arange(max(0, length))
        dense.append(torch.randn(len(positions), width, generator=generator).to(dtype))
        latents[blocks[positions // block_size], positions % block_size] = dense[-1]
    counts = [rows for _, rows in sequences]
    packed = torch.full((sum(counts) + 2, shape.heads + 2, width + 8 * guards), NAN, dtype=dtype)
    query = packed[1 : 1 + sum(counts), : shape.heads, 4 * guards : 4 * guards + width]
    query.copy_(torch.randn(query.shape, generator=generator))
    return Batch(
        query=query,
        latents=latents,
        block_tables=tables,
        lengths=torch.tensor(lengths, dtype=torch.int32),
        row_starts=torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        rank=shape.rank,
        sequences=tuple(sequences),
        dense=tuple(dense),
    )


@pytest.fixture(scope="module", params=[KERNEL, TWIN], ids=["triton", "naive"])
def each(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    """Kernel and twin in turn."""
    return request.param


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (Shape(16, 512, 64), BF16),
        (Shape(1, 512, 64), FP32),
        (Shape(32, 128, 16, 4), BF16),
        (Shape(128, 64, 32), FP16),
        (Shape(4, 32, 8), FP32),
        (Shape(3, 100, 24, 12), FP32),
        (Shape(5, 33, 7, 12), BF16),
        (Shape(20, 80, 0, 4), FP16),
        (Shape(2, 8, 8, 1), FP32),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, Shape) else str(value),
)
@pytest.mark.parametrize("sequences", [DECODE, RAGGED], ids=["decode", "ragged"])
def test_every_shape(shape: Shape, dtype: torch.dtype, sequences: list[tuple[int, int]]) -> None:
    """Kernel and twin give the exact attention, for tables as wide as needed (decode) or wider (ragged)."""
    batch = make_batch(sequences, shape, dtype=dtype, spare_columns=int(sequences is RAGGED))
    exact = batch.exact()
    exact.check(batch.attend(KERNEL), weights_rounded=True)
    exact.check(batch.attend(TWIN), weights_rounded=False)


def test_absorbed_attention_is_expanded_attention(each: Callable[..., Tensor]) -> None:
    """With `Uk` in the query and `Uv` after it, the result is attention over the keys and values of each head."""
    batch = make_batch([(4, 1), (0, 7), (30, 3)], Shape(4, 32, 8))
    up_key, up_value = torch.randn(2, 4, 16, 32, generator=torch.Generator().manual_seed(1))
    plain = torch.randn(11, 4, 16, generator=torch.Generator().manual_seed(2))
    batch.query[..., :32] = torch.einsum("rhn,hnc->rhc", plain, up_key)
    absorbed = torch.einsum("rhc,hvc->rhv", batch.attend(each), up_value)
    at = 0
    for (history, rows), dense in zip(batch.sequences, batch.dense, strict=True):
        for position in range(history, history + rows):
            latent, positional = dense[: position + 1].double().tensor_split([32], dim=1)
            keys = torch.einsum("nc,hdc->hnd", latent, up_key.double())
            values = torch.einsum("nc,hvc->hnv", latent, up_value.double())
            scores = (keys @ plain[at].double()[..., None])[..., 0]
            scores += batch.query[at, :, 32:].double() @ positional.T
            expected = ((scores * batch.scale).softmax(-1)[:, None] @ values)[:, 0]
            torch.testing.assert_close(absorbed[at].double(), expected, rtol=0, atol=1e-4)
            at += 1


def test_pages_and_queries_without_guards(each: Callable[..., Tensor]) -> None:
    """Every second layer of a dense pool, with dense queries and tables, gives what guarded views give."""
    dense, guarded = (make_batch(RAGGED, SMALL, guards=guards).attend(each) for guards in (0, 1))
    assert torch.equal(dense, guarded)


@given(
    sequences=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=5),
    heads=st.integers(1, 6),
    more_rows=st.integers(1, 70),
)
@settings(max_examples=25, derandomize=True, deadline=None)
def test_any_rows_of_any_sequences(sequences: list[tuple[int, int]], heads: int, more_rows: int) -> None:
    """Histories and rows may be anything, none included, and the upper bound of rows may be loose."""
    batch = make_batch(sequences, SMALL._replace(heads=heads, block_size=4))
    exact = batch.exact()
    exact.check(batch.attend(KERNEL, more_rows=more_rows), weights_rounded=True)
    exact.check(batch.attend(TWIN, more_rows=more_rows), weights_rounded=False)


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("splits", [1, 2, 3, 8, None])
def test_splits_change_nothing(splits: int | None) -> None:
    """Keys split over programs, some of which see none, combine to the exact attention for one row or more."""
    for sequences in ([(149, 1), (0, 1), (16, 1), (32, 1), (-1, 1)], [(140, 10), (0, 5), (-7, 7), (20, 17)]):
        batch = make_batch(sequences, SMALL)
        batch.exact().check(batch.attend(KERNEL, splits=splits), weights_rounded=True)


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("rows", [1, 3])
def test_padding_row_is_zero_and_leaves_the_others_alone(each: Callable[..., Tensor], splits: int, rows: int) -> None:
    """Three sequences padded to four give the bits that three give, and exact zeros for the empty one."""
    real = [(16, rows), (5, rows), (33, rows)]
    alone = make_batch(real, SMALL, dtype=BF16)
    padded = make_batch([*real, (-rows, rows)], SMALL, dtype=BF16)
    padded.query[: 3 * rows].copy_(alone.query)
    padded = dataclasses.replace(
        padded,
        latents=alone.latents,
        block_tables=torch.cat([alone.block_tables, torch.full_like(alone.block_tables[:1], NO_BLOCK)]),
    )
    output = padded.attend(each, splits=splits)
    assert torch.equal(output[: 3 * rows], alone.attend(each, splits=splits))
    assert torch.equal(output[3 * rows :], torch.zeros_like(output[3 * rows :]))


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("splits", [1, 2])
def test_row_without_a_visible_latent_is_zero(each: Callable[..., Tensor], splits: int) -> None:
    """Of a step with more rows than tokens the first rows lie before the sequence, and see nothing."""
    batch = make_batch([(-2, 4), (-20, 21), (3, 2)], SMALL)
    output = batch.attend(each, splits=splits)
    assert not output[:2].any()
    assert not output[4:24].any()
    batch.exact().check(output, weights_rounded=True)


def test_prefill_in_chunks_equals_prefill_whole(each: Callable[..., Tensor]) -> None:
    """Later latents that are already in the pages do not show in earlier chunks."""
    batch = make_batch([(0, 33)], SMALL)
    chunks: list[Tensor] = []
    for first, last in ((0, 1), (1, 16), (16, 18), (18, 33)):
        chunk = dataclasses.replace(
            batch,
            query=batch.query[first:last],
            lengths=torch.tensor([last], dtype=torch.int32),
            row_starts=torch.tensor([0, last - first], dtype=torch.int32),
            sequences=((first, last - first),),
        )
        chunks.append(chunk.attend(each))
    torch.testing.assert_close(torch.cat(chunks), batch.attend(each), rtol=0, atol=2e-6)


def test_second_call_equals_first(each: Callable[..., Tensor]) -> None:
    """The first call for a new shape does what every later one does, and no input changes."""
    batch = make_batch([(11, 2), (0, 1)], Shape(5, 40, 24, 5))
    inputs = (batch.query, batch.latents, batch.block_tables, batch.lengths, batch.row_starts)
    before = [tensor.clone() for tensor in inputs]
    first, second = batch.attend(each), batch.attend(each)
    assert torch.equal(first, second)
    for was, tensor in zip(before, inputs, strict=True):
        assert torch.equal(was.nan_to_num(7.0), tensor.nan_to_num(7.0))


@pytest.mark.parametrize("sequences", [[], [(0, 0), (5, 0)]])
def test_no_rows_give_no_rows(each: Callable[..., Tensor], sequences: list[tuple[int, int]]) -> None:
    """A step without sequences, or whose sequences have no rows, reads nothing."""
    output = each(
        torch.zeros(0, 3, 24),
        torch.full((2, 4, 24), NAN),
        torch.full((len(sequences), 2), NO_BLOCK, dtype=torch.int32),
        torch.zeros(len(sequences), dtype=torch.int32),
        torch.zeros(len(sequences) + 1, dtype=torch.int32),
        rank=16,
        scale=1.0,
        max_rows=1,
        max_length=8,
        splits=2,
    )
    assert output.shape == (0, 3, 16)


def test_captured_step_reads_tables_and_lengths_anew(each: Callable[..., Tensor]) -> None:
    """A capture computes nothing; each replay attends over what the pages and lengths then hold."""
    batch = make_batch([(11, 1), (4, 1)], SMALL, guards=0)
    graph = capture(lambda: batch.attend(each), torch.device("cpu"))
    for length in (12, 7, 1):
        batch.lengths[0] = length
        batch.query.normal_()
        graph.replay()
        assert torch.equal(graph.output, batch.attend(each))


def _far(batch: Batch, expanse: Tensor, strides: tuple[int, int], blocks: list[int]) -> Batch:
    """The batch with its only sequence's blocks moved to these of a pool with these strides of blocks and tokens."""
    _, block_size, width = batch.latents.shape
    pool = expanse.as_strided((max(blocks) + 1, block_size, width), (*strides, 1))
    for new, old in zip(blocks, host_integers(batch.block_tables[0]), strict=True):
        pool[new].copy_(batch.latents[old])
    return dataclasses.replace(batch, latents=pool, block_tables=torch.tensor([blocks], dtype=torch.int32))


@pytest.fixture(scope="module")
def expanse() -> Tensor:
    """A tensor of 2^31 elements and some, of which only touched pages take memory."""
    return torch.empty_strided((2**31 + 2**20,), (1,), dtype=BF16)  # `empty` would be filled here


@pytest.mark.parametrize("layout", ["blocks", "tokens", "rows", "heads"])
def test_offsets_past_32_bits(each: Callable[..., Tensor], expanse: Tensor, layout: str) -> None:
    """Pages and queries on both sides of 2^31 elements give what small ones give."""
    batch = make_batch([(29, 3)], Shape(3, 32, 0), dtype=BF16, guards=0)
    if layout == "blocks":
        large = _far(batch, expanse, (1024, 32), [2**21 + 3, 2**21 - 1])
    elif layout == "tokens":
        batch = make_batch([(5, 1)], Shape(3, 32, 0, 3), dtype=BF16, guards=0)
        large = _far(batch, expanse, (64, 2**30), [5, 2])
    else:
        strides = (2**30, 32, 1) if layout == "rows" else (32, 2**30, 1)
        large = dataclasses.replace(batch, query=expanse.as_strided((3, 3, 32), strides).copy_(batch.query))
    assert torch.equal(large.attend(each), batch.attend(each))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": torch.zeros(2, 40)}, r"query must be \[rows, heads, width\], but has the shape \[2, 40\]"),
        ({"query": torch.zeros(2, 3, 48)}, r"latents must be .*width is 40 rather than 48"),
        ({"query": torch.zeros(2, 3, 40, dtype=torch.float64)}, "query must be torch.float32 or .*torch.float64"),
        ({"query": torch.zeros(2, 40, 3).mT}, "the last axis of query must be contiguous"),
        ({"latents": torch.zeros(2, 4, 40, dtype=BF16)}, "latents must be torch.float32, but is torch.bfloat16"),
        ({"latents": torch.zeros(2, 40, 4).mT}, "the last axis of latents must be contiguous"),
        ({"block_tables": torch.zeros(3, 2, dtype=torch.int32)}, "block_tables must be .*sequences is 3 rather than 2"),
        ({"lengths": torch.zeros(2, dtype=torch.int64)}, "lengths must be torch.int32, but is torch.int64"),
        ({"row_starts": torch.zeros(2, dtype=torch.int32)}, "row_starts must be .* is 2 rather than 3"),
        ({"rank": 41}, "rank is 41, but query and latents have 40 channels"),
        ({"rank": 0}, "rank is 0, but"),
        ({"max_rows": 0}, "max_rows is 0, but query has 2 rows"),
        ({"splits": 0}, "splits is 0; the keys of a row need at least one program"),
    ],
)
def test_argument_that_does_not_fit(changes: dict[str, object], message: str) -> None:
    """The error names the argument, what came and what was expected."""
    arguments: dict[str, object] = {
        "query": torch.zeros(2, 3, 40),
        "latents": torch.zeros(2, 4, 40),
        "block_tables": torch.zeros(2, 2, dtype=torch.int32),
        "lengths": torch.ones(2, dtype=torch.int32),
        "row_starts": torch.arange(3, dtype=torch.int32),
        "rank": 32,
        "scale": 1.0,
        "max_rows": 1,
        "max_length": 1,
    }
    call: Callable[..., Tensor] = KERNEL
    with pytest.raises(LaunchError, match=message):
        call(**{**arguments, **changes})


@pytest.mark.parametrize(("rank", "dtype"), [(1025, BF16), (513, FP32)])
def test_rank_that_no_gpu_holds(rank: int, dtype: torch.dtype) -> None:
    """Sums of a row have to fit registers on a GPU; a CPU takes any."""
    device = torch.device("meta")
    for architecture in (Architecture("nvidia", generation=9), Architecture("amd")):
        with assume_architecture(architecture):
            assert latent_attention.latent_tile(device, dtype, rank - 1, 1, 16).lanes == 16
            with pytest.raises(LaunchError, match=f"rank is {rank}, but a GPU holds sums of at most {rank - 1}"):
                latent_attention.latent_tile(device, dtype, rank, 1, 16)
