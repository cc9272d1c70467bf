# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compiling a kernel without launching it."""

from .compiler import ASTSource as ASTSource
from .compiler import CompiledKernel as CompiledKernel
from .compiler import compile as compile
from .compiler import make_backend as make_backend
from .errors import CompilationError as CompilationError
