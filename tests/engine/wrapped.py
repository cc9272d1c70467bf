# SPDX-License-Identifier: MIT OR Apache-2.0
"""A layer to derive from: it stands around one of the engine's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from metrale_caps import DecodeContext, PagedKvSpec, PrefillContext


class Wrapped:
    """A layer over an inner one, with every forward method that the inner one has."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def kv_cache_spec(self) -> PagedKvSpec:
        return self.inner.kv_cache_spec()

    def decode_verify_multi_unsupported(self) -> bool:
        return True

    def decode(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:
        return self.inner.decode(hidden, context)

    def decode_multi_seq(self, hidden: Tensor, context: DecodeContext, /) -> Tensor:
        return self.inner.decode_multi_seq(hidden, context)

    def prefill(self, hidden: Tensor, context: PrefillContext, /) -> Tensor:
        return self.inner.prefill(hidden, context)
