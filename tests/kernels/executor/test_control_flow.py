# SPDX-License-Identifier: MIT OR Apache-2.0
"""Loops, branches, early returns, calls, the grid, assertions and prints."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import KernelError, UnsupportedOperationError
from metrale_caps.kernels.executor import execute
from metrale_caps.kernels.executor.codegen import generate
from metrale_caps.kernels.executor.memory import Argument
from tests.kernels.executor.values import listed

examples = settings(max_examples=12, deadline=None)


@triton.jit
def loop_kernel(out: tl.tensor, start: tl.tensor, stop: tl.tensor, N: tl.constexpr) -> None:
    """Carries a scalar that becomes a tensor, and a pointer that moves."""
    total = tl.zeros((N,), tl.int32)
    place = out + tl.arange(0, N)
    for step in range(start, stop, 3):
        total += step + tl.arange(0, N)
        tl.store(place, total)
        place += N


@triton.jit
def collatz_kernel(x: tl.tensor, out: tl.tensor) -> None:
    number = tl.load(x)
    steps = 0
    while number != 1:
        if number % 2 == 0:  # noqa: SIM108 - the branch is what is tested
            number = number // 2
        else:
            number = 3 * number + 1
        steps += 1
    tl.store(out, steps)


@triton.jit
def early_return_kernel(x: tl.tensor, out: tl.tensor, count: tl.tensor, N: tl.constexpr) -> None:
    program = tl.program_id(0)
    if program >= count:
        return
    value = tl.load(x + program * N + tl.arange(0, N))
    if tl.max(value, 0) < 0:
        tl.store(out + program, -1.0)
        return
    tl.store(out + program, tl.sum(value, 0))


@triton.jit(noinline=True)
def twice_at(x: tl.tensor, scale: tl.tensor) -> tl.tensor:
    if scale > 100:
        return scale
    return tl.load(x) * 2 * scale


@triton.jit
def call_kernel(x: tl.tensor, out: tl.tensor, scale: tl.tensor) -> None:
    first = twice_at(x, scale)
    second = twice_at(x + 1, scale * 3)
    tl.store(out, first)
    tl.store(out + 1, second)


@triton.jit
def grid_kernel(out: tl.tensor) -> None:
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out + at, x + 10 * y + 100 * z)


@triton.jit
def assert_kernel(x: tl.tensor) -> None:
    value = tl.load(x + tl.arange(0, 4))
    tl.device_assert(value >= 0, "value is negative")


@triton.jit
def print_kernel(x: tl.tensor) -> None:
    tl.device_print("value: ", tl.load(x))


@triton.jit
def barrier_kernel(x: tl.tensor) -> None:
    value = tl.load(x)
    tl.assume(value > 0)
    tl.debug_barrier()
    tl.store(x, value + 1)


@triton.jit
def choose_kernel(x: tl.tensor, out: tl.tensor, which: tl.tensor) -> None:
    """A branch that yields addresses in one argument."""
    if which > 0:  # noqa: SIM108 - the branch is what is tested
        place = x + 1
    else:
        place = x + 2
    tl.store(out, tl.load(place))
    tl.store(out + 1, tl.load(tl.where(which > 0, x + 2, x + 1)))


@triton.jit
def effects_kernel(out: tl.tensor, count: tl.tensor) -> None:
    """A branch and a loop that yield nothing: their last operation is a store."""
    if count > 2:
        tl.store(out, 1.0)
    else:
        tl.store(out + 1, 2.0)
    for step in range(count):
        tl.store(out + 2 + step, tl.cast(step, tl.float32) + 3)


@triton.jit
def mixed_kernel(x: tl.tensor, y: tl.tensor, which: tl.tensor) -> None:
    place = x
    if which > 0:
        place = y
    tl.store(place, 1.0)


@triton.jit
def assembly_kernel(x: tl.tensor) -> None:
    value = tl.load(x)
    tl.store(x, tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], tl.float32, True, 1))


@triton.jit
def table_kernel(addresses: tl.tensor) -> None:
    tl.store(tl.load(addresses).to(tl.pointer_type(tl.float32)), 1.0)


@examples
@given(start=st.integers(-20, 20), stop=st.integers(-20, 20))
def test_for_loop_carries_values_and_addresses(start: int, stop: int) -> None:
    """Every pass stores the running total where the moved address points."""
    steps = list(range(start, stop, 3))
    out = torch.zeros(max(len(steps), 1), 4, dtype=torch.int32)
    execute(loop_kernel, (1,), {"out": out, "start": start, "stop": stop, "N": 4})
    total = np.zeros(4, np.int64)
    for row, step in enumerate(steps):
        total += step + np.arange(4)
        assert listed(out[row]) == total.tolist()


@pytest.mark.parametrize("count", [0, 2, 4])
def test_branches_and_loops_that_only_store(count: int) -> None:
    """Every store is done, the last one of a block included."""
    out = torch.zeros(6)
    execute(effects_kernel, (1,), {"out": out, "count": count})
    expected = [float(count > 2), 2.0 * (count <= 2), *(3.0 + step for step in range(count))]
    assert listed(out) == expected + [0.0] * (6 - len(expected))


@examples
@given(number=st.integers(1, 1000))
def test_while_loop_and_branches(number: int) -> None:
    """Steps of the Collatz sequence."""
    out = torch.zeros(1, dtype=torch.int32)
    execute(collatz_kernel, (1,), {"x": torch.tensor([number], dtype=torch.int32), "out": out})
    steps = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    assert out.item() == steps


def test_early_return_leaves_the_rest_undone() -> None:
    """Programs past the count store nothing; others take the branch that their data chooses."""
    x = torch.randn(4, 8)
    x[1] = -x[1].abs() - 1
    out = torch.full((4,), 77.0)
    execute(early_return_kernel, (4,), {"x": x, "out": out, "count": 3, "N": 8}, writes=("out",))
    assert out[1] == -1
    assert out[3] == 77
    torch.testing.assert_close(out[[0, 2]], x[[0, 2]].sum(1))


@pytest.mark.parametrize("scale", [1.5, 70.0])
def test_device_function_that_is_not_inlined(scale: float) -> None:
    """Each call knows which argument its address is in; early returns inside the function are its own."""
    x, out = torch.tensor([2.0, 5.0]), torch.zeros(2)
    execute(call_kernel, (1,), {"x": x, "out": out, "scale": scale}, writes=("out",))
    expected = [2.0 * 2 * scale, 5.0 * 2 * 3 * scale if 3 * scale <= 100 else 3 * scale]
    torch.testing.assert_close(out, torch.tensor(expected))


def test_program_positions_and_grid_extents() -> None:
    """Every program of a three-dimensional grid runs once with its own position."""
    out = torch.full((2, 3, 4), -1, dtype=torch.int32)
    execute(grid_kernel, (4, 3, 2), {"out": out})
    z, y, x = torch.meshgrid(torch.arange(2), torch.arange(3), torch.arange(4), indexing="ij")
    assert torch.equal(out.long(), x + 10 * y + 100 * z)


def test_device_assertion_is_checked() -> None:
    """A false lane fails the launch with the kernel's name and the message."""
    execute(assert_kernel, (1,), {"x": torch.arange(4.0)})
    with pytest.raises(KernelError, match=r"assert_kernel.*value is negative"):
        execute(assert_kernel, (1,), {"x": torch.arange(4.0) - 1})


def test_device_print_writes_values(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each value, with the program's position."""
    execute(print_kernel, (1,), {"x": torch.tensor([2.5])})
    assert "value: 2.5" in capsys.readouterr().out.replace("  ", " ")


def test_barriers_and_assumptions_do_nothing() -> None:
    """A program is one thread."""
    x = torch.tensor([1.0])
    execute(barrier_kernel, (1,), {"x": x})
    assert x.item() == 2


@pytest.mark.parametrize("which", [0, 1])
def test_chosen_address_in_one_argument(which: int) -> None:
    """A branch and a selection between addresses of the same argument."""
    x, out = torch.arange(3.0), torch.zeros(2)
    execute(choose_kernel, (1,), {"x": x, "out": out, "which": which}, writes=("out",))
    assert listed(out) == ([1, 2] if which else [2, 1])


@pytest.mark.parametrize(
    ("kernel", "arguments", "operation"),
    [
        (assembly_kernel, {"x": torch.zeros(1)}, "tt.elementwise_inline_asm"),
        (table_kernel, {"addresses": torch.zeros(1, dtype=torch.int64)}, "tt.int_to_ptr"),
    ],
)
def test_unsupported_operation_is_named(kernel: object, arguments: dict[str, object], operation: str) -> None:
    """The error names the operation and the kernel."""
    with pytest.raises(UnsupportedOperationError) as caught:
        execute(kernel, (1,), arguments)
    assert caught.value.operation == operation
    assert caught.value.kernel in str(caught.value)


def test_address_that_may_be_in_two_arguments_is_unsupported() -> None:
    """Its accesses could not be checked against one argument."""
    with pytest.raises(UnsupportedOperationError, match="mixed_kernel"):
        execute(mixed_kernel, (1,), {"x": torch.zeros(1), "y": torch.zeros(1), "which": 1})


BRANCHES = """
module {
  tt.func public @branches(%arg0: !tt.ptr<i32>, %arg1: i32) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c7 = arith.constant 7 : i32
    %0 = arith.cmpi sgt, %arg1, %c0 : i32
    cf.cond_br %0, ^bb1(%arg1, %c1 : i32, i32), ^bb2(%c7 : i32)
  ^bb1(%1: i32, %2: i32):  // 2 preds: ^bb0, ^bb1
    %3 = arith.subi %1, %c1 : i32
    %4 = arith.addi %2, %2 : i32
    %5 = arith.cmpi sgt, %3, %c0 : i32
    cf.cond_br %5, ^bb1(%3, %4 : i32, i32), ^bb3
  ^bb2(%6: i32):  // pred: ^bb0
    tt.store %arg0, %6 : !tt.ptr<i32>
    cf.br ^bb4
  ^bb3:  // pred: ^bb1
    tt.store %arg0, %4 : !tt.ptr<i32>
    cf.br ^bb4
  ^bb4:
    gpu.barrier
    ttg.barrier local
    tt.return
  }
}
"""


@pytest.mark.parametrize("count", [-1, 0, 1, 5])
def test_blocks_with_arguments(count: int) -> None:
    """Unstructured control flow: a loop of blocks, and blocks that join."""
    out = np.zeros(1, np.int32)
    kernel = generate(BRANCHES, "branches")
    kernel.launch(Argument("out", out, (1,), (1,), dense=True, writable=True), np.int32(count), 1, 1, 1)(0, 0, 0)
    assert out[0] == (2**count if count > 0 else 7)
