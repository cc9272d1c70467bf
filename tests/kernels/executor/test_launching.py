# SPDX-License-Identifier: MIT OR Apache-2.0
"""Binding of arguments, specialisation, and what a launch leaves as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.executor import execute, lowering
from metrale_caps.kernels.executor.specialization import generated_kernels, kind_of_number
from tests.kernels.executor.values import listed

EIGHT: Any = 8


@triton.jit
def scale_kernel(
    x: tl.tensor, out: tl.tensor, factor: tl.tensor, shift: tl.tensor | None, N: tl.constexpr = EIGHT
) -> None:
    lane = tl.arange(0, N)
    value = tl.load(x + lane).to(tl.float32) * factor
    if shift is not None:
        value += shift
    tl.store(out + lane, value)


@triton.jit
def double(value: tl.tensor) -> tl.tensor:
    return value * 2


@triton.jit
def generic_kernel(x: tl.tensor, FUNCTION: tl.constexpr, TYPE: tl.constexpr, NAME: tl.constexpr) -> None:
    value = FUNCTION(tl.load(x)).to(TYPE)
    if NAME == "negative":
        value = -value
    tl.store(x, value)


@triton.jit
def wide_kernel(out: tl.tensor, number: tl.tensor) -> None:
    tl.store(out, number)


@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % 2 == 0})
@triton.jit
def heuristic_kernel(out: tl.tensor, n: tl.tensor, EVEN: tl.constexpr) -> None:
    tl.store(out + n * 0, EVEN)


@triton.autotune(configs=[triton.Config({"STEP": 3}), triton.Config({"STEP": 5})], key=["n"])
@triton.jit
def tuned_kernel(out: tl.tensor, n: tl.tensor, STEP: tl.constexpr) -> None:
    tl.store(out + tl.program_id(0), tl.load(out + tl.program_id(0)) + STEP + n * 0)


def _arguments(**others: object) -> dict[str, Any]:
    return {"x": torch.ones(8), "out": torch.zeros(8), "factor": 2.0, "shift": None, **others}


def test_defaults_and_none() -> None:
    """A parameter's default is used, and None is a constant that the kernel can test for."""
    arguments = _arguments()
    execute(scale_kernel, (1,), arguments, writes=("out",))
    assert listed(arguments["out"]) == [2.0] * 8
    execute(scale_kernel, (1,), {**arguments, "shift": 1}, writes=("out",))
    assert listed(arguments["out"]) == [3.0] * 8


def test_second_launch_of_one_kind_lowers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types and constants make a specialisation; values and addresses do not."""
    execute(scale_kernel, (1,), _arguments())
    before = generated_kernels(scale_kernel)
    monkeypatch.setattr(lowering, "ASTSource", None)
    execute(scale_kernel, (1,), _arguments(factor=5.0, x=torch.zeros(9)))
    assert generated_kernels(scale_kernel) == before
    with pytest.raises(TypeError):
        execute(scale_kernel, (1,), _arguments(x=torch.ones(8, dtype=torch.float64)))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (True, "u1"),
        (1, "i32"),
        (2**31 - 1, "i32"),
        (-(2**31), "i32"),
        (2**31, "i64"),
        (-(2**31) - 1, "i64"),
        (2**63, "u64"),
        (1.5, "fp32"),
    ],
)
def test_numbers_get_the_type_that_triton_gives_them(number: float, kind: str) -> None:
    """And arrive unchanged."""
    assert kind_of_number(number) == kind
    out = torch.zeros(1, dtype=torch.float64 if kind == "fp32" else torch.uint64 if kind == "u64" else torch.int64)
    execute(wide_kernel, (1,), {"out": out, "number": number})
    assert out.item() == number


def test_constants_may_be_functions_types_and_strings() -> None:
    """They are part of the specialisation."""
    x = torch.tensor([3.0])
    execute(generic_kernel, (1,), {"x": x, "FUNCTION": double, "TYPE": tl.int32, "NAME": "negative"})
    assert x.item() == -6
    execute(generic_kernel, (1,), {"x": x, "FUNCTION": double, "TYPE": tl.float32, "NAME": "positive"})
    assert x.item() == -12


def test_heuristics_are_evaluated() -> None:
    """From the launch's arguments."""
    out = torch.zeros(1, dtype=torch.int32)
    execute(heuristic_kernel, (1,), {"out": out, "n": 4})
    assert out.item() == 1
    execute(heuristic_kernel, (1,), {"out": out, "n": 5})
    assert out.item() == 0


def test_autotuner_runs_its_first_configuration_once() -> None:
    """Nothing is timed, and nothing runs twice."""
    out = torch.zeros(3)
    execute(tuned_kernel, lambda arguments: (arguments["n"],), {"out": out, "n": 3})
    assert listed(out) == [3.0] * 3


@pytest.mark.parametrize("grid", [(0,), (3, 0), (1, 1, 0)])
def test_empty_grid_runs_nothing(grid: tuple[int, ...]) -> None:
    """Not even memory is looked at."""
    execute(scale_kernel, grid, _arguments(x=torch.zeros(0)))


@pytest.mark.parametrize("grid", [(), (1, 1, 1, 1), (-1,)])
def test_grid_has_one_to_three_extents(grid: tuple[int, ...]) -> None:
    """None of them negative."""
    with pytest.raises(LaunchError, match="grid"):
        execute(scale_kernel, grid, _arguments())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(8, dtype=torch.complex64)}, "'x' is a tensor of torch.complex64"),
        ({"x": [1, 2]}, "'x' is of type list"),
        ({"x": torch.zeros(8, device="meta")}, "'x' is on meta"),
        ({"bias": 1, "N": 16}, "no argument 'bias'"),
    ],
)
def test_argument_that_no_kernel_takes(change: dict[str, object], message: str) -> None:
    """The error names the kernel and the argument."""
    with pytest.raises(LaunchError, match=f"scale_kernel.*{message}"):
        execute(scale_kernel, (1,), _arguments(**change))


def test_unknown_argument_is_refused_at_every_launch() -> None:
    """Even if the kernel was generated before."""
    execute(scale_kernel, (1,), _arguments(num_warps=4))
    with pytest.raises(LaunchError, match="no argument 'bias'"):
        execute(scale_kernel, (1,), _arguments(bias=1))


def test_missing_argument() -> None:
    """A parameter without a default has to be given."""
    with pytest.raises(LaunchError, match="scale_kernel: the argument 'factor' is missing"):
        execute(scale_kernel, (1,), {"x": torch.ones(8), "out": torch.zeros(8), "shift": None})


def test_something_else_than_a_kernel() -> None:
    """A plain function is not one."""
    with pytest.raises(LaunchError, match="not a Triton kernel"):
        execute(test_missing_argument, (1,), {})


def test_tensor_that_requires_grad_is_written_in_place() -> None:
    """Kernels know nothing of gradients."""
    out = torch.zeros(8, requires_grad=True)
    execute(scale_kernel, (1,), _arguments(out=out), writes=("out",))
    assert listed(out.detach()) == [2.0] * 8


def _compiled() -> bytes:
    signature = {"x": "*fp32", "out": "*fp32", "factor": "fp32", "shift": "i32", "N": "constexpr"}
    source = ASTSource(fn=scale_kernel, signature=signature, constexprs={"N": 8}, attrs={})
    options = {"enable_fp_fusion": True}
    return bytes(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["cubin"])


def test_launch_leaves_triton_and_the_kernel_as_they_were() -> None:
    """The same kernel compiles for a GPU before and after, to the same code, and Triton's entry points are its own."""
    before = _compiled()
    entries = {name: getattr(triton.JITFunction, name) for name in ("__getitem__", "__call__", "run")}
    names = {name: getattr(tl, name) for name in dir(tl)}
    execute(scale_kernel, (1,), _arguments(x=torch.ones(8, dtype=torch.bfloat16)))
    assert all(getattr(triton.JITFunction, name) is value for name, value in entries.items())
    assert all(getattr(tl, name) is value for name, value in names.items())
    assert not triton.knobs.runtime.interpret
    assert _compiled() == before
