# SPDX-License-Identifier: MIT OR Apache-2.0
"""Holds that the installed package's public types are complete and documented; run by `nox -s types`, not by pytest.

`pyright --verifytypes` looks at the interpreter first on the path, and at an installed package that is marked as typed.
Its own status ignores missing docstrings, so its report is read instead.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

PACKAGE = "metrale_caps"


def report() -> dict[str, Any]:
    """What pyright says about the public types of the installed package."""
    command = ["pyright", "--verifytypes", PACKAGE, "--ignoreexternal", "--outputjson"]
    # elsewhere than in the source tree, whose package would be found before the installed one
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=elsewhere)  # noqa: S603 - a fixed command
    try:
        return json.loads(done.stdout)["typeCompleteness"]
    except (ValueError, KeyError):
        sys.exit(f"pyright gave no report about {PACKAGE}: {done.stdout[-500:]}{done.stderr[-500:]}")


def shortcomings(completeness: dict[str, Any]) -> list[str]:
    """One line for each public symbol whose type is not known, and for each public docstring that is missing."""
    lines = [
        f"{symbol['name']}: {diagnostic['message']}"
        for symbol in completeness["symbols"]
        if symbol["isExported"]
        for diagnostic in symbol["diagnostics"]
        if not symbol["isTypeKnown"]
    ]
    undocumented = {kind: completeness[f"missing{kind}DocStringCount"] for kind in ("Function", "Class")}
    lines.extend(
        f"{count} public {kind.lower()} docstrings are missing" for kind, count in undocumented.items() if count
    )
    return lines


def main() -> int:
    """Print the shortcomings; status 1 if there are any, or if pyright saw no symbol at all."""
    completeness = report()
    lines = shortcomings(completeness)
    known = completeness["exportedSymbolCounts"]["withKnownType"]
    sys.stdout.write("\n".join([*lines, f"{known} public symbols of known type"]) + "\n")
    return 1 if lines or not known else 0


if __name__ == "__main__":
    sys.exit(main())
