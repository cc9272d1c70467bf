# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs ordinary `@triton.jit` kernels on CPU tensors by executing their own intermediate representation.

Triton's front end lowers the kernel as it would for a GPU; the result is translated to Python over numpy, once for
each specialisation. The numbers are the compiler's: integers wrap at their width, bfloat16 and 8-bit floats round to
nearest even, loop variables keep their types. Every load and store is checked against the argument it was derived
from. Triton itself is neither patched nor told to interpret, so that the same kernels compile in the same process.
"""

from metrale_caps.kernels.executor.launching import execute

__all__ = ["execute"]
