# SPDX-License-Identifier: MIT OR Apache-2.0
"""`metrale-caps kernels`: what each kernel becomes on each target, compiled without a GPU."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from metrale_caps.cli.terminal import print_json, print_table
from metrale_caps.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "kernels",
        help="compile every kernel ahead of time",
        description="Compiles every kernel ahead of time and holds it against its budget. No GPU is needed.",
    )
    parser.add_argument("--target", help="sm_80, sm_90, sm_100 or gfx942 (default: all)")
    parser.add_argument("--kernel", help="only configurations whose name contains this")
    parser.add_argument("--check", action="store_true", help="status 1 if any budget is exceeded")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from metrale_caps.kernels import budgets

    if arguments.target is not None and arguments.target not in budgets.TARGETS:
        raise ConfigurationError(f"there is no target {arguments.target!r}; there are {', '.join(budgets.TARGETS)}")
    reports = list(budgets.check(target=arguments.target, kernel=arguments.kernel))
    if not reports:
        raise ConfigurationError(f"no kernel configuration contains {arguments.kernel!r}")
    if arguments.json:
        print_json([dataclasses.asdict(report) for report in reports])
    else:
        _show(reports)
    failed = [report for report in reports if report.violations]
    for report in failed:
        sys.stderr.write(f"{report.name} on {report.target}: {'; '.join(report.violations)}\n")
    return 1 if failed and arguments.check else 0


def _show(reports: list[Any]) -> None:
    columns = ("kernel", "target", "registers", "spills", "shared", "instructions", "tensor core", "wide loads")
    rows = [
        (
            report.name,
            report.target,
            str(report.metrics.registers),
            str(report.metrics.spill_bytes),
            str(report.metrics.shared_bytes),
            str(report.metrics.instructions),
            str(report.metrics.tensor_core),
            f"{report.metrics.wide_loads}/{report.metrics.loads}",
        )
        for report in reports
    ]
    print_table("Kernels, compiled ahead of time", columns, rows)
