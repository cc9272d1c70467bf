# SPDX-License-Identifier: MIT OR Apache-2.0
"""What holds for the repository as a whole: licences, the changelog, the commands in the README, what no file says."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SPDX = "# SPDX-License-Identifier: MIT OR Apache-2.0"
SKIPPED = re.compile(r"__pycache__|build|dist|.*\.egg-info|\.(?!ci$|gitignore$).*")
TEXT = {".py", ".pyi", ".md", ".toml", ".txt", ".json", ".yaml", ".yml", ".cfg", ""}
HEAVY = {"cli", "engine", "kernels", "layers", "models", "routing", "state", "testing"}
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:work|root|home/\w+|tmp/\w+|Users/\w+)/")


def _files(*suffixes: str) -> list[Path]:
    return sorted(
        path
        for path in ROOT.rglob("*")
        if path.suffix in suffixes
        and path.is_file()
        and not any(SKIPPED.fullmatch(part) for part in path.relative_to(ROOT).parts)
    )


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _sessions(source: str) -> set[str]:
    """The names of the nox sessions that a noxfile defines."""
    return {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and any("nox.session" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def _asked_sessions(text: str) -> set[str]:
    """The sessions named by `nox -s NAME` in a text."""
    return set(re.findall(r"\bnox (?:-\w+ )*-s (\w+)", text))


def test_every_python_file_starts_with_the_licence() -> None:
    """The SPDX line is the first of each source, stub and test."""
    files = _files(".py", ".pyi")
    assert len(files) > 20
    assert [str(path) for path in files if path.read_text(encoding="utf-8").partition("\n")[0] != SPDX] == []


def test_every_licence_named_has_its_text() -> None:
    """Each licence of the package's expression is there in full, and the expression is the one in the files."""
    expression = _pyproject()["project"]["license"]
    assert SPDX.endswith(f" {expression}")
    assert "MIT License" in (ROOT / "LICENSE-MIT").read_text(encoding="utf-8")
    assert "END OF TERMS AND CONDITIONS" in (ROOT / "LICENSE-APACHE").read_text(encoding="utf-8")


def test_the_changelog_is_at_the_package_version() -> None:
    """The newest entry of the changelog is the version that pyproject.toml gives."""
    newest = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == _pyproject()["project"]["version"]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_command_in_the_documents_names_a_session(name: str) -> None:
    """Each `nox -s X` that a reader is told to run exists."""
    asked = _asked_sessions((ROOT / name).read_text(encoding="utf-8"))
    assert asked
    assert asked <= _sessions((ROOT / "noxfile.py").read_text(encoding="utf-8"))


def test_the_scan_for_commands_finds_an_unknown_session() -> None:
    """A document that names a missing session is caught."""
    assert _asked_sessions("python -m nox -s demo\n`nox -R -s tset -- -x`") == {"demo", "tset"}
    assert _sessions("@nox.session\ndef demo(session): ...\n@nox.session(default=False)\ndef gpu(session): ...\n") == {
        "demo",
        "gpu",
    }


def test_no_file_names_a_path_of_one_machine() -> None:
    """Nothing depends on, or tells of, where it was written."""
    found = {
        f"{path.relative_to(ROOT)}:{number}"
        for path in _files(*TEXT)
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if MACHINE_PATHS.search(line)
    }
    assert found == set()


def test_the_scan_for_paths_finds_one() -> None:
    """A path of a machine is caught where it stands alone, in quotes or in brackets, and a relative one is not."""
    assert all(MACHINE_PATHS.search(line) for line in ("/root/x", '"/home/ann/x"', "(/work/x)"))
    assert not any(MACHINE_PATHS.search(line) for line in ("src/work/x", "./root/x", "~/work/x", "a/tmp/b/"))


def test_every_torch_free_module_is_under_the_import_contract() -> None:
    """What stands at the top of the package and is not of the engine may import nothing heavy."""
    contracts = _pyproject()["tool"]["importlinter"]["contracts"]
    (light,) = (contract for contract in contracts if contract["type"] == "forbidden")
    top = {path.stem for path in (ROOT / "metrale_caps").iterdir() if not path.name.startswith("__")}
    there = {f"metrale_caps.{name}" for name in top - HEAVY - {"py"}}
    assert len(there) > 10
    assert there <= set(light["source_modules"])
    assert {"torch", "triton", "numpy", "transformers"} == set(light["forbidden_modules"])


def test_constraints_pin_versions_and_nothing_else() -> None:
    """What the sessions install is named by version, never by a place to fetch it from; Triton is left to torch."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    names = {line.partition("==")[0] for line in pins}
    assert {"torch", "transformers", "pyright"} <= names
    assert "triton" not in names, (
        "torch's builds for GPUs ask for one version of Triton each; a pin would fight with it"
    )
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
