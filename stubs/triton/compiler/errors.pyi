# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the front end raises about a kernel's source."""

import ast

from ..errors import TritonError

class CompilationError(TritonError):
    src: str | None
    node: ast.AST
    error_message: str | None

class CompileTimeAssertionFailure(CompilationError): ...
class UnsupportedLanguageConstruct(CompilationError): ...
