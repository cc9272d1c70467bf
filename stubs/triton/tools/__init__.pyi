# SPDX-License-Identifier: MIT OR Apache-2.0
"""Host-side helpers."""
