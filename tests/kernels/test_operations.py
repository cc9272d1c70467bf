# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every launcher refuses: each wrong tensor is named together with its axis, before anything runs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest
import torch

from metrale_caps.errors import ConfigurationError, LaunchError, MemoryFaultError
from metrale_caps.kernels.operations import Operations, operations
from metrale_caps.kernels.rotary import RotaryTable
from tests.kernels.batches import Heads, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


_HALF, _FP8 = torch.float16, torch.float8_e4m3fn


class Wrong(NamedTuple):
    """One argument of a call replaced, and what the error says."""

    operation: str
    argument: str
    value: Any
    message: str


def _rope() -> dict[str, Any]:
    return {
        "qkv": torch.zeros(4, 10 * 16),
        "rotary": RotaryTable(torch.ones(32, 8), torch.zeros(32, 8)),
        "positions": torch.arange(4),
        "cache_slots": torch.arange(4),
        "key_cache": torch.zeros(2, 16, 2, 16),
        "value_cache": torch.zeros(2, 16, 2, 16),
        "query_heads": 6,
        "key_value_heads": 2,
        "query_norm": torch.ones(16),
        "key_norm": torch.ones(16),
    }


def _store() -> dict[str, Any]:
    return {
        "keys": torch.zeros(3, 2, 16),
        "values": torch.zeros(3, 2, 24),
        "cache_slots": torch.arange(3),
        "key_cache": torch.zeros(4, 16, 2, 16, dtype=_FP8),
        "value_cache": torch.zeros(4, 16, 2, 24, dtype=_FP8),
        "key_scale": torch.ones(1),
        "value_scale": torch.ones(1),
    }


def _attention() -> dict[str, Any]:
    return {
        "query": torch.zeros(3, 6, 16),
        "key_cache": torch.zeros(4, 16, 2, 16),
        "value_cache": torch.zeros(4, 16, 2, 24),
        "block_tables": torch.zeros(2, 1, dtype=torch.int32),
        "lengths": torch.tensor([2, 9], dtype=torch.int32),
        "row_starts": torch.tensor([0, 2, 3], dtype=torch.int32),
        "scale": 1.0,
        "max_rows": 2,
        "max_length": 9,
    }


ARGUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "rms_norm": lambda: {"x": torch.ones(3, 16), "weight": torch.ones(16), "eps": 1e-5},
    "add_rms_norm": lambda: {
        "x": torch.ones(3, 16),
        "residual": torch.ones(3, 16),
        "weight": torch.ones(16),
        "eps": 1e-5,
    },
    "silu_mul": lambda: {"gate_up": torch.ones(3, 16)},
    "rope_write_kv": _rope,
    "store_kv_fp8": _store,
    "paged_attention": _attention,
}

_WRONG = [
    Wrong("rms_norm", "x", torch.ones(16), r"x must be \[rows, width\]"),
    Wrong("rms_norm", "x", torch.ones(16, 3).T, "last axis of x"),
    Wrong("rms_norm", "weight", torch.ones(15), "weight.*width is 15 rather than 16"),
    Wrong("rms_norm", "weight", torch.ones(32)[::2], "last axis of weight"),
    Wrong("rms_norm", "out", torch.ones(2, 16), "out.*rows is 2 rather than 3"),
    Wrong("rms_norm", "out", torch.ones(3, 17), "out.*width is 17 rather than 16"),
    Wrong("rms_norm", "out", torch.ones(3, 16, dtype=_HALF), "out must be torch.float32, but is torch.float16"),
    Wrong("rms_norm", "out", torch.ones(16, 3).T, "last axis of out"),
    Wrong("add_rms_norm", "x", torch.ones(16), r"x must be \[rows, width\]"),
    Wrong("add_rms_norm", "residual", torch.ones(4, 16), "residual.*rows is 4 rather than 3"),
    Wrong("add_rms_norm", "residual", torch.ones(3, 8), "residual.*width is 8 rather than 16"),
    Wrong("add_rms_norm", "residual", torch.ones(3, 16, dtype=_HALF), "residual must be torch.float32"),
    Wrong("add_rms_norm", "residual", torch.ones(16, 3).T, "last axis of residual"),
    Wrong("silu_mul", "gate_up", torch.ones(16), r"gate_up must be \[rows, twice_width\]"),
    Wrong("silu_mul", "gate_up", torch.ones(3, 15), "gate_up must have an even number of columns.*15"),
    Wrong("silu_mul", "gate_up", torch.ones(16, 3).T, "last axis of gate_up"),
    Wrong("rope_write_kv", "qkv", torch.zeros(4, 9 * 16), "qkv.*packed_heads is 144 rather than 160"),
    Wrong("rope_write_kv", "qkv", torch.zeros(160, 4).T, "last axis of qkv"),
    Wrong("rope_write_kv", "positions", torch.arange(3), "positions.*rows is 3 rather than 4"),
    Wrong("rope_write_kv", "positions", torch.arange(4).int(), "positions must be torch.int64, but is torch.int32"),
    Wrong("rope_write_kv", "positions", torch.arange(8)[::2], "last axis of positions"),
    Wrong("rope_write_kv", "cache_slots", torch.arange(5), "cache_slots.*rows is 5 rather than 4"),
    Wrong("rope_write_kv", "cache_slots", torch.arange(4).int(), "cache_slots must be torch.int64"),
    Wrong("rope_write_kv", "cache_slots", torch.arange(8)[::2], "last axis of cache_slots"),
    Wrong("rope_write_kv", "key_cache", torch.zeros(2, 16, 3, 16), "key_cache.*heads is 3 rather than 2"),
    Wrong("rope_write_kv", "key_cache", torch.zeros(2, 16, 2, 16, dtype=_HALF), "key_cache must be torch.float32"),
    Wrong("rope_write_kv", "key_cache", torch.zeros(2, 16, 16, 2).mT, "last axis of key_cache"),
    Wrong("rope_write_kv", "value_cache", torch.zeros(2, 8, 2, 16), "value_cache.*block_size is 8 rather than 16"),
    Wrong("rope_write_kv", "value_cache", torch.zeros(2, 16, 2, 8), "value_cache.*head_dim is 8 rather than 16"),
    Wrong("rope_write_kv", "value_cache", torch.zeros(2, 16, 2, 16, dtype=_HALF), "value_cache must be torch.float32"),
    Wrong("rope_write_kv", "query_norm", None, "query_norm and key_norm must be given together"),
    Wrong("rope_write_kv", "key_norm", torch.ones(8), "key_norm.*head_dim is 8 rather than 16"),
    Wrong("rope_write_kv", "rotary", RotaryTable(torch.ones(9, 9), torch.ones(9, 9)), "18 channels, but a head has 16"),
    Wrong("rope_write_kv", "rotary", RotaryTable(torch.ones(9, 8), torch.ones(8, 8)), "rotary.sin.*positions is 8"),
    Wrong("rope_write_kv", "rotary", RotaryTable(torch.ones(9, 8).half(), torch.ones(9, 8)), "rotary.cos must be"),
    Wrong("rope_write_kv", "rotary", RotaryTable(torch.ones(9, 8), torch.ones(9, 16)[:, ::2]), "rotary.sin must be"),
    Wrong("store_kv_fp8", "keys", torch.zeros(3, 16), r"keys must be \[rows, heads, head_dim\]"),
    Wrong("store_kv_fp8", "keys", torch.zeros(3, 2, 16).double(), "keys must be torch.float32 or .*torch.float64"),
    Wrong("store_kv_fp8", "keys", torch.zeros(3, 16, 2).mT, "last axis of keys"),
    Wrong("store_kv_fp8", "values", torch.zeros(2, 2, 24), "values.*rows is 2 rather than 3"),
    Wrong("store_kv_fp8", "values", torch.zeros(3, 1, 24), "values.*heads is 1 rather than 2"),
    Wrong("store_kv_fp8", "values", torch.zeros(3, 2, 24).half(), "values must be torch.float32, but is"),
    Wrong("store_kv_fp8", "values", torch.zeros(3, 24, 2).mT, "last axis of values"),
    Wrong("store_kv_fp8", "cache_slots", torch.arange(4), "cache_slots.*rows is 4 rather than 3"),
    Wrong("store_kv_fp8", "cache_slots", torch.arange(3).int(), "cache_slots must be torch.int64"),
    Wrong("store_kv_fp8", "cache_slots", torch.arange(6)[::2], "last axis of cache_slots"),
    Wrong("store_kv_fp8", "key_cache", torch.zeros(4, 16, 1, 16).to(_FP8), "key_cache.*heads is 1 rather than 2"),
    Wrong("store_kv_fp8", "key_cache", torch.zeros(4, 16, 2, 8).to(_FP8), "key_cache.*head_dim is 8 rather than 16"),
    Wrong("store_kv_fp8", "key_cache", torch.zeros(4, 16, 2, 16), "key_cache must be torch.float8_e4m3fn, but is"),
    Wrong("store_kv_fp8", "key_cache", torch.zeros(4, 16, 16, 2).to(_FP8).mT, "last axis of key_cache"),
    Wrong("store_kv_fp8", "value_cache", torch.zeros(4, 8, 2, 24).to(_FP8), "value_cache.*block_size is 8"),
    Wrong("store_kv_fp8", "value_cache", torch.zeros(4, 16, 2, 16).to(_FP8), "value_cache.*value_dim is 16"),
    Wrong("store_kv_fp8", "value_cache", torch.zeros(4, 16, 2, 24).byte(), "value_cache must be torch.float8_e4m3fn"),
    Wrong("store_kv_fp8", "key_scale", torch.ones(()), r"key_scale must be \[numbers=1\]"),
    Wrong("store_kv_fp8", "value_scale", torch.ones(2), "value_scale.*numbers is 2 rather than 1"),
    Wrong("store_kv_fp8", "value_scale", torch.ones(1).half(), "value_scale must be torch.float32, but is"),
    Wrong("store_kv_fp8", "key_scale", torch.ones(1, device="meta"), r"one device.*\['cpu', 'meta'\]"),
    Wrong("paged_attention", "query", torch.zeros(3, 6), r"query must be \[rows, heads, head_dim\]"),
    Wrong("paged_attention", "query", torch.zeros(3, 5, 16), "5 query heads cannot share 2 key-value heads"),
    Wrong("paged_attention", "query", torch.zeros(3, 16, 6).mT, "last axis of query"),
    Wrong("paged_attention", "key_cache", torch.zeros(4, 16, 2, 8), "key_cache.*head_dim is 8 rather than 16"),
    Wrong("paged_attention", "key_cache", torch.zeros(4, 16, 2, 16).half(), "key_cache must be torch.float32"),
    Wrong("paged_attention", "key_cache", torch.zeros(4, 16, 16, 2).mT, "last axis of key_cache"),
    Wrong("paged_attention", "value_cache", torch.zeros(4, 8, 2, 16), "value_cache.*block_size is 8 rather than 16"),
    Wrong("paged_attention", "value_cache", torch.zeros(4, 16, 1, 16), "value_cache.*heads is 1 rather than 2"),
    Wrong("paged_attention", "value_cache", torch.zeros(4, 16, 2, 16).half(), "value_cache must be torch.float32"),
    Wrong("paged_attention", "block_tables", torch.zeros(3, 1).int(), "block_tables.*sequences is 3 rather than 2"),
    Wrong("paged_attention", "block_tables", torch.zeros(2, 1).long(), "block_tables must be torch.int32"),
    Wrong("paged_attention", "block_tables", torch.zeros(2, 4).int()[:, ::2], "last axis of block_tables"),
    Wrong("paged_attention", "lengths", torch.zeros(2).long(), "lengths must be torch.int32, but is torch.int64"),
    Wrong("paged_attention", "lengths", torch.zeros(4).int()[::2], "last axis of lengths"),
    Wrong("paged_attention", "row_starts", torch.zeros(2).int(), "row_starts.*sequences_and_one is 2 rather than 3"),
    Wrong("paged_attention", "row_starts", torch.zeros(3).long(), "row_starts must be torch.int32"),
    Wrong("paged_attention", "row_starts", torch.zeros(6).int()[::2], "last axis of row_starts"),
    Wrong("paged_attention", "window", 0, "window is 0"),
    Wrong("paged_attention", "splits", 0, "splits is 0"),
    Wrong("paged_attention", "max_rows", 0, "max_rows is 0, but query has 3 rows"),
    Wrong("paged_attention", "key_cache", torch.zeros(4, 16, 2, 16, device="meta"), r"one device.*\['cpu', 'meta'\]"),
]


def _call(implementation: Operations, operation: str, arguments: dict[str, Any]) -> Tensor:
    return cast("Tensor", getattr(implementation, operation)(**arguments))


@pytest.mark.parametrize("operation", ARGUMENTS)
def test_arguments_that_the_refusals_start_from_are_accepted(each: Operations, operation: str) -> None:
    """Each refusal below is of one changed argument of a call that is right."""
    _call(each, operation, ARGUMENTS[operation]())


@pytest.mark.parametrize("wrong", _WRONG, ids=lambda wrong: f"{wrong.operation}-{wrong.argument}")
def test_wrong_argument_is_named(kernels: Operations, wrong: Wrong) -> None:
    """The launcher says which tensor and which axis, dtype or stride is wrong, and writes nothing."""
    arguments = {**ARGUMENTS[wrong.operation](), wrong.argument: wrong.value}
    written = [arguments[name] for name in ("residual", "key_cache", "value_cache") if name in arguments]
    before = [tensor.clone() for tensor in written]
    with pytest.raises(LaunchError, match=wrong.message):
        _call(kernels, wrong.operation, arguments)
    for tensor, was in zip(written, before, strict=True):
        assert tensor.is_meta or torch.equal(tensor, was)


def test_length_past_the_block_table_is_a_fault(kernels: Operations) -> None:
    """A sequence longer than its row of the table can hold names the table, not the cache."""
    batch = make_batch([(31, 1)], Heads(3, 1, 16, 16))
    batch.lengths.fill_(33)
    with pytest.raises(MemoryFaultError) as caught:
        batch.attend(kernels)
    assert caught.value.argument == "block_tables"


def test_block_past_the_pool_is_a_fault(kernels: Operations) -> None:
    """A table that names a block the pool does not have is found when the block is read."""
    batch = make_batch([(31, 1)], Heads(3, 1, 16, 16))
    batch.block_tables[0, 1] = batch.key_cache.shape[0]
    with pytest.raises(MemoryFaultError) as caught:
        batch.attend(kernels)
    assert caught.value.argument == "key_cache"


def test_no_rows_give_no_rows(each: Operations) -> None:
    """A step without rows attends to nothing, whether it has sequences or none."""
    arguments = _attention()
    none = {**arguments, "query": torch.zeros(0, 6, 16), "row_starts": torch.zeros(3).int(), "max_rows": 0}
    assert _call(each, "paged_attention", none).shape == (0, 6, 24)
    for name in ("block_tables", "lengths"):
        none[name] = arguments[name][:0]
    none["row_starts"] = torch.zeros(1).int()
    assert _call(each, "paged_attention", none).shape == (0, 6, 24)


def test_unknown_implementation_lists_the_known() -> None:
    """Asking for another implementation says which there are."""
    with pytest.raises(ConfigurationError, match=r"'cuda'.*'triton' or 'naive'"):
        operations(cast("Any", "cuda"))


def test_kernels_and_twins_take_the_same_arguments(kernels: Operations, twins: Operations) -> None:
    """Every operation has the same parameters and defaults in both, so that one may stand in for the other."""
    for name in ARGUMENTS:
        ours, theirs = (inspect.signature(getattr(one, name)).parameters for one in (kernels, twins))
        assert [(one.name, one.kind, one.default) for one in ours.values()] == [
            (one.name, one.kind, one.default) for one in theirs.values()
        ]


def test_twins_run_without_triton() -> None:
    """Only the kernels import Triton, which some platforms do not have."""
    code = """
import sys
sys.modules["triton"] = None
from metrale_caps.kernels.operations import operations
print(operations("naive").name)
operations("triton")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)  # noqa: S603
    assert done.stdout.split() == ["naive"]
    assert "ModuleNotFoundError: import of triton halted" in done.stderr
