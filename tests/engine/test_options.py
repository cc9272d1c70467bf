# SPDX-License-Identifier: MIT OR Apache-2.0
"""Options are checked when they are given, and the error names them."""

from __future__ import annotations

from typing import Any

import pytest

from metrale_caps.engine import EngineOptions
from metrale_caps.errors import ConfigurationError


@pytest.mark.parametrize("option", ["max_slots", "block_size", "num_blocks", "prefill_chunk", "seed"])
@pytest.mark.parametrize("value", ["8", 8.5, 8.0, True, [8]], ids=repr)
def test_option_that_is_no_whole_number_is_refused(option: str, value: Any) -> None:
    """The option, what came and its type are named."""
    with pytest.raises(ConfigurationError) as caught:
        EngineOptions(**{option: value})
    assert str(caught.value) == f"{option} is {value!r} ({type(value).__name__}); it must be a whole number"


@pytest.mark.parametrize("option", ["max_slots", "block_size", "prefill_chunk", "seed"])
def test_only_the_number_of_blocks_may_be_left_open(option: str) -> None:
    """None stands for a choice of the engine's, and only blocks have one."""
    assert EngineOptions(num_blocks=None).num_blocks is None
    with pytest.raises(ConfigurationError, match=f"{option} is None"):
        EngineOptions(**{option: None})  # pyright: ignore[reportArgumentType]


def test_seed_may_be_any_whole_number() -> None:
    """A seed is no size."""
    assert [EngineOptions(seed=seed).seed for seed in (-1, 0, 1 << 70)] == [-1, 0, 1 << 70]
