# SPDX-License-Identifier: MIT OR Apache-2.0
"""Gives back memory of weights that have been copied.

Weights on a CPU are mapped from their file. Once they are packed, the pages of the originals are still counted to the
process until the system is short of memory; this tells it that they are not needed. It is advice: what is read again
comes back unchanged, and where the advice is not known nothing happens.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_MADV_PAGEOUT = 21


def page_out(tensor: Tensor) -> None:
    """Tell the system that a CPU tensor's memory is not needed now; its content is kept."""
    if sys.platform != "linux" or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return
    start = tensor.data_ptr()
    end = start + tensor.numel() * tensor.element_size()
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (end - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if whole > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(whole), _MADV_PAGEOUT)
