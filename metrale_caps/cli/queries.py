# SPDX-License-Identifier: MIT OR Apache-2.0
"""`metrale-caps list`: the ten queries, from the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metrale_caps.cli.terminal import print_json, print_table
from metrale_caps.queries import QUERIES

if TYPE_CHECKING:
    import argparse


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("list", help="the ten queries", description="Lists the ten capability queries.")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json([_as_json(row.name) for row in QUERIES.values()])
        return 0
    columns = ("query", "protocol", "answer", "default", "fold", "asked")
    rows = [
        (row.name, row.protocol.__name__, row.answer_type, str(row.default), row.fold.value, row.asked.value)
        for row in QUERIES.values()
    ]
    print_table("Capability queries", columns, rows)
    return 0


def _as_json(name: Any) -> dict[str, Any]:
    row = QUERIES[name]
    return {
        "query": row.name,
        "protocol": row.protocol.__name__,
        "answer": row.answer_type,
        "default": row.default,
        "fold": row.fold.value,
        "asked": row.asked.value,
        "consequence": row.consequence,
    }
