# SPDX-License-Identifier: MIT OR Apache-2.0
"""The Triton stubs tell the truth about the installed Triton, and cover what the package uses."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import metrale_caps
from tests.typing.stub_walk import broken_promises, module_name, promised_names

if TYPE_CHECKING:
    from collections.abc import Iterator

STUBS = Path(__file__).parents[2] / "stubs"
PACKAGE = Path(metrale_caps.__file__).parent

ALLOWED: dict[str, str] = {
    "triton.language.core.dtype.element_ty": "2026-12: set by pointer_type alone; kernels read it through the base",
    "triton.language.core.tensor.__index__": "2026-12: `range(n)` takes a tensor in the front end alone",
    "triton.backends.compiler.BaseBackend.get_codegen_implementation": "2026-12: on every back end, not on the base",
    "triton.backends.compiler.BaseBackend.binary_ext": "2026-12: on every back end, not on the base",
    "triton._C.libtriton.ir.module.context": "2026-12: set by the front end on the instance it returns",
}

pytest.importorskip("triton")


def _stub_files() -> list[Path]:
    return sorted(STUBS.rglob("*.pyi"))


@pytest.mark.parametrize("path", _stub_files(), ids=lambda path: module_name(path, STUBS))
def test_every_stubbed_name_exists_at_run_time(path: Path) -> None:
    """A name that pyright accepts from the stubs is there in the installed Triton."""
    missing = broken_promises(path.read_text(encoding="utf-8"), module_name(path, STUBS))
    assert [name for name in missing if name not in ALLOWED] == []


def test_every_exception_in_the_allow_list_is_still_stubbed() -> None:
    """An allow-list entry whose stub is gone is removed with it."""
    promised = {
        ".".join(filter(None, (module_name(path, STUBS), name, member)))
        for path in _stub_files()
        for name, member in promised_names(path.read_text(encoding="utf-8"))
    }
    assert set(ALLOWED) <= promised


def test_the_walk_finds_what_a_false_stub_promises() -> None:
    """The check fails on a stub that names a missing function, a missing member and a missing re-export."""
    false_stub = (
        "from .core import no_such_operation as no_such_operation\n"
        "def load_everything() -> None: ...\n"
        "class tensor:\n    type: int\n    def no_such_method(self) -> None: ...\n"
    )
    assert broken_promises(false_stub, "triton.language") == [
        "triton.language.load_everything",
        "triton.language.no_such_operation",
        "triton.language.tensor.no_such_method",
    ]
    assert broken_promises("", "triton.no_such_module") == ["triton.no_such_module"]


def test_every_triton_name_used_by_the_package_is_stubbed() -> None:
    """Each `tl.x` and `triton.x` in the package's source is in the stubs."""
    stubbed = {
        module: {name for name, member in promised_names(path.read_text(encoding="utf-8")) if member is None}
        for path in _stub_files()
        for module in [module_name(path, STUBS)]
    }
    unknown = {
        f"{path.relative_to(PACKAGE)}: {module}.{name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for module, name in _used_names(path.read_text(encoding="utf-8"))
        if name not in stubbed.get(module, set()) and f"{module}.{name}" not in stubbed
    }
    assert unknown == set()


def test_the_scan_of_uses_sees_aliases_and_from_imports() -> None:
    """The scan resolves `tl.`, a plain `triton.` and `from triton... import ...`."""
    source = (
        "import triton\nimport triton.language as tl\nfrom triton.compiler import ASTSource\n"
        "tl.invented(triton.cdiv(1, 2))\n"
    )
    assert set(_used_names(source)) == {
        ("triton.language", "invented"),
        ("triton", "cdiv"),
        ("triton.compiler", "ASTSource"),
    }


def _used_names(source: str) -> Iterator[tuple[str, str]]:
    """Yield `(module, name)` for each name of Triton that `source` reads from a module it imported."""
    modules: dict[str, str] = {}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "triton":
                    modules[alias.asname or "triton"] = alias.name if alias.asname else "triton"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "triton":
            for alias in node.names:
                yield node.module or "", alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr
