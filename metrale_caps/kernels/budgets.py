# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every shipped kernel may cost on every target, in one table, and the check that holds it.

Registers and instructions have a quarter of slack over the figures of the table, since register allocation differs
between versions of the compiler. Other limits have none: no spills, matrix instructions where matrices are multiplied,
loads of 16 bytes, and the memory that a target has.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metrale_caps.kernels.ahead_of_time import TARGETS, measure
from metrale_caps.kernels.configurations import CONFIGURATIONS, launch_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from metrale_caps.kernels.ahead_of_time import Metrics

__all__ = ["FIGURES", "SLACK", "TARGETS", "Report", "check", "violations"]

SLACK = 1.25
_FEWEST_INSTRUCTIONS = 30
_TENSOR_MEMORY = 512
_WARPGROUP_TARGETS = ("sm_90", "sm_100")
_WORKERS = 2
"""Compilers at once; a few configurations are not worth their start."""

SHARED_MEMORY: Mapping[str, int] = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448, "gfx942": 65536}
"""Bytes of shared memory that one program can have, from the vendors' documents."""

Figures = tuple[int, int]
"""Registers of a thread and instructions of the kernel."""

FIGURES: Mapping[str, tuple[Figures, Figures, Figures, Figures]] = {
    # configuration: sm_80, sm_90, sm_100, gfx942; of Triton 3.9, or 3.6 where that needs more than the slack
    "attention decode bf16 d64 32/8": ((71, 736), (68, 744), (68, 720), (124, 2160)),
    "attention prefill bf16 d64 32/8": ((163, 1024), (123, 1032), (82, 1360), (164, 2170)),
    "attention decode bf16 d80 32/8": ((73, 648), (72, 648), (72, 640), (78, 1086)),
    "attention prefill bf16 d80 32/8": ((194, 1192), (169, 1488), (174, 2368), (163, 1794)),
    "attention decode bf16 d96 32/8": ((73, 648), (72, 648), (72, 640), (78, 1086)),
    "attention prefill bf16 d96 32/8": ((194, 1192), (169, 1488), (174, 2368), (163, 1940)),
    "attention decode bf16 d128 32/8": ((74, 640), (72, 640), (72, 632), (78, 1064)),
    "attention prefill bf16 d128 32/8": ((194, 1136), (169, 1440), (176, 2312), (163, 1906)),
    "attention decode bf16 d192 32/8": ((110, 952), (93, 976), (93, 960), (110, 1256)),
    "attention prefill bf16 d192 32/8": ((190, 1712), (169, 1576), (141, 2224), (207, 2550)),
    "attention decode bf16 d256 32/8": ((80, 896), (82, 912), (81, 904), (110, 1317)),
    "attention prefill bf16 d256 32/8": ((190, 1664), (166, 1520), (143, 2160), (207, 2506)),
    "attention decode bf16 d64 9/3": ((71, 752), (68, 760), (72, 728), (125, 2164)),
    "attention prefill bf16 d64 9/3": ((171, 1104), (127, 1088), (92, 1400), (163, 2192)),
    "attention decode bf16 d128 9/3": ((72, 672), (80, 664), (80, 664), (78, 1071)),
    "attention prefill bf16 d128 9/3": ((192, 1328), (181, 1536), (174, 2424), (161, 1938)),
    "attention decode bf16 d128 28/4": ((72, 664), (80, 656), (80, 656), (78, 1074)),
    "attention prefill bf16 d128 28/4": ((192, 1328), (181, 1536), (174, 2424), (161, 1948)),
    "attention decode bf16 d128 8/8": ((74, 632), (79, 632), (78, 624), (78, 1059)),
    "attention prefill bf16 d128 8/8": ((196, 1120), (171, 1432), (175, 2304), (161, 1899)),
    "attention decode bf16 d192/128 16/16": ((72, 824), (80, 792), (72, 800), (98, 1061)),
    "attention prefill bf16 d192/128 16/16": ((135, 1392), (136, 1296), (89, 1944), (226, 2113)),
    "attention decode fp16 d64 32/8": ((71, 736), (68, 744), (68, 720), (122, 1873)),
    "attention prefill fp16 d64 32/8": ((163, 1024), (123, 1032), (82, 1360), (162, 1774)),
    "attention decode fp32 d64 9/3": ((106, 896), (106, 912), (104, 912), (100, 1817)),
    "attention prefill fp32 d64 9/3": ((237, 2136), (174, 1576), (162, 1416), (208, 2636)),
    "attention decode split bf16 d128 32/8": ((64, 832), (72, 816), (72, 816), (78, 1081)),
    "attention decode window bf16 d128 32/8": ((72, 696), (80, 680), (80, 680), (86, 1168)),
    "combine bf16 d128 8 splits": ((32, 184), (32, 192), (31, 192), (20, 260)),
    "rope bf16 d128 32/8": ((64, 384), (62, 392), (62, 392), (49, 411)),
    "rope with head norms bf16 d128 32/8": ((96, 792), (106, 760), (106, 672), (83, 692)),
    "rope of 32 channels bf16 d80 32/32": ((59, 400), (56, 416), (56, 416), (51, 693)),
    "rope fp32 d64 9/3": ((48, 280), (54, 280), (54, 280), (32, 245)),
    "rms_norm bf16 4096": ((32, 152), (32, 168), (32, 168), (24, 196)),
    "add_rms_norm bf16 4096": ((32, 184), (32, 200), (32, 184), (23, 276)),
    "add_rms_norm bf16 576": ((36, 184), (32, 200), (32, 184), (23, 292)),
    "add_rms_norm fp32 576": ((32, 160), (32, 176), (32, 176), (24, 123)),
    "silu_mul bf16 14336": ((32, 272), (32, 272), (32, 272), (39, 314)),
    "silu_mul fp32 1536": ((29, 152), (32, 160), (32, 160), (34, 121)),
}


@dataclass(frozen=True, slots=True)
class Report:
    """A configuration on a target, held against its budget.

    Attributes:
        name: of the configuration, a key of `FIGURES`.
        target: a key of `TARGETS`.
        metrics: what was measured.
        violations: a sentence for each limit that is exceeded; empty if the budget holds.
    """

    name: str
    target: str
    metrics: Metrics
    violations: tuple[str, ...]


def check(target: str | None = None, kernel: str | None = None) -> Iterator[Report]:
    """Compile configurations and hold each against its budget; no GPU is needed.

    Args:
        target: only this key of `TARGETS`; None for all.
        kernel: only configurations whose name contains this; None for all.

    Yields:
        One report of each configuration on each target.

    Raises:
        KernelError: a kernel does not compile.
    """
    targets = TARGETS if target is None else (target,)
    jobs = [(name, one) for one in targets for name in FIGURES if kernel is None or kernel in name]
    if len(jobs) <= _WORKERS:
        yield from map(_report, jobs)
        return
    # a fresh interpreter: the compiler's threads must not be forked
    with ProcessPoolExecutor(_WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_report, jobs)


def _report(job: tuple[str, str]) -> Report:
    name, target = job
    metrics = measure(launch_of(name, target), target)
    return Report(name, target, metrics, tuple(violations(name, target, metrics)))


def violations(name: str, target: str, metrics: Metrics) -> Iterator[str]:
    """Yield a sentence for each limit of a configuration that its metrics exceed."""
    configuration = CONFIGURATIONS[name]
    registers, instructions = FIGURES[name][list(TARGETS).index(target)]
    limits = (
        ("registers", metrics.registers, int(registers * SLACK)),
        ("instructions", metrics.instructions, int(instructions * SLACK)),
        ("bytes spilled", metrics.spill_bytes, 0),
        ("accesses of spilled values", metrics.local_accesses, 0),
        ("bytes of shared memory", metrics.shared_bytes, SHARED_MEMORY[target]),
        ("columns of tensor memory", metrics.tensor_memory, _TENSOR_MEMORY),
    )
    for what, value, limit in limits:
        if value > limit:
            yield f"{value} {what} rather than at most {limit}"
    if metrics.instructions <= _FEWEST_INSTRUCTIONS:
        yield f"{metrics.instructions} instructions only: the compiler gave up and left a trap"
    if metrics.wide_loads == 0:
        yield f"none of {metrics.loads} loads moves 16 bytes"
    if configuration.multiplies and metrics.tensor_core == 0:
        yield "matrices are multiplied without tensor cores"
    if configuration.many_rows and target in _WARPGROUP_TARGETS and metrics.warpgroup < metrics.tensor_core:
        alone = metrics.tensor_core - metrics.warpgroup
        yield f"{alone} of {metrics.tensor_core} matrix instructions are of single warps rather than of warpgroups"
