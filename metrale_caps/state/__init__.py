# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a step reads and writes: sequences, slots, blocks and pages."""
