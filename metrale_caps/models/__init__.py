# SPDX-License-Identifier: MIT OR Apache-2.0
"""Building a stack of layers from a `transformers` model or a checkpoint."""
