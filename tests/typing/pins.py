# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reading the accept and reject files: the lines that are pinned to rules of pyright, and the kinds of fault.

A pin is `# pyright: ignore[rule, ...]` at the end of a line that must be refused. A kind of fault is named by what
stands around its pin at the top level of the file: a variable, a function or a class.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent

MALFORMED = (
    "wrong_return_type",
    "wrong_optional_return",
    "extra_argument",
    "async_method",
    "generator_method",
    "attribute",
    "property_method",
)
"""No answers: each is refused in place of the protocol's (`kind`) and by `declares` (`declare_kind`)."""

MISDECLARED = ("declare_misspelt_method", "declare_missing_method")
"""Classes without the method, refused by `declares`."""

UNTIED = {
    "is_ssm_layer": ("declare_without_forward_methods", "declare_with_some_forward_methods"),
    "uses_ssm_pool": ("declare_without_forward_methods", "declare_with_some_forward_methods"),
    "decode_verify_multi_unsupported": ("declare_without_forward_methods",),
}
"""For each query with an obliging answer, classes that may give it and lack forward methods, refused by `declares`."""

UNNAMED = ("declare_misspelt_query", "ask_misspelt_query")
"""Names that are no query."""

STATIC = ("MisspeltOverride", "wrong_narrowing", "wrong_asserted_type", "lost_class")
"""What only a checker can refuse."""

STATIC_UNTIED = "declare_with_misshapen_forward_methods"
"""Likewise, for a query with an obliging answer: forward methods of the right names and another shape."""

_PIN = re.compile(r"  # pyright: ignore\[([\w, ]+)\]$", re.MULTILINE)


def accept_file(query: str) -> Path:
    """The file of what is accepted of a query."""
    return FOLDER / f"accept_{query}.py"


def reject_file(query: str) -> Path:
    """The file of what is refused of a query."""
    return FOLDER / f"reject_{query}.py"


def expected_kinds(query: str) -> set[str]:
    """The kinds of fault that the reject file of a query must have."""
    kinds = {*MALFORMED, *(f"declare_{kind}" for kind in MALFORMED), *MISDECLARED, *UNNAMED, *STATIC}
    return kinds | {*UNTIED[query], STATIC_UNTIED} if query in UNTIED else kinds


def pins(source: str) -> set[tuple[int, str]]:
    """Each pinned line, counted from 1, with each of its rules."""
    return {
        (number, rule)
        for number, line in enumerate(source.splitlines(), 1)
        for found in _PIN.finditer(line)
        for rule in found.group(1).split(", ")
    }


def without_pins(source: str) -> str:
    """The source with its pins removed, every line in its place."""
    return _PIN.sub("", source)


def kinds(source: str) -> set[str]:
    """The names of all top-level variables, functions and classes around a pin."""
    pinned = {line for line, _ in pins(source)}
    return {name for name, lines in _named(source) if not pinned.isdisjoint(lines)}


def _named(source: str) -> Iterator[tuple[str, range]]:
    for node in ast.parse(source).body:
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name, lines
            case _:
                pass
