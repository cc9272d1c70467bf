# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reference layers, each built only on the public protocols."""
