# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tokens of Triton's textual intermediate representation."""

from __future__ import annotations

import re
from typing import NamedTuple

_NESTED = r"<[^<>]*(?:<[^<>]*(?:<[^<>]*>[^<>]*)*>[^<>]*)*>"
_TOKEN = re.compile(
    r"(?P<space>[ \t\r]+|//[^\n]*)"
    r"|(?P<newline>\n)"
    r'|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<value>%[\w$.-]+(?:\#\d+)?)"
    r"|(?P<label>\^\w+)"
    r'|(?P<symbol>@(?:[\w$.-]+|"[^"]*"))'
    rf"|(?P<type>(?:tensor|vector){_NESTED}|![\w.]+(?:{_NESTED})?)"
    r"|(?P<dense>dense<[^>]*>)"
    r"|(?P<array>array<[^>]*>)"
    r"|(?P<arrow>->)"
    r"|(?P<number>-?0x[0-9A-Fa-f]+|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    rf"|(?P<alias>\#[\w.]+(?:{_NESTED})?)"
    r"|(?P<word>[A-Za-z_][\w.$]*)"
    r"|(?P<mark>.)"
)


class Token(NamedTuple):
    """One token; `line` tells where operations, which end with their line, end."""

    kind: str
    text: str
    line: int


def tokens_of(text: str) -> list[Token]:
    """Split a module's text, without white space and comments; the last token has the kind `end`."""
    found: list[Token] = []
    line = 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "mark"
        if kind == "newline":
            line += 1
        elif kind != "space":
            found.append(Token(kind, match.group(), line))
    found.append(Token("end", "", line + 1))
    return found
