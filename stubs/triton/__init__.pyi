# SPDX-License-Identifier: MIT OR Apache-2.0
"""The part of Triton's types that this package uses, for Triton 3.6 to 3.9, which ship none.

Written 2026-12. To be dropped when Triton publishes its own; until then a test holds that every name here exists.
"""

from . import backends as backends
from . import compiler as _compiler
from . import knobs as knobs
from . import language as language
from . import runtime as runtime
from . import testing as testing
from . import tools as tools
from .runtime import Config as Config
from .runtime import InterpreterError as InterpreterError
from .runtime import JITFunction as JITFunction
from .runtime import KernelInterface as KernelInterface
from .runtime import MockTensor as MockTensor
from .runtime import OutOfResources as OutOfResources
from .runtime import TensorWrapper as TensorWrapper
from .runtime import autotune as autotune
from .runtime import heuristics as heuristics
from .runtime import reinterpret as reinterpret
from .runtime.jit import constexpr_function as constexpr_function
from .runtime.jit import jit as jit

__version__: str

# A function of this name and the sub-package `compiler` are both attributes of the package.
compile = _compiler.compile
CompilationError = _compiler.CompilationError

def cdiv(x: int, y: int) -> int: ...
def next_power_of_2(n: int) -> int: ...
