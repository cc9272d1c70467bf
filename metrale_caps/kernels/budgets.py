# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every shipped kernel may cost on every target, in one table, and the check that holds it.

Registers, instructions and narrow accesses have a quarter of slack over the figures of the table, since compilers of
different versions allocate and unroll differently. Other limits have none: no spills, matrix instructions where
matrices are multiplied, and the memory that a target has.
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

Figures = tuple[int, int, int]
"""Registers of a thread, instructions of the kernel, and accesses of global memory that move less than 16 bytes."""

FIGURES: Mapping[str, tuple[Figures, Figures, Figures, Figures]] = {
    # configuration: sm_80, sm_90, sm_100, gfx942; of Triton 3.9, or 3.6 where that needs more than the slack
    "attention decode bf16 d64 32/8": ((71, 736, 12), (68, 744, 12), (68, 720, 12), (125, 1762, 14)),
    "attention prefill bf16 d64 32/8": ((163, 1024, 7), (123, 1032, 7), (82, 1360, 7), (165, 2163, 6)),
    "attention decode bf16 d80 32/8": ((73, 648, 8), (72, 648, 8), (72, 640, 8), (75, 1071, 6)),
    "attention prefill bf16 d80 32/8": ((194, 1192, 7), (169, 1488, 11), (174, 2384, 19), (164, 1885, 10)),
    "attention decode bf16 d96 32/8": ((73, 648, 8), (72, 648, 8), (72, 640, 8), (75, 1071, 6)),
    "attention prefill bf16 d96 32/8": ((194, 1192, 7), (169, 1488, 11), (174, 2384, 19), (164, 1889, 10)),
    "attention decode bf16 d128 32/8": ((74, 640, 8), (72, 640, 8), (72, 632, 8), (75, 1061, 6)),
    "attention prefill bf16 d128 32/8": ((194, 1136, 7), (169, 1440, 11), (176, 2328, 19), (164, 1876, 10)),
    "attention decode bf16 d192 32/8": ((110, 952, 11), (95, 976, 11), (95, 960, 11), (110, 1303, 16)),
    "attention prefill bf16 d192 32/8": ((190, 1712, 11), (169, 1576, 11), (141, 2224, 19), (208, 2066, 16)),
    "attention decode bf16 d256 32/8": ((80, 896, 11), (82, 912, 11), (81, 904, 11), (110, 1287, 16)),
    "attention prefill bf16 d256 32/8": ((190, 1664, 11), (166, 1520, 11), (143, 2168, 19), (208, 2042, 16)),
    "attention decode bf16 d64 9/3": ((71, 752, 12), (68, 760, 12), (72, 728, 12), (126, 1773, 14)),
    "attention prefill bf16 d64 9/3": ((171, 1104, 7), (127, 1088, 7), (92, 1408, 7), (164, 2178, 6)),
    "attention decode bf16 d128 9/3": ((72, 672, 8), (80, 664, 8), (80, 664, 8), (75, 1067, 6)),
    "attention prefill bf16 d128 9/3": ((192, 1328, 7), (181, 1536, 11), (174, 2440, 19), (162, 1908, 10)),
    "attention decode bf16 d128 28/4": ((72, 664, 8), (80, 656, 8), (80, 656, 8), (75, 1068, 6)),
    "attention prefill bf16 d128 28/4": ((192, 1328, 7), (181, 1536, 11), (174, 2440, 19), (162, 1918, 10)),
    "attention decode bf16 d128 8/8": ((74, 632, 8), (79, 632, 8), (78, 624, 8), (75, 1055, 6)),
    "attention prefill bf16 d128 8/8": ((196, 1120, 7), (171, 1432, 11), (175, 2320, 19), (162, 1874, 10)),
    "attention decode bf16 d192/128 16/16": ((72, 824, 15), (80, 792, 15), (72, 800, 15), (102, 1035, 11)),
    "attention prefill bf16 d192/128 16/16": ((135, 1392, 15), (136, 1296, 15), (89, 1944, 25), (227, 1639, 10)),
    "attention decode fp16 d64 32/8": ((71, 736, 12), (68, 744, 12), (68, 720, 12), (123, 1843, 18)),
    "attention prefill fp16 d64 32/8": ((163, 1024, 7), (123, 1032, 7), (82, 1360, 7), (163, 1764, 6)),
    "attention decode fp32 d64 9/3": ((106, 896, 8), (106, 912, 8), (104, 912, 8), (101, 1812, 3)),
    "attention prefill fp32 d64 9/3": ((237, 2136, 5), (173, 1576, 5), (162, 1408, 5), (219, 2649, 1)),
    "attention decode split bf16 d128 32/8": ((64, 832, 8), (72, 816, 8), (72, 816, 8), (75, 1062, 5)),
    "attention decode window bf16 d128 32/8": ((72, 696, 8), (80, 680, 8), (80, 680, 8), (84, 1163, 6)),
    "combine bf16 d128 8 splits": ((32, 184, 6), (32, 192, 6), (31, 192, 6), (31, 254, 4)),
    "attention decode bf16 on fp8 d64 32/8": ((96, 1192, 16), (118, 1240, 16), (120, 1192, 16), (128, 2507, 7)),
    "attention prefill bf16 on fp8 d64 32/8": ((182, 2936, 15), (109, 1232, 7), (86, 1512, 14), (183, 2946, 10)),
    "attention decode bf16 on fp8 d128 32/8": ((116, 1048, 12), (117, 1032, 12), (116, 1024, 12), (98, 1414, 11)),
    "attention prefill bf16 on fp8 d128 32/8": ((180, 3048, 15), (180, 1880, 9), (166, 2904, 11), (182, 2689, 14)),
    "attention decode bf16 on fp8 d128 28/4": ((120, 1080, 12), (98, 1072, 12), (96, 1088, 12), (98, 1419, 11)),
    "attention prefill bf16 on fp8 d128 28/4": ((182, 3208, 15), (185, 1984, 9), (187, 2984, 11), (180, 2733, 14)),
    "attention decode bf16 on fp8 d256 32/8": ((95, 1256, 15), (98, 1248, 15), (98, 1248, 15), (102, 1089, 8)),
    "attention prefill bf16 on fp8 d256 32/8": ((225, 2440, 15), (233, 1928, 9), (166, 2648, 11), (227, 2969, 10)),
    "attention decode fp16 on fp8 d128 32/8": ((118, 992, 12), (115, 976, 12), (116, 976, 12), (88, 1333, 14)),
    "attention prefill fp16 on fp8 d128 32/8": ((192, 2992, 15), (180, 1816, 9), (162, 2776, 11), (178, 2022, 14)),
    "attention decode fp32 on fp8 d64 9/3": ((117, 1120, 12), (117, 1128, 12), (119, 1152, 12), (102, 1915, 9)),
    "attention prefill fp32 on fp8 d64 9/3": ((254, 3072, 8), (176, 1648, 8), (163, 1472, 8), (243, 2816, 3)),
    "attention decode split bf16 on fp8 d128 32/8": ((118, 1192, 13), (114, 1200, 13), (116, 1192, 13), (98, 1404, 10)),
    "latent attention decode bf16 r512+64 128": ((160, 1240, 15), (128, 1264, 15), (217, 3424, 47), (182, 1701, 17)),
    "latent attention decode bf16 r512+64 16": ((104, 1056, 22), (104, 1064, 22), (104, 1040, 22), (183, 1776, 21)),
    "latent attention split bf16 r512+64 128": (
        (128, 1392, 16),
        (128, 1432, 16),
        (209, 3840, 48),
        (182, 1588, 10),
    ),
    "latent attention prefill bf16 r512+64 128": ((180, 1408, 21), (221, 2120, 21), (217, 3424, 47), (217, 2155, 24)),
    "latent attention prefill fp16 r512+64 16": ((178, 1416, 21), (222, 2152, 21), (217, 3448, 47), (216, 1715, 24)),
    "latent attention decode fp32 r512+64 16": ((249, 1736, 12), (230, 1808, 12), (235, 1776, 12), (203, 2387, 9)),
    "latent attention prefill fp32 r32+8 4": ((80, 712, 18), (78, 720, 18), (78, 720, 18), (86, 1002, 7)),
    "latent_store bf16 r512+64": ((44, 176, 4), (44, 184, 4), (47, 184, 4), (24, 211, 3)),
    "latent_store fp32 r32+8": ((22, 96, 6), (26, 128, 6), (26, 128, 6), (6, 112, 6)),
    "rope bf16 d128 32/8": ((64, 384, 2), (62, 392, 2), (62, 392, 2), (56, 354, 2)),
    "rope with head norms bf16 d128 32/8": ((96, 792, 2), (106, 760, 2), (106, 672, 2), (67, 640, 2)),
    "rope of 32 channels bf16 d80 32/32": ((59, 400, 3), (56, 416, 3), (56, 416, 3), (58, 538, 2)),
    "rope fp32 d64 9/3": ((48, 280, 2), (54, 280, 2), (54, 280, 2), (32, 205, 2)),
    "store_kv_fp8 bf16 d128 8": ((38, 792, 3), (32, 744, 3), (40, 752, 3), (31, 404, 4)),
    "store_kv_fp8 fp32 d64 3": ((35, 488, 5), (35, 472, 5), (37, 480, 5), (25, 263, 4)),
    "rms_norm bf16 4096": ((32, 152, 0), (32, 168, 0), (32, 168, 0), (25, 197, 0)),
    "add_rms_norm bf16 4096": ((32, 184, 0), (32, 200, 0), (32, 184, 0), (25, 277, 0)),
    "add_rms_norm bf16 576": ((36, 184, 0), (32, 200, 0), (32, 184, 0), (25, 295, 0)),
    "add_rms_norm fp32 576": ((32, 160, 0), (32, 176, 0), (32, 176, 0), (26, 127, 0)),
    "silu_mul bf16 14336": ((32, 272, 0), (32, 272, 0), (32, 272, 0), (34, 310, 0)),
    "silu_mul fp32 1536": ((29, 152, 0), (32, 160, 0), (32, 160, 0), (34, 118, 0)),
    "causal_conv decode bf16 8192": ((68, 464, 3), (66, 472, 3), (72, 480, 3), (80, 646, 0)),
    "causal_conv decode fp32 512": ((64, 272, 3), (64, 280, 3), (64, 280, 3), (62, 388, 0)),
    "causal_conv verify bf16 8192": ((89, 624, 7), (92, 640, 7), (92, 640, 7), (87, 746, 4)),
    "causal_conv prefill bf16 8192": ((48, 560, 3), (54, 568, 3), (52, 472, 3), (58, 608, 0)),
    "causal_conv states bf16 8192": ((36, 152, 3), (38, 152, 3), (38, 152, 3), (28, 172, 0)),
    "l2_norm bf16 32 x 128": ((54, 272, 0), (54, 280, 0), (54, 280, 0), (29, 207, 0)),
    "gated_rms_norm silu bf16 32 x 128": ((68, 800, 1), (70, 808, 1), (70, 816, 1), (49, 589, 1)),
    "gated_rms_norm sigmoid bf16 32 x 128": ((68, 800, 1), (70, 816, 1), (72, 800, 1), (47, 591, 1)),
    "delta_gates bf16 32": ((32, 680, 0), (32, 696, 0), (32, 648, 0), (33, 367, 2)),
    "delta_gates bf16 32 x 128": ((32, 560, 10), (32, 576, 10), (32, 560, 10), (30, 293, 4)),
    "gated delta net decode bf16 d128 16/32": ((72, 536, 8), (96, 576, 8), (80, 608, 8), (55, 449, 9)),
    "gated delta net verify bf16 d128 16/32": ((80, 632, 8), (80, 640, 8), (100, 688, 8), (63, 499, 9)),
    "gated delta net prepare bf16 d128 16/32": ((226, 2168, 25), (178, 2480, 17), (124, 2032, 10), (168, 3362, 60)),
    "gated delta net scan bf16 d128 16/32": ((182, 1088, 6), (174, 1464, 6), (147, 1936, 14), (150, 895, 12)),
    "gated delta net prepare bf16 d64 16/32": ((250, 2720, 11), (176, 2280, 17), (113, 1888, 10), (164, 3266, 56)),
    "gated delta net scan bf16 d64 16/32": ((184, 856, 6), (128, 1048, 6), (120, 1784, 9), (98, 702, 8)),
    "gated delta net prepare fp32 d64 16/32": ((144, 1168, 9), (126, 1200, 9), (126, 1184, 9), (114, 1650, 11)),
    "gated delta net scan fp32 d64 16/32": ((233, 1360, 8), (238, 1440, 8), (235, 1432, 8), (126, 1874, 15)),
    "kimi delta decode bf16 d128 32/32": ((72, 568, 7), (96, 584, 7), (96, 624, 7), (63, 474, 9)),
    "kimi delta verify bf16 d128 32/32": ((96, 624, 7), (96, 648, 7), (104, 720, 7), (71, 520, 9)),
    "kimi delta prepare bf16 d128 32/32": ((254, 4040, 48), (214, 4768, 6), (197, 4960, 5), (183, 5438, 55)),
    "kimi delta scan bf16 d128 32/32": ((174, 848, 5), (162, 1216, 4), (114, 1568, 11), (156, 744, 12)),
    "kimi delta prepare bf16 d64 32/32": ((255, 3744, 40), (207, 4568, 6), (180, 5000, 5), (183, 5365, 55)),
    "kimi delta scan bf16 d64 32/32": ((162, 664, 5), (104, 808, 5), (88, 1432, 6), (84, 535, 7)),
    "kimi delta prepare fp32 d64 32/32": ((72, 1176, 5), (71, 1208, 5), (71, 1168, 5), (69, 1340, 22)),
    "kimi delta scan fp32 d64 32/32": ((230, 1208, 8), (232, 1272, 8), (217, 1296, 7), (126, 1688, 15)),
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
    registers, instructions, narrow = FIGURES[name][list(TARGETS).index(target)]
    limits = (
        ("registers", metrics.registers, int(registers * SLACK)),
        ("instructions", metrics.instructions, int(instructions * SLACK)),
        ("accesses of global memory that move less than 16 bytes", metrics.narrow, int(narrow * SLACK)),
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
    if configuration.multiplies and metrics.tensor_core == 0:
        yield "matrices are multiplied without tensor cores"
    if configuration.many_rows and target in _WARPGROUP_TARGETS and metrics.warpgroup < metrics.tensor_core:
        alone = metrics.tensor_core - metrics.warpgroup
        yield f"{alone} of {metrics.tensor_core} matrix instructions are of single warps rather than of warpgroups"
