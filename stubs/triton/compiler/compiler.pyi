# SPDX-License-Identifier: MIT OR Apache-2.0
"""A kernel with the types of its arguments, what it compiles to, and the way between."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from .._C.libtriton import ir
from ..backends.compiler import BaseBackend, GPUTarget, Language
from ..runtime.jit import JITFunction

class ASTSource:
    fn: JITFunction[..., Any]
    language: Language
    name: str
    signature: Mapping[str, str]
    constants: dict[tuple[int, ...], Any]
    attrs: Mapping[tuple[int, ...], Sequence[Sequence[str | int]]]
    def __init__(
        self,
        fn: JITFunction[..., Any],
        signature: Mapping[str, str],
        constexprs: Mapping[str, object] | Mapping[tuple[int, ...], object] | None = ...,
        attrs: Mapping[tuple[int, ...], Sequence[Sequence[str | int]]] | None = ...,
    ) -> None: ...
    def hash(self) -> str: ...
    def make_ir(
        self,
        target: GPUTarget,
        options: object,
        codegen_fns: Mapping[str, Any],
        module_map: Mapping[str, ModuleType],
        context: ir.context,
    ) -> ir.module: ...

class CompiledKernel:
    name: str
    hash: str
    # a named tuple whose fields are the back end's
    metadata: Any
    # text for each IR level, bytes for the binary
    asm: dict[str, Any]
    kernel: bytes
    n_regs: int
    n_spills: int

def compile(
    src: ASTSource | str,
    target: GPUTarget | None = ...,
    options: Mapping[str, object] | None = ...,
) -> CompiledKernel: ...
def make_backend(target: GPUTarget) -> BaseBackend: ...
