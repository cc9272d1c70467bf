# SPDX-License-Identifier: MIT OR Apache-2.0
"""How the layers of a stack are run: pure decisions with reasons, and the dispatchers that obey them."""
