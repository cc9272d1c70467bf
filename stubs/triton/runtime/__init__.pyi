# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernels as Python objects, and the driver that launches them."""

from .autotuner import Autotuner as Autotuner
from .autotuner import Config as Config
from .autotuner import Heuristics as Heuristics
from .autotuner import autotune as autotune
from .autotuner import heuristics as heuristics
from .driver import driver as driver
from .errors import InterpreterError as InterpreterError
from .errors import OutOfResources as OutOfResources
from .jit import JITFunction as JITFunction
from .jit import KernelInterface as KernelInterface
from .jit import MockTensor as MockTensor
from .jit import TensorWrapper as TensorWrapper
from .jit import reinterpret as reinterpret
