# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs a model: scheduler, steps, and the user-facing `Engine`. Needs the extra `engine`."""

from metrale_caps.engine.counters import Counters as Counters
from metrale_caps.engine.engine import Engine as Engine
from metrale_caps.engine.memory_use import MemoryUse as MemoryUse
from metrale_caps.engine.options import EngineOptions as EngineOptions
from metrale_caps.engine.output import GenerationOutput as GenerationOutput
from metrale_caps.engine.output import RouteUse as RouteUse
from metrale_caps.engine.output import TokenEvent as TokenEvent
from metrale_caps.engine.sampling import Sampling as Sampling
from metrale_caps.engine.trace import StepTrace as StepTrace

__all__ = [
    "Counters",
    "Engine",
    "EngineOptions",
    "GenerationOutput",
    "MemoryUse",
    "RouteUse",
    "Sampling",
    "StepTrace",
    "TokenEvent",
]
