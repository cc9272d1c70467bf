# SPDX-License-Identifier: MIT OR Apache-2.0
"""The kernel configurations that are shipped: every kernel at the shapes of common models, as launches to compile."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from metrale_caps.errors import ConfigurationError
from metrale_caps.kernels.activation import silu_mul
from metrale_caps.kernels.architecture import Architecture, assume_architecture
from metrale_caps.kernels.attention import paged_attention
from metrale_caps.kernels.configuration import BF16, FP8, FP32, SEQUENCES, Configuration, empty
from metrale_caps.kernels.latent_attention import latent_attention
from metrale_caps.kernels.latent_store import latent_store
from metrale_caps.kernels.launch import record_launches
from metrale_caps.kernels.recurrent_configurations import RECURRENT
from metrale_caps.kernels.rms_norm import add_rms_norm, rms_norm
from metrale_caps.kernels.rope import rope_write_kv
from metrale_caps.kernels.rotary import RotaryTable
from metrale_caps.kernels.store_kv_fp8 import store_kv_fp8

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from metrale_caps.kernels.launch import Launch

ARCHITECTURES: Mapping[str, Architecture] = {
    "sm_80": Architecture("nvidia", generation=8, multiprocessors=108),
    "sm_90": Architecture("nvidia", generation=9, multiprocessors=132),
    "sm_100": Architecture("nvidia", generation=10, multiprocessors=148),
    "gfx942": Architecture("amd", multiprocessors=304),
}

_BLOCK_SIZE = 16
_POSITIONS = 4096
_POOL_BLOCKS = 2**20


def launch_of(name: str, target: str) -> Launch:
    """Return the launch of a configuration of `CONFIGURATIONS` with the tiles of a target.

    Raises:
        ConfigurationError: the call launches no kernel of the configuration's name, or several.
    """
    configuration = CONFIGURATIONS[name]
    with record_launches() as launches, assume_architecture(ARCHITECTURES[target]):
        configuration.call()
    found = [launch for launch in launches if launch.kernel.fn.__name__ == configuration.kernel]
    if len(found) != 1:
        raise ConfigurationError(f"{name} launches {configuration.kernel} {len(found)} times rather than once")
    return found[0]


def _pages(heads: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    # a pool fills what memory the model leaves: too much for offsets of 32 bits
    return empty(_POOL_BLOCKS, 2, _BLOCK_SIZE, heads, width, dtype=dtype).unbind(1)


def _attention(
    heads: tuple[int, int],
    head_dim: int,
    rows: int,
    *,
    dtype: torch.dtype = BF16,
    pages: torch.dtype | None = None,
    value_dim: int | None = None,
    window: int | None = None,
    splits: int = 1,
) -> None:
    query_heads, kv_heads = heads
    keys, values = _pages(kv_heads, head_dim, pages or dtype)
    scale = empty(1, dtype=FP32) if pages == FP8 else None
    packed = empty(rows * SEQUENCES, query_heads + 2 * kv_heads, head_dim, dtype=dtype)
    paged_attention(
        packed[:, :query_heads],
        keys,
        values[..., :value_dim],
        empty(SEQUENCES, _POSITIONS // _BLOCK_SIZE, dtype=torch.int32),
        empty(SEQUENCES, dtype=torch.int32),
        empty(SEQUENCES + 1, dtype=torch.int32),
        scale=head_dim**-0.5,
        max_rows=rows,
        max_length=_POSITIONS,
        window=window,
        splits=splits,
        key_scale=scale,
        value_scale=scale,
    )


def _store(kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    keys, values = _pages(kv_heads, head_dim, FP8)
    packed = empty(SEQUENCES, 2 * kv_heads, head_dim, dtype=dtype)
    scale = empty(1, dtype=FP32)
    slots = empty(SEQUENCES, dtype=torch.int64)
    store_kv_fp8(packed[:, :kv_heads], packed[:, kv_heads:], slots, keys, values, scale, scale)


def _rope(
    heads: tuple[int, int],
    head_dim: int,
    *,
    dtype: torch.dtype = BF16,
    rotary_dim: int | None = None,
    head_norms: bool = False,
) -> None:
    query_heads, kv_heads = heads
    half = (rotary_dim or head_dim) // 2
    keys, values = _pages(kv_heads, head_dim, dtype)
    norm = empty(head_dim, dtype=dtype) if head_norms else None
    rope_write_kv(
        empty(SEQUENCES, (query_heads + 2 * kv_heads) * head_dim, dtype=dtype),
        RotaryTable(empty(_POSITIONS, half, dtype=FP32), empty(_POSITIONS, half, dtype=FP32)),
        empty(SEQUENCES, dtype=torch.int64),
        empty(SEQUENCES, dtype=torch.int64),
        keys,
        values,
        query_heads=query_heads,
        key_value_heads=kv_heads,
        query_norm=norm,
        key_norm=norm,
    )


def _norm(width: int, dtype: torch.dtype, *, residual: bool = False) -> None:
    x, weight = empty(SEQUENCES, width, dtype=dtype), empty(width, dtype=dtype)
    if residual:
        add_rms_norm(x, torch.empty_like(x), weight, 1e-5)
    else:
        rms_norm(x, weight, 1e-5)


def _gate(width: int, dtype: torch.dtype) -> None:
    silu_mul(empty(SEQUENCES, 2 * width, dtype=dtype))


_decode = functools.partial(_attention, rows=1)
_prefill = functools.partial(_attention, rows=512)


def _latents(
    heads: int, *, rank: int = 512, shared: int = 64, rows: int = 1, splits: int = 1, dtype: torch.dtype = BF16
) -> None:
    latent_attention(
        empty(rows * SEQUENCES, heads, rank + shared, dtype=dtype),
        empty(_POOL_BLOCKS, _BLOCK_SIZE, rank + shared, dtype=dtype),
        empty(SEQUENCES, _POSITIONS // _BLOCK_SIZE, dtype=torch.int32),
        empty(SEQUENCES, dtype=torch.int32),
        empty(SEQUENCES + 1, dtype=torch.int32),
        rank=rank,
        scale=0.1,
        max_rows=rows,
        max_length=_POSITIONS,
        splits=splits,
    )


def _store_latents(rank: int, shared: int, dtype: torch.dtype) -> None:
    packed = empty(SEQUENCES, 1536 + rank + shared, dtype=dtype)
    pages = empty(_POOL_BLOCKS, _BLOCK_SIZE, rank + shared, dtype=dtype)
    slots = empty(SEQUENCES, dtype=torch.int64)
    latent_store(packed[:, 1536:], empty(rank, dtype=dtype), 1e-6, slots, pages, rank=rank)


def _latent_configurations() -> dict[str, Configuration]:
    attends = functools.partial(Configuration, "latent_attention_kernel", multiplies=True)
    small = functools.partial(_latents, 4, rank=32, shared=8, rows=512, dtype=FP32)
    sixteen = functools.partial(_latents, 16, rows=512, dtype=torch.float16)
    return {
        "latent attention decode bf16 r512+64 128": attends(lambda: _latents(128)),
        "latent attention decode bf16 r512+64 16": attends(lambda: _latents(16)),
        "latent attention split bf16 r512+64 128": attends(lambda: _latents(128, splits=8)),
        "latent attention prefill bf16 r512+64 128": attends(lambda: _latents(128, rows=512), many_rows=True),
        "latent attention prefill fp16 r512+64 16": attends(sixteen, many_rows=True),
        "latent attention decode fp32 r512+64 16": attends(lambda: _latents(16, dtype=FP32)),
        "latent attention prefill fp32 r32+8 4": attends(small),
        "latent_store bf16 r512+64": Configuration("latent_store_kernel", lambda: _store_latents(512, 64, BF16)),
        "latent_store fp32 r32+8": Configuration("latent_store_kernel", lambda: _store_latents(32, 8, FP32)),
    }


def _attends(call: Callable[[], object], *, many_rows: bool = False) -> Configuration:
    return Configuration("paged_attention_kernel", call, multiplies=True, many_rows=many_rows)


def _attention_configurations() -> dict[str, Configuration]:
    found: dict[str, Configuration] = {}
    shapes = [((32, 8), head_dim) for head_dim in (64, 80, 96, 128, 192, 256)]
    for heads, head_dim in [*shapes, ((9, 3), 64), ((9, 3), 128), ((28, 4), 128), ((8, 8), 128)]:
        kind = f"bf16 d{head_dim} {heads[0]}/{heads[1]}"
        found[f"attention decode {kind}"] = _attends(functools.partial(_decode, heads, head_dim))
        found[f"attention prefill {kind}"] = _attends(functools.partial(_prefill, heads, head_dim), many_rows=True)
    wide_keys = {"heads": (16, 16), "head_dim": 192, "value_dim": 128}
    sixteen = {"heads": (32, 8), "head_dim": 64, "dtype": torch.float16}
    exact = {"heads": (9, 3), "head_dim": 64, "dtype": FP32}
    for kind, shape in (("bf16 d192/128 16/16", wide_keys), ("fp16 d64 32/8", sixteen), ("fp32 d64 9/3", exact)):
        found[f"attention decode {kind}"] = _attends(functools.partial(_decode, **shape))
        found[f"attention prefill {kind}"] = _attends(functools.partial(_prefill, **shape), many_rows=True)
    split = functools.partial(_decode, (32, 8), 128, splits=8)
    found["attention decode split bf16 d128 32/8"] = _attends(split)
    found["attention decode window bf16 d128 32/8"] = _attends(functools.partial(_decode, (32, 8), 128, window=1024))
    found["combine bf16 d128 8 splits"] = Configuration("combine_kernel", split)
    return found


def _fp8_attention_configurations() -> dict[str, Configuration]:
    found: dict[str, Configuration] = {}
    for name, dtype, heads, head_dim in (
        ("bf16", BF16, (32, 8), 64),
        ("bf16", BF16, (32, 8), 128),
        ("bf16", BF16, (28, 4), 128),
        ("bf16", BF16, (32, 8), 256),
        ("fp16", torch.float16, (32, 8), 128),
        ("fp32", FP32, (9, 3), 64),
    ):
        kind = f"{name} on fp8 d{head_dim} {heads[0]}/{heads[1]}"
        call = functools.partial(_attention, heads, head_dim, dtype=dtype, pages=FP8)
        found[f"attention decode {kind}"] = _attends(functools.partial(call, rows=1))
        found[f"attention prefill {kind}"] = _attends(functools.partial(call, rows=512), many_rows=True)
    split = functools.partial(_decode, (32, 8), 128, pages=FP8, splits=8)
    found["attention decode split bf16 on fp8 d128 32/8"] = _attends(split)
    return found


CONFIGURATIONS: Mapping[str, Configuration] = {
    **_attention_configurations(),
    **_fp8_attention_configurations(),
    **_latent_configurations(),
    "rope bf16 d128 32/8": Configuration("rope_write_kv_kernel", lambda: _rope((32, 8), 128)),
    "rope with head norms bf16 d128 32/8": Configuration(
        "rope_write_kv_kernel", lambda: _rope((32, 8), 128, head_norms=True)
    ),
    "rope of 32 channels bf16 d80 32/32": Configuration(
        "rope_write_kv_kernel", lambda: _rope((32, 32), 80, rotary_dim=32)
    ),
    "rope fp32 d64 9/3": Configuration("rope_write_kv_kernel", lambda: _rope((9, 3), 64, dtype=FP32)),
    "store_kv_fp8 bf16 d128 8": Configuration("store_kv_fp8_kernel", lambda: _store(8, 128, BF16)),
    "store_kv_fp8 fp32 d64 3": Configuration("store_kv_fp8_kernel", lambda: _store(3, 64, FP32)),
    "rms_norm bf16 4096": Configuration("rms_norm_kernel", lambda: _norm(4096, BF16)),
    "add_rms_norm bf16 4096": Configuration("rms_norm_kernel", lambda: _norm(4096, BF16, residual=True)),
    "add_rms_norm bf16 576": Configuration("rms_norm_kernel", lambda: _norm(576, BF16, residual=True)),
    "add_rms_norm fp32 576": Configuration("rms_norm_kernel", lambda: _norm(576, FP32, residual=True)),
    "silu_mul bf16 14336": Configuration("silu_mul_kernel", lambda: _gate(14336, BF16)),
    "silu_mul fp32 1536": Configuration("silu_mul_kernel", lambda: _gate(1536, FP32)),
    **RECURRENT,
}
