# SPDX-License-Identifier: MIT OR Apache-2.0
"""Triton kernels, their plain-torch twins, and the launch that chooses how they run."""
