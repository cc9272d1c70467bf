# SPDX-License-Identifier: MIT OR Apache-2.0
"""A compilation target and the back end that compiles for it."""

from collections.abc import Callable, Mapping
from enum import Enum
from types import ModuleType
from typing import Any

from .._C.libtriton import ir

class GPUTarget:
    backend: str
    arch: int | str
    warp_size: int
    def __init__(self, backend: str, arch: int | str, warp_size: int) -> None: ...

class Language(Enum):
    TRITON = ...
    GLUON = ...

class BaseBackend:
    target: GPUTarget
    binary_ext: str
    def __init__(self, target: GPUTarget) -> None: ...
    @staticmethod
    def supports_target(target: GPUTarget) -> bool: ...
    def hash(self) -> str: ...
    # the answer is a frozen dataclass of the back end's own
    def parse_options(self, options: Mapping[str, object]) -> Any: ...
    # a stage takes what the previous one gave: a module up to the IR levels, then text, at last bytes
    def add_stages(
        self, stages: dict[str, Callable[[Any, dict[str, Any]], Any]], options: object, language: Language
    ) -> None: ...
    def load_dialects(self, context: ir.context) -> None: ...
    def get_module_map(self) -> dict[str, ModuleType]: ...
    # declared by each back end rather than by the base
    def get_codegen_implementation(self, options: object) -> dict[str, Any]: ...
