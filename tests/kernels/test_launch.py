# SPDX-License-Identifier: MIT OR Apache-2.0
"""The launch: what it refuses, what it runs, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
import triton.language as tl

from metrale_caps.errors import LaunchError, MemoryFaultError
from metrale_caps.kernels.launch import launch, record_launches

if TYPE_CHECKING:
    from collections.abc import Mapping


@triton.jit
def add_kernel(x: tl.tensor, y: tl.tensor, amount: tl.tensor, N: tl.constexpr) -> None:
    lane = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y + lane, tl.load(x + lane) + amount)


def _arguments(**others: Any) -> dict[str, Any]:
    return {"x": torch.arange(8.0), "y": torch.zeros(8), "amount": 2.0, "N": 4, **others}


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in _arguments().items() if key != name}


def test_kernel_runs_over_the_grid() -> None:
    """Every program of the grid runs once, on the tensors themselves."""
    arguments = _arguments()
    launch(add_kernel, (2,), writes=("y",), **arguments)
    assert torch.equal(arguments["y"], torch.arange(8.0) + 2)
    launch(add_kernel, (1,), writes=("y",), **_arguments(y=arguments["y"], amount=0.0))
    assert torch.equal(arguments["y"], torch.cat([torch.arange(4.0), torch.arange(4.0, 8.0) + 2]))


@pytest.mark.parametrize("grid", [(0,), (0, 5), (3, 0, 2)])
def test_empty_grid_runs_nothing(grid: tuple[int, ...]) -> None:
    """A grid without programs leaves every tensor alone."""
    arguments = _arguments()
    launch(add_kernel, grid, writes=("y",), **arguments)
    assert not arguments["y"].any()


@pytest.mark.parametrize(
    ("arguments", "writes", "message"),
    [
        (_without("amount"), ("y",), r"missing arguments \['amount'\]"),
        (_without("N"), ("y",), r"missing arguments \['N'\]"),
        (_arguments(count=3), ("y",), r"unknown arguments \['count'\]"),
        (
            _without("x") | {"input": torch.zeros(8)},
            ("y",),
            r"missing arguments \['x'\], unknown arguments \['input'\]",
        ),
        (_arguments(), ("z",), "'z'"),
        (_arguments(x=torch.zeros(8, device="meta")), ("y",), r"\['cpu', 'meta'\]"),
        (_arguments(x=1.0, y=2.0), (), "one device"),
    ],
    ids=["missing", "missing constant", "unknown", "misspelt", "unknown write", "two devices", "no tensor"],
)
@pytest.mark.parametrize("grid", [(2,), (0,)], ids=["some programs", "no programs"])
def test_wrong_arguments_are_named(
    grid: tuple[int, ...], arguments: Mapping[str, Any], writes: tuple[str, ...], message: str
) -> None:
    """The error names kernel and argument, and comes even where nothing would have run."""
    with pytest.raises(LaunchError, match=message) as caught:
        launch(add_kernel, grid, writes=writes, **arguments)
    assert "add_kernel" in str(caught.value)


def test_argument_that_is_not_declared_written_is_read_only() -> None:
    """A store to a tensor that `writes` does not name is a fault, and is not done."""
    arguments = _arguments()
    with pytest.raises(MemoryFaultError, match="read-only") as caught:
        launch(add_kernel, (2,), writes=("x",), **arguments)
    assert caught.value.argument == "y"
    assert not arguments["y"].any()


def test_tensors_without_data_are_recorded_and_not_run() -> None:
    """On the meta device a launch is noted with all it was given, by every recorder that is open."""
    arguments = _arguments(x=torch.zeros(8, device="meta"), y=torch.zeros(8, device="meta"))
    launch(add_kernel, (2,), writes=("y",), **arguments)
    with record_launches() as outer:
        with record_launches() as inner:
            launch(add_kernel, (2,), writes=("y",), num_warps=8, num_stages=3, **arguments)
        launch(add_kernel, (3, 0), writes=("y",), **arguments)
        launch(add_kernel, (1,), writes=("y",), **arguments)
    assert [len(inner), len(outer)] == [1, 2]
    assert (inner[0].kernel, inner[0].grid, inner[0].num_warps, inner[0].num_stages) == (add_kernel, (2,), 8, 3)
    assert inner[0].arguments["y"] is arguments["y"]
