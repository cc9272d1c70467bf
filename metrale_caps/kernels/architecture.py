# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a kernel runs on, as far as the choice of tiles depends on it."""

from __future__ import annotations

import contextlib
import functools
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from metrale_caps.errors import LaunchError
from metrale_caps.kernels.host import multiprocessors

if TYPE_CHECKING:
    from collections.abc import Generator


@dataclass(frozen=True, slots=True)
class Architecture:
    """A kind of processor.

    Attributes:
        vendor: "cpu", where the executor runs kernels, "nvidia" or "amd".
        generation: major compute capability of an NVIDIA GPU; 0 elsewhere.
        multiprocessors: of the GPU; 1 on a CPU.
    """

    vendor: Literal["cpu", "nvidia", "amd"]
    generation: int = 0
    multiprocessors: int = 1

    @property
    def is_cpu(self) -> bool:
        """Whether the executor runs the kernels."""
        return self.vendor == "cpu"


_CPU = Architecture("cpu")
_assumed: ContextVar[Architecture | None] = ContextVar("assumed_architecture", default=None)


@contextlib.contextmanager
def assume_architecture(architecture: Architecture) -> Generator[None]:
    """Choose tiles as on this architecture for tensors of the meta device, which lie on none."""
    token = _assumed.set(architecture)
    try:
        yield
    finally:
        _assumed.reset(token)


def architecture_of(device: torch.device) -> Architecture:
    """Return what a kernel on tensors of this device runs on.

    Raises:
        LaunchError: the device is "meta", and no architecture is assumed.
    """
    if device.type == "cpu":
        return _CPU
    if device.type == "meta":
        assumed = _assumed.get()
        if assumed is None:
            raise LaunchError("tensors of the meta device run nowhere; use `assume_architecture` to record a launch")
        return assumed
    return _gpu(device)


@functools.cache
def _gpu(device: torch.device) -> Architecture:
    if torch.version.hip:
        return Architecture("amd", 0, multiprocessors(device))
    major, _ = torch.cuda.get_device_capability(device)
    return Architecture("nvidia", major, multiprocessors(device))
