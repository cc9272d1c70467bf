# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which cache blocks are in use, and by how many holders.

Invariants: a block is either free or held; its reference count is the number of holders; handed-out indices are plain
integers, so freeing one never changes another. A request for more blocks than are free changes nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class BlockPool:
    """Reference-counted blocks `0 .. size - 1`.

    Attributes:
        size: blocks of the pool.
        block_size: tokens a block holds.
    """

    def __init__(self, size: int, block_size: int) -> None:
        self.size = size
        self.block_size = block_size
        self._references = [0] * size
        self._free = deque(range(size))

    @property
    def free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def references(self, block: int) -> int:
        """Return how many hold a block."""
        return self._references[block]

    def acquire(self, count: int) -> list[int] | None:
        """Take `count` free blocks, each held once; None, with nothing changed, if fewer are free."""
        if count > len(self._free):
            return None
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add one holder to each of `blocks`.

        Raises:
            ValueError: a block is free, so it holds nothing that could be shared.
        """
        blocks = list(blocks)
        for block in blocks:
            if self._references[block] == 0:
                raise ValueError(f"block {block} is free and cannot be shared")
        for block in blocks:
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one holder of each of `blocks`; a block without holders is free again.

        Raises:
            ValueError: a block is already free; the blocks before it have been released.
        """
        for block in blocks:
            if self._references[block] == 0:
                raise ValueError(f"block {block} is already free")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)
