# SPDX-License-Identifier: MIT OR Apache-2.0
"""Parses the command line and turns every expected failure into one sentence and a status.

Status 0: done. 1: a check found something. 2: the input cannot be used. 130: interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from typing_extensions import override

from metrale_caps.cli import check, explain, kernels, plugins, queries, run
from metrale_caps.errors import MetraleError

if TYPE_CHECKING:
    from collections.abc import Sequence

INPUT_ERROR = 2
INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    @override
    def error(self, message: str) -> NoReturn:
        self.exit(INPUT_ERROR, f"{self.prog}: {message}; `{self.prog} --help` shows what can be given\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its status."""
    parser = _Parser(prog="metrale-caps", description="The contract between an LLM inference engine and its layers.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for command in (run, queries, explain, check, plugins, kernels):
        command.add_parser(commands)
    chosen = parser.parse_args(arguments)
    try:
        status = chosen.run(chosen)
        sys.stdout.flush()  # while its errors can still be told
    except MetraleError as error:
        sys.stderr.write(f"metrale-caps: {' '.join(str(error).split())}\n")
        return INPUT_ERROR
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("metrale_caps"):
            raise
        sys.stderr.write(
            f"metrale-caps: the module {error.name!r} is missing; `python -m pip install 'metrale-caps[engine]'` "
            "brings what this command needs\n"
        )
        return INPUT_ERROR
    except BrokenPipeError:  # whoever read the output has left; there is nobody to tell
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        sys.stderr.write(f"metrale-caps: {error}\n")
        return INPUT_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _drop_output() -> None:
    """Let go what is still to be written, which Python would try, and complain of, when it ends."""
    with contextlib.suppress(OSError, ValueError):  # an output that is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
