# SPDX-License-Identifier: MIT OR Apache-2.0
"""Output for people and for programs: JSON, tables, and a progress bar on a terminal's stderr."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from metrale_caps.models.progress import silent

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from metrale_caps.models.progress import Progress


def print_json(value: Any) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table to stdout; plain columns where rich is not installed or nobody looks."""
    if sys.stdout.isatty():
        with contextlib.suppress(ModuleNotFoundError):
            from rich.console import Console
            from rich.table import Table
            from rich.text import Text

            table = Table(*columns, title=title, title_justify="left", show_lines=False)
            for row in rows:
                table.add_row(*map(Text, row))  # text, in which brackets are no markup
            Console().print(table)
            return
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


@contextlib.contextmanager
def progress_bar() -> Generator[Progress]:
    """Yield a progress that draws a bar on stderr; a silent one where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(stage: str, done: int = 0, total: int | None = None, /) -> None:
            bar.update(task, description=stage, completed=done, total=total)

        yield show
