# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reading stub files: every name they promise, and whether the installed module keeps the promise.

A stub that names what the library lacks turns a checked program into an AttributeError at run time; nothing else in the
tool chain would notice. The walk reads the source with `ast` rather than importing it, since a stub cannot be imported.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STATIC_ONLY = {"TypeAlias", "TypeVar", "ParamSpec"}
"""Annotations and calls that make a name for the type checker alone."""


def module_name(path: Path, root: Path) -> str:
    """The module a stub file under `root` describes: `root/triton/language/core.pyi` -> `triton.language.core`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def promised_names(source: str) -> Iterator[tuple[str, str | None]]:
    """Yield `(name, member or None)` for all that a stub promises: names, re-exports, members of classes."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, None
            for name in _members(node):
                yield node.name, name
        else:
            for name in _names(node):
                yield name, None


def broken_promises(source: str, module: str) -> list[str]:
    """What the stub `source` of `module` promises and the installed module lacks, as sorted dotted names."""
    try:
        runtime: object = importlib.import_module(module)
    except ImportError:
        return [module]
    return sorted(
        {
            ".".join(filter(None, (module, name, member)))
            for name, member in promised_names(source)
            if not _exists(runtime, name, member)
        }
    )


def _exists(module: object, name: str, member: str | None) -> bool:
    missing = object()
    found = getattr(module, name, missing)
    if found is missing or member is None:
        return found is not missing
    # statically, since a descriptor may refuse to be read from the class
    if inspect.getattr_static(found, member, missing) is not missing:
        return True
    return isinstance(found, type) and _set_on_instances(found, member)


def _set_on_instances(cls: type, member: str) -> bool:
    """Whether a class of the hierarchy declares the member, or assigns it to `self`: it is then on instances alone."""
    for base in cls.__mro__:
        if member in vars(base).get("__annotations__", {}) or member in vars(base).get("__slots__", ()):
            return True
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        if any(
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and node.attr == member
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
            for node in ast.walk(body)
        ):
            return True
    return False


def _members(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        match statement:
            case ast.FunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case _:
                pass


def _names(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
            if not (isinstance(annotation, ast.Name) and annotation.id in STATIC_ONLY):
                yield name
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            maker = value.func if isinstance(value, ast.Call) else None
            if not (isinstance(maker, ast.Name) and maker.id in STATIC_ONLY):
                yield name
        case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
            # only `import x as x` re-exports from a stub
            yield from (alias.asname for alias in aliases if alias.asname and alias.asname == alias.name)
        case _:
            pass
