# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compiling for GPUs that are not there: what the compiler is told, what is measured, and that faults are found."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl

from metrale_caps.errors import ConfigurationError, KernelError, LaunchError
from metrale_caps.kernels import budgets
from metrale_caps.kernels.ahead_of_time import TARGETS, Metrics, measure, source_of
from metrale_caps.kernels.architecture import architecture_of
from metrale_caps.kernels.configurations import ARCHITECTURES, CONFIGURATIONS, Configuration, launch_of
from metrale_caps.kernels.launch import Launch

SAMPLE = (
    ("attention decode split bf16 d128 32/8", "sm_90"),
    ("attention decode bf16 d64 32/8", "gfx942"),
    ("combine bf16 d128 8 splits", "sm_80"),
    ("attention decode bf16 on fp8 d128 32/8", "sm_80"),
    ("store_kv_fp8 bf16 d128 8", "gfx942"),
    ("add_rms_norm bf16 576", "sm_100"),
    ("latent attention decode bf16 r512+64 128", "sm_90"),
    ("causal_conv decode bf16 8192", "sm_90"),
    ("gated delta net decode bf16 d128 16/32", "sm_90"),
    ("gated delta net scan bf16 d128 16/32", "sm_100"),
    ("kimi delta scan bf16 d128 32/32", "gfx942"),
)


@triton.jit
def copy_kernel(x: tl.tensor, y: tl.tensor, stride: tl.tensor, COLUMNS: tl.constexpr) -> None:
    row, column = tl.program_id(0), tl.arange(0, COLUMNS)
    tl.store(y + row * stride + column, tl.load(x + row * stride + column) * 2.0)


@triton.jit
def hoarding_kernel(x: tl.tensor, y: tl.tensor, SIZE: tl.constexpr) -> None:
    values = tl.load(x + tl.arange(0, SIZE))
    tl.store(y + tl.arange(0, SIZE), values / tl.sum(values, 0))


@triton.jit
def misshapen_kernel(x: tl.tensor, COLUMNS: tl.constexpr) -> None:
    tl.store(x + tl.arange(0, COLUMNS), tl.load(x + tl.arange(0, 2 * COLUMNS)))


def _copy_launch(stride: int, offset: int = 0) -> Launch:
    x = torch.empty(1 << 16, device="meta")[offset:]
    arguments = {"x": x, "y": torch.empty_like(x), "stride": stride, "COLUMNS": 1024}
    return Launch(copy_kernel, (16,), arguments, num_warps=4, num_stages=2)


@pytest.mark.parametrize(("name", "target"), SAMPLE)
def test_shipped_configuration_holds_its_budget(name: str, target: str) -> None:
    """A sample of the table; the whole of it is compiled by a session of its own."""
    (report,) = (found for found in budgets.check(target=target, kernel=name) if found.name == name)
    assert report.violations == ()
    assert report.metrics.registers > 0
    assert report.metrics.wide_loads <= report.metrics.loads


def test_every_configuration_has_a_budget_on_every_target() -> None:
    """Configurations, budgets, architectures and limits of memory name the same things."""
    assert set(budgets.FIGURES) == set(CONFIGURATIONS)
    assert list(ARCHITECTURES) == list(TARGETS) == list(budgets.SHARED_MEMORY)
    assert {configuration.kernel for configuration in CONFIGURATIONS.values()} == {
        "paged_attention_kernel",
        "combine_kernel",
        "latent_attention_kernel",
        "latent_store_kernel",
        "rope_write_kv_kernel",
        "store_kv_fp8_kernel",
        "rms_norm_kernel",
        "silu_mul_kernel",
        "causal_conv_kernel",
        "causal_conv_states_kernel",
        "l2_norm_kernel",
        "gated_rms_norm_kernel",
        "delta_gates_kernel",
        "recurrent_delta_rule_kernel",
        "prepare_chunks_kernel",
        "scan_chunks_kernel",
    }


@pytest.mark.parametrize(
    ("launch", "aligned"),
    [
        (_copy_launch(1024), {"x", "y", "stride"}),
        (_copy_launch(1000), {"x", "y"}),
        (_copy_launch(1024, offset=4), {"x", "y", "stride"}),
        (_copy_launch(1024, offset=1), {"y", "stride"}),
    ],
)
def test_alignment_is_what_a_launch_would_find(launch: Launch, aligned: set[str]) -> None:
    """Multiples of 16 are told to the compiler; a view that starts inside a tensor is not taken for one."""
    source = source_of(launch, "sm_90")
    assert {copy_kernel.arg_names[index] for (index,) in source.attrs} == aligned


def test_one_is_constant_unless_the_kernel_forbids_it() -> None:
    """An integer 1 becomes part of the code, as at a launch; an argument that varies from step to step never does."""
    assert source_of(_copy_launch(1), "sm_90").signature["stride"] == "constexpr"
    launch = launch_of("rms_norm bf16 4096", "sm_90")
    arguments = {**launch.arguments, "rows": 1}
    assert source_of(dataclasses.replace(launch, arguments=arguments), "sm_90").signature["rows"] == "i32"


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_narrow_accesses_are_found(target: str) -> None:
    """A row stride that is no multiple of 16 leaves no wide access, and the budget says so."""
    narrow, wide = measure(_copy_launch(1001), target), measure(_copy_launch(1024), target)
    assert (narrow.wide_loads, narrow.wide_stores) == (0, 0)
    assert narrow.narrow == narrow.loads + narrow.stores > 0
    assert wide.narrow == 0 < wide.wide_loads == wide.wide_stores
    said = list(budgets.violations("silu_mul fp32 1536", target, narrow))
    assert f"{narrow.narrow} accesses of global memory that move less than 16 bytes rather than at most 0" in said


def test_waiting_for_a_copy_is_no_load() -> None:
    """Of a pipelined kernel only what moves data counts; the waits between its asynchronous copies are no accesses."""
    metrics = measure(launch_of("attention prefill bf16 d64 32/8", "sm_90"), "sm_90")
    # in each of two stages two tiles of keys and two of values; the queries; else scalars and the table
    assert metrics.wide_loads == 12
    assert metrics.loads - metrics.wide_loads <= 8


@pytest.mark.parametrize(("target", "size"), [("sm_90", 16384), ("gfx942", 32768)])
def test_spilled_registers_are_found(target: str, size: int) -> None:
    """Too large a tile for one warp spills, and the budget says so."""
    x = torch.empty(size, device="meta")
    launch = Launch(hoarding_kernel, (1,), {"x": x, "y": torch.empty_like(x), "SIZE": size}, num_warps=1, num_stages=1)
    metrics = measure(launch, target)
    assert metrics.spill_bytes > 0 < metrics.local_accesses
    assert any("bytes spilled" in said for said in budgets.violations("silu_mul fp32 1536", target, metrics))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"registers": 255}, "255 registers"),
        ({"instructions": 16}, "the compiler gave up"),
        ({"instructions": 9000}, "9000 instructions"),
        ({"loads": 60}, "36 accesses of global memory"),
        ({"stores": 30}, "33 accesses of global memory"),
        ({"shared_bytes": 240_000}, "bytes of shared memory"),
        ({"tensor_memory": 1024}, "columns of tensor memory"),
        ({"local_accesses": 2}, "accesses of spilled values"),
        ({"tensor_core": 0, "warpgroup": 0}, "without tensor cores"),
        ({"tensor_core": 12, "warpgroup": 4}, "8 of 12 matrix instructions"),
    ],
)
def test_each_exceeded_limit_is_one_sentence(changes: dict[str, int], said: str) -> None:
    """Every limit can fail, and fails alone."""
    registers, instructions, narrow = budgets.FIGURES["attention prefill bf16 d128 32/8"][1]
    sound = Metrics(registers, 0, 0, 98304, 0, instructions, 12, 12, 24 + narrow, 24, 8, 8)
    assert list(budgets.violations("attention prefill bf16 d128 32/8", "sm_90", sound)) == []
    exceeding = dataclasses.replace(sound, **changes)
    (sentence,) = budgets.violations("attention prefill bf16 d128 32/8", "sm_90", exceeding)
    assert said in sentence


def test_kernel_that_does_not_compile_is_named() -> None:
    """The compiler's error comes as one of ours, with kernel and target."""
    launch = Launch(misshapen_kernel, (1,), {"x": torch.empty(64, device="meta"), "COLUMNS": 32}, 4, 1)
    with pytest.raises(KernelError, match="misshapen_kernel does not compile for sm_90"):
        measure(launch, "sm_90")


def test_argument_no_kernel_takes_is_named() -> None:
    """A list is no argument of a kernel."""
    launch = _copy_launch(1024)
    wrong = dataclasses.replace(launch, arguments={**launch.arguments, "stride": [1]})
    with pytest.raises(LaunchError, match="stride: no kernel takes"):
        source_of(wrong, "sm_90")


def test_configuration_launches_its_kernel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration whose call launches another kernel is refused rather than measured."""
    other = Configuration("combine_kernel", CONFIGURATIONS["rms_norm bf16 4096"].call)
    monkeypatch.setattr("metrale_caps.kernels.configurations.CONFIGURATIONS", {"other": other})
    with pytest.raises(ConfigurationError, match="launches combine_kernel 0 times"):
        launch_of("other", "sm_90")


def test_meta_tensors_have_no_architecture_of_their_own() -> None:
    """Tiles of tensors that lie nowhere cannot be chosen unless one says for what."""
    with pytest.raises(LaunchError, match="assume_architecture"):
        architecture_of(torch.device("meta"))


_AS_LAUNCHED = """
import json, sys
from triton.runtime import driver
from metrale_caps.kernels.ahead_of_time import TARGETS
from metrale_caps.kernels.configurations import launch_of

target, names = sys.argv[1], json.loads(sys.argv[2])

class Driver:
    def get_current_device(self): return 0
    def get_current_stream(self, device=None): return 0
    def get_current_target(self): return TARGETS[target]

driver.set_active(Driver())
signatures = []
for name in names:
    launch = launch_of(name, target)
    compiled = launch.kernel.warmup(
        grid=launch.grid, num_warps=launch.num_warps, enable_fp_fusion=True, **launch.arguments
    )
    signatures.append(next(line for line in compiled.asm["ttir"].splitlines() if "tt.func public" in line))
print(json.dumps(signatures))
"""


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_compiled_signature_is_that_of_a_real_launch(target: str) -> None:
    """Triton's own way of specialising a launch gives the same arguments with the same alignments and ranges."""
    names = ["add_rms_norm bf16 576", "attention decode split bf16 d128 32/8", "rope of 32 channels bf16 d80 32/32"]
    command = [sys.executable, "-c", _AS_LAUNCHED, target, json.dumps(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 this interpreter
    assert done.returncode == 0, done.stderr
    for name, signature in zip(names, json.loads(done.stdout), strict=True):
        source = source_of(launch_of(name, target), target)
        compiled = triton.compile(source, target=TARGETS[target], options={"enable_fp_fusion": True})
        ours = next(line for line in compiled.asm["ttir"].splitlines() if "tt.func public" in line)
        assert ours.split(" loc(")[0] == signature.split(" loc(")[0]
