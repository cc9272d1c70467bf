# SPDX-License-Identifier: MIT OR Apache-2.0
"""Plain-torch twins of the kernels: the oracles in tests, and the fast way on a CPU."""
