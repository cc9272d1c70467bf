# SPDX-License-Identifier: MIT OR Apache-2.0
"""Benchmarks: registered cases that print nothing where their correctness check is red."""
