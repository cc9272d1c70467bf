# SPDX-License-Identifier: MIT OR Apache-2.0
"""Holds that a type checker which sees only installed wheels refuses a broken plugin; run by `nox -s plugin`.

    python broken_plugin.py FOLDER INTERPRETER

FOLDER is a copy of `examples/plugin_layer`, whose layer passes. Beside it come copies that are broken in one way each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_QUERY = "decode_rollback_unsupported"
_METHOD = f"    def {_QUERY}(self) -> bool:\n"
_REFUSED = {"reportArgumentType", "reportUntypedClassDecorator"}

BROKEN: dict[str, tuple[str, str, set[str]]] = {
    "wrong_return_type": (_METHOD, _METHOD.replace("bool", "bool | str"), _REFUSED),
    "extra_argument": (_METHOD, _METHOD.replace("self", "self, rows: int"), _REFUSED),
    "asynchronous": (_METHOD, _METHOD.replace("def", "async def"), _REFUSED),
    "attribute": (_METHOD, f"    {_QUERY}: bool = False\n\n    def other(self) -> bool:\n", _REFUSED),
    "misspelt_method": (_METHOD, _METHOD.replace(_QUERY, "decode_rollback_unsuported"), _REFUSED),
    "misspelt_query": (f'("{_QUERY}")', '("decode_rollback_unsuported")', {*_REFUSED, "reportCallIssue"}),
}
"""What is replaced by what in the layer, and the rules that are then broken."""


def write_broken(package: Path) -> None:
    """Write the broken copies beside the layer."""
    layer = (package / "layer.py").read_text(encoding="utf-8")
    for name, (old, new, _) in BROKEN.items():
        if layer.count(old) != 1:
            sys.exit(f"{name}: the layer has {layer.count(old)} times what is to be broken: {old!r}")
        (package / f"{name}.py").write_text(layer.replace(old, new), encoding="utf-8")


def rules_by_module(folder: Path, interpreter: str) -> dict[str, set[str]]:
    """Return the rules that each module breaks; a fault without a rule stands there with its message."""
    command = ["pyright", "-p", str(folder), "--pythonpath", interpreter, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed command
    try:
        diagnostics: list[dict[str, Any]] = json.loads(done.stdout)["generalDiagnostics"]
    except (ValueError, KeyError):
        sys.exit(f"pyright gave no report about {folder}: {done.stdout[-500:]}{done.stderr[-500:]}")
    rules: dict[str, set[str]] = {}
    for diagnostic in diagnostics:
        rules.setdefault(Path(diagnostic["file"]).stem, set()).add(diagnostic.get("rule", diagnostic["message"]))
    return rules


def main(folder: Path, interpreter: str) -> int:
    """Print what each module breaks; status 1 if it is not what it should be."""
    write_broken(folder / "metrale_sliding_window")
    found = rules_by_module(folder, interpreter)
    expected = {name: rules for name, (_, _, rules) in BROKEN.items()}
    for name in sorted(found | expected):
        sys.stdout.write(f"{name}: {', '.join(sorted(found.get(name, {'nothing'})))}\n")
    for name in sorted(found | expected):
        if found.get(name, set[str]()) != expected.get(name, set[str]()):
            sys.stdout.write(f"{name}: expected {', '.join(sorted(expected.get(name, {'nothing'})))}\n")
    return int(found != expected)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
