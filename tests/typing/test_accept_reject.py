# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is right about a declaration is accepted by pyright, and each thing that is wrong is refused by its own rule.

The files are checked twice in one run: as they stand, where a pin that is not needed is an error, and with the pins
removed, where exactly the pinned rules must be reported on exactly the pinned lines. That the engine agrees at run
time is held by `tests/core/test_accept_reject_at_run_time.py`.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import is_protocol

import metrale_caps
from metrale_caps import QUERIES, layer
from tests.typing.pins import FOLDER, accept_file, expected_kinds, kinds, pins, reject_file, without_pins

pytest.importorskip("pyright")

EACH_QUERY = pytest.mark.parametrize("query", QUERIES)
FILES = sorted([*FOLDER.glob("accept_*.py"), *FOLDER.glob("reject_*.py")])
PLAIN = accept_file("decode_graph_unsupported")
WRONG_LINES = {
    "is_no_layer.py": ("LAYER: DecodeGraphUnsupported = object()", "reportAssignmentType"),
    "has_another_type.py": ("assert_type(Plain(1), DecodeGraphUnsupported)", "reportAssertTypeFailure"),
    "is_pinned_in_vain.py": (
        "ONE: int = 1  # pyright: ignore[reportAssignmentType]",
        "reportUnnecessaryTypeIgnoreComment",
    ),
}
Found = set[tuple[int, str]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """What pyright reports, in one run: for each file, by its folder and name, lines and rules."""
    folder = tmp_path_factory.mktemp("checked")
    for path in FILES:
        source = path.read_text(encoding="utf-8")
        _write(folder / "standing" / path.name, source)
        _write(folder / "stripped" / path.name, without_pins(source))
    for name, (line, _) in WRONG_LINES.items():
        _write(folder / "wrong" / name, f"{PLAIN.read_text(encoding='utf-8')}{line}\n")
    return _run_pyright(folder)


def _write(path: Path, source: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, encoding="utf-8")


def _run_pyright(folder: Path) -> dict[str, Found]:
    """Check a folder with the settings of the repository, against the package that is tested."""
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    settings: dict[str, Any] = project["tool"]["pyright"] | {"include": ["."]}
    settings["extraPaths"] = [str(Path(metrale_caps.__file__).parents[1])]
    _write(folder / "pyrightconfig.json", json.dumps(settings))
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603 - a fixed command
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(folder.rglob("*.py")))
    by_file: dict[str, Found] = {path.relative_to(folder).as_posix(): set() for path in folder.rglob("*.py")}
    for diagnostic in report["generalDiagnostics"]:
        name = Path(diagnostic["file"]).relative_to(folder.resolve()).as_posix()
        by_file[name].add((diagnostic["range"]["start"]["line"] + 1, diagnostic.get("rule", diagnostic["message"])))
    return by_file


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_have_no_error_as_they_stand(found: dict[str, Found], path: Path) -> None:
    """All that is right is accepted, and no pin is left on a line that is accepted."""
    assert found[f"standing/{path.name}"] == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_pinned_line_is_refused_by_exactly_its_rules(found: dict[str, Found], path: Path) -> None:
    """Without the pins, pyright reports what they name, line by line, and nothing else."""
    assert found[f"stripped/{path.name}"] == pins(path.read_text(encoding="utf-8"))


@EACH_QUERY
def test_each_query_has_an_accept_file_without_pins(query: str) -> None:
    """Nothing is ignored in what must be accepted, and it asks the query."""
    source = accept_file(query).read_text(encoding="utf-8")
    assert "ignore[" not in source
    assert f'capability_of(layer, "{query}")' in source


@EACH_QUERY
def test_each_query_has_a_reject_file_with_every_kind_of_fault(query: str) -> None:
    """No kind of fault is forgotten for any query."""
    assert kinds(reject_file(query).read_text(encoding="utf-8")) == expected_kinds(query)


@pytest.mark.parametrize(
    "path", [accept_file("forward_methods"), reject_file("forward_methods")], ids=lambda path: path.stem
)
def test_each_forward_protocol_is_assigned_to(path: Path) -> None:
    """No forward protocol is forgotten among those that a layer satisfies, or does not."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    assigned = [ast.unparse(node.annotation) for node in body if isinstance(node, ast.AnnAssign)]
    protocols = [
        name
        for name, value in vars(layer).items()
        if is_protocol(value) and value.__module__.startswith(f"{layer.__name__}.")
    ]
    assert sorted(assigned) == sorted(protocols)


@pytest.mark.parametrize("name", WRONG_LINES)
def test_a_wrong_line_in_an_accept_file_is_caught(found: dict[str, Found], name: str) -> None:
    """The check fails, at the line and by the rule, on a line that is wrong."""
    last = len(PLAIN.read_text(encoding="utf-8").splitlines()) + 1
    assert found[f"wrong/{name}"] == {(last, WRONG_LINES[name][1])}


def test_pins_and_kinds_are_read_from_the_source() -> None:
    """A pin is found with each of its rules and by its kind; a line without one is of no kind."""
    source = (
        "right: int = 1\n"
        "wrong: int = ''  # pyright: ignore[reportAssignmentType]\n"
        "def both() -> None:\n    f()  # pyright: ignore[reportCallIssue, reportArgumentType]\n"
        "def neither() -> None: ...\n"
    )
    assert pins(source) == {(2, "reportAssignmentType"), (4, "reportCallIssue"), (4, "reportArgumentType")}
    assert kinds(source) == {"wrong", "both"}
    assert pins(without_pins(source)) == set()
    assert len(without_pins(source).splitlines()) == len(source.splitlines())
