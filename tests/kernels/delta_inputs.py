# SPDX-License-Identifier: MIT OR Apache-2.0
"""Batches for the delta rule in which all that need not be read is NaN, and their recurrence in float64."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from torch.nn import functional

from metrale_caps.kernels import delta_rule
from metrale_caps.kernels.architecture import Architecture, assume_architecture
from metrale_caps.kernels.delta_rule import chunk_tiles, chunked, gates, recurrent
from metrale_caps.kernels.naive import delta_rule as naive

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from torch import Tensor

    from metrale_caps.kernels.delta_arguments import DeltaShape
    from metrale_caps.kernels.delta_rule.chunk_tiles import ChunkTile

NAN = float("nan")
NOBODY = -1
SLACK = 1e-5
"""Error of the rule in fp32, relative to the largest magnitude: sums of up to 64 products and as many rows of a chunk,
each rounded by 2^-24, and decays whose exponents are sums of up to 64 numbers."""
_GUARD = 5
_HOPPER = Architecture("nvidia", generation=9, multiprocessors=132)


class Pair(NamedTuple):
    """One implementation of the rule: row by row, and in chunks."""

    recurrent: Callable[..., Tensor]
    chunked: Callable[..., Tensor]


KERNELS = Pair(delta_rule.recurrent_delta_rule, delta_rule.chunked_delta_rule)
TWINS = Pair(naive.recurrent_delta_rule, naive.chunked_delta_rule)
PAIRS = {"kernels": KERNELS, "twins": TWINS}
RULES: dict[str, Callable[..., Tensor]] = {
    f"{name}-{kind}": rule for name, pair in PAIRS.items() for kind, rule in pair._asdict().items()
}

each_pair = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
each_decay = pytest.mark.parametrize("per_channel", [False, True], ids=["head", "channel"])


class Shape(NamedTuple):
    """Heads of queries and keys, heads of values and of the state, and their widths."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int


SMALL = Shape(2, 4, 16, 24)
SHAPES = (SMALL, Shape(1, 3, 20, 12), Shape(2, 2, 64, 64))


class Exact(NamedTuple):
    """The rows' results `[rows, heads, value_dim]` and the state after each sequence, in float64."""

    output: Tensor
    states: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Arguments of the delta rule; the states are views of a pool with NaN around each slot."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor
    beta: Tensor
    pool: Tensor
    lengths: tuple[int, ...]
    slots: tuple[int, ...]
    dummy_slot: int | None
    shape: Shape

    @property
    def states(self) -> Tensor:
        """`[slots, heads, value_dim, key_dim]`; slots lie farther apart than they are large."""
        return _inside(self.pool).view(-1, self.shape.heads, self.shape.value_dim, self.shape.key_dim)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What a rule only reads, row by row."""
        return self.query, self.key, self.value, self.log_decay, self.beta

    @property
    def scale(self) -> float:
        return self.shape.key_dim**-0.5

    @property
    def row_starts(self) -> Tensor:
        return torch.tensor([0, *self.lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)

    def live(self) -> Iterator[tuple[int, int, slice]]:
        """Index, slot and rows of each sequence that is somebody's."""
        first = 0
        for index, (slot, length) in enumerate(zip(self.slots, self.lengths, strict=True)):
            if slot not in {NOBODY, self.dummy_slot}:
                yield index, slot, slice(first, first + length)
            first += length

    def advance(
        self, rule: Callable[..., Tensor], *, intermediates: Tensor | None = None, more_rows: int = 0
    ) -> Tensor:
        """Advance the pool in place; `more_rows` loosens the upper bound of the rows."""
        kept = {} if intermediates is None else {"intermediates": intermediates}
        return rule(
            *self.inputs,
            self.states,
            torch.tensor(self.slots, dtype=torch.int32),
            self.row_starts,
            scale=self.scale,
            max_rows=max(self.lengths, default=0) + more_rows,
            dummy_slot=self.dummy_slot,
            **kept,
        )

    def copy(self) -> Batch:
        """The same with a pool of its own."""
        return dataclasses.replace(self, pool=self.pool.clone())

    def with_pool(self, pool: Tensor) -> Batch:
        """The same rows on other states."""
        return dataclasses.replace(self, pool=pool)

    def of_rows(self, rows: slice, slot: int) -> Batch:
        """A batch of one sequence that has these rows, on the same pool."""
        query, key, value, log_decay, beta = (one[rows] for one in self.inputs)
        return dataclasses.replace(
            self,
            query=query,
            key=key,
            value=value,
            log_decay=log_decay,
            beta=beta,
            lengths=(query.shape[0],),
            slots=(slot,),
        )

    def exact(self, states: Sequence[Tensor] | None = None) -> Exact:
        """The recurrence row by row in float64, from these states or else from the pool's; nobody's rows are zeros."""
        group = self.shape.heads // self.shape.key_heads
        output = torch.zeros(self.value.shape, dtype=torch.float64)
        found = [torch.empty(0, dtype=torch.float64)] * len(self.slots)
        for index, slot, rows in self.live():
            state = self.states[slot].double() if states is None else states[index]
            for row in range(rows.start, rows.stop):
                q, k = (one[row].double().repeat_interleave(group, 0) for one in (self.query, self.key))
                decay = self.log_decay[row].double().exp()
                state = state * decay.reshape(self.shape.heads, 1, -1)
                said = torch.einsum("hvk,hk->hv", state, k)
                change = self.beta[row].double()[:, None] * (self.value[row].double() - said)
                state = state + change[:, :, None] * k[:, None]
                output[row] = torch.einsum("hvk,hk->hv", state, q) * self.scale
            found[index] = state
        return Exact(output, tuple(found))

    def check(self, output: Tensor, exact: Exact, tolerance: float = SLACK) -> None:
        """Require an output and the states in the pool to be exact but for a share of the largest magnitude."""
        assert output.shape == exact.output.shape
        assert output.dtype == self.query.dtype
        check_close(output, exact.output, tolerance)
        for index, slot, _ in self.live():
            check_close(self.states[slot], exact.states[index], tolerance)

    def check_only_own_states_changed(self, before: Batch) -> None:
        """Require every byte of the pool that is no sequence's state, or one without rows, to be what it was."""
        others = torch.ones(self.pool.shape, dtype=torch.bool)
        for _, slot, rows in self.live():
            if rows.start < rows.stop:
                _inside(others)[slot] = False
        assert torch.equal(bits(self.pool)[others], bits(before.pool)[others])


def _inside(pool: Tensor) -> Tensor:
    return pool[:, _GUARD : pool.shape[1] - _GUARD]


def bits(tensor: Tensor) -> Tensor:
    """The bits of an fp32 tensor, in which one NaN equals itself."""
    return tensor.view(torch.int32)


def check_close(found: Tensor, exact: Tensor, tolerance: float) -> None:
    """Require no error to exceed a share of the largest magnitude; a NaN does."""
    if exact.numel():
        error, largest = (found.double() - exact).abs().max(), exact.abs().max()
        assert error <= tolerance * largest, f"error {error:.3g} is {error / largest:.3g} of the largest magnitude"


def make_batch(
    lengths: Sequence[int],
    shape: Shape = SMALL,
    *,
    per_channel: bool = False,
    dtype: torch.dtype = torch.float32,
    slots: Sequence[int] | None = None,
    dummy_slot: int | None = None,
    seed: int = 0,
) -> Batch:
    """Return a batch of sequences with random contents, each decay between 0.55 and 0.98.

    Args:
        lengths: rows of each sequence.
        shape: numbers and widths of heads.
        per_channel: whether each key channel has a decay of its own.
        dtype: of queries, keys and values, which are slices of one packed tensor that is NaN between.
        slots: slot of each sequence, or None for random ones.
        dummy_slot: a slot that is nobody's, or None.
        seed: of the contents.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, key_heads, heads = sum(lengths), shape.key_heads, shape.heads
    wide = max(shape.key_dim, shape.value_dim) + 3
    packed = torch.full((rows + 2, 2 * key_heads + heads + 2, wide), NAN, dtype=dtype)[1 : rows + 1]
    query, key = (packed[:, at : at + key_heads, : shape.key_dim] for at in (1, 1 + key_heads))
    value = packed[:, 1 + 2 * key_heads : 1 + 2 * key_heads + heads, 1 : 1 + shape.value_dim]
    for part in (query, key):
        part.copy_(functional.normalize(torch.randn(part.shape, generator=generator), dim=-1))
    value.copy_(torch.randn(value.shape, generator=generator))
    channels = (shape.key_dim,) if per_channel else ()
    around = torch.full((rows + 2, heads + 3, *(width + 3 for width in channels)), NAN)
    log_decay = around[1 : rows + 1, 2 : 2 + heads]
    if per_channel:
        log_decay = log_decay[..., 1 : 1 + shape.key_dim]
    log_decay.copy_((0.55 + 0.43 * torch.rand(log_decay.shape, generator=generator)).log())
    beta = torch.full((rows + 2, heads + 3), NAN)[1 : rows + 1, 1 : 1 + heads]
    beta.copy_(torch.rand(beta.shape, generator=generator))
    size = heads * shape.value_dim * shape.key_dim
    if slots is None:
        slots = [int(slot) for slot in torch.randperm(len(lengths) + 2, generator=generator)[: len(lengths)]]
    pool = torch.full((max(len(lengths) + 1, *slots, 0) + 1, size + 2 * _GUARD), NAN)
    batch = Batch(
        query=query,
        key=key,
        value=value,
        log_decay=log_decay,
        beta=beta,
        pool=pool,
        lengths=tuple(lengths),
        slots=tuple(slots),
        dummy_slot=dummy_slot,
        shape=shape,
    )
    for _, slot, _ in batch.live():
        batch.states[slot] = torch.randn(batch.states.shape[1:], generator=generator)
    return batch


def _on_hopper(_device: torch.device) -> Architecture:
    return _HOPPER


def _hopper_tile(_device: torch.device, dtype: torch.dtype, shape: DeltaShape) -> ChunkTile | None:
    with assume_architecture(_HOPPER):
        return chunk_tiles.chunk_tile(torch.device("meta"), dtype, shape)


@contextlib.contextmanager
def gpu_tiles() -> Generator[None]:
    """Run the delta rule's kernels with the tiles of an H100: more programs, and loops over channels and columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "chunk_tile", _hopper_tile)
        for module in (recurrent, gates):
            patch.setattr(module, "architecture_of", _on_hopper)
        yield
