# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a launch raises."""

from ..errors import TritonError

class InterpreterError(TritonError):
    error_message: str | None

class OutOfResources(TritonError):
    required: int
    limit: int
    name: str
