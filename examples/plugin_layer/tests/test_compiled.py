# SPDX-License-Identifier: MIT OR Apache-2.0
"""The kernels as GPUs that need not be there would run them."""

from __future__ import annotations

import pytest
import torch
from metrale_sliding_window.kernels import attend, write_pages

from metrale_caps import ForwardContext, PagedKv
from metrale_caps.kernels.ahead_of_time import TARGETS, measure
from metrale_caps.kernels.launch import record_launches


@pytest.mark.parametrize("max_rows", [1, 512], ids=["decode", "prefill"])
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_compile_without_spilling_and_multiply_on_tensor_cores(target: str, max_rows: int) -> None:
    """32 query heads over 8 key-value heads of 128 channels in bf16, the shape of common models."""
    with torch.device("meta"), record_launches() as launches:
        cache = torch.empty(1000, 16, 8, 128, dtype=torch.bfloat16)
        pages = PagedKv(cache, cache.clone())
        context = ForwardContext(
            positions=torch.empty(max_rows, dtype=torch.int64),
            cache_slots=torch.empty(max_rows, dtype=torch.int64),
            block_tables=torch.empty(4, 64, dtype=torch.int32),
            lengths=torch.empty(4, dtype=torch.int32),
            row_starts=torch.empty(5, dtype=torch.int32),
            sequence_slots=torch.empty(4, dtype=torch.int32),
            max_rows=max_rows,
            max_length=1024,
        )
        keys, values = torch.empty(2, max_rows, 8, 128, dtype=torch.bfloat16)
        write_pages(keys, values, context.cache_slots, pages)
        attend(torch.empty(max_rows, 32, 128, dtype=torch.bfloat16), pages, context, window=1024, scale=0.1)
    writing, attention = (measure(launch, target) for launch in launches)
    assert writing.spill_bytes == attention.spill_bytes == 0
    assert attention.tensor_core > 0
    assert attention.wide_loads > attention.loads / 2
