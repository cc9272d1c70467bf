# SPDX-License-Identifier: MIT OR Apache-2.0
"""The base of Triton's own exceptions."""

class TritonError(Exception): ...
