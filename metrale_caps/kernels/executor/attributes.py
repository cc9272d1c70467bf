# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reading types and constants from their spelling in the intermediate representation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from metrale_caps.kernels.executor.ir import Type

if TYPE_CHECKING:
    from metrale_caps.kernels.executor.ir import Attribute

_FLOATS_BY_WIDTH = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
_FLOAT_BITS = {"f16": np.uint16, "f32": np.uint32, "f64": np.uint64, "bf16": np.uint16}


def type_of(text: str) -> Type:
    """The type that `text` spells, as `tensor<16x64x!tt.ptr<bf16>>` or `i32`."""
    shape: tuple[int, ...] = ()
    element = text
    tensor = re.fullmatch(r"tensor<((?:\d+x)*)(.+)>", text)
    if tensor is not None:
        shape = tuple(int(extent) for extent in tensor.group(1).split("x") if extent)
        element = tensor.group(2)
    pointer = re.fullmatch(r"!tt\.ptr<([^,]+)(?:, *\d+)?>", element)
    if pointer is not None:
        return Type(pointer.group(1), shape, pointer=True)
    return Type(element, shape)


def number_of(text: str, element: str) -> int | float | bool:
    """The number that `text` spells; floats may be spelt as the hexadecimal digits of their bits."""
    if text in {"true", "false"}:
        return text == "true"
    is_float = element.startswith(("f", "bf"))
    if not text.startswith(("0x", "-0x")):
        return float(text) if is_float else int(text)
    bits = int(text, 16)
    if element == "bf16":
        return float(np.uint32(bits << 16).view(np.float32))
    if element in _FLOATS_BY_WIDTH:
        return float(_FLOAT_BITS[element](bits).view(_FLOATS_BY_WIDTH[element]))
    return bits


def dense_of(text: str, element: str) -> Attribute:
    """The number, or the numbers in memory order, of `dense<...>`."""
    inner = text[len("dense<") : -1].strip()
    if inner.startswith('"0x'):
        return _from_bytes(bytes.fromhex(inner[3:-1]), element)
    if inner.startswith("["):
        words = re.split(r"[\s,\[\]]+", inner)
        return tuple(number_of(word, element) for word in words if word)
    return number_of(inner, element)


def _from_bytes(raw: bytes, element: str) -> tuple[int | float | bool, ...]:
    if element == "i1":
        return tuple(bool(byte & (1 << bit)) for byte in raw for bit in range(8))
    if element == "bf16":
        wide = np.frombuffer(raw, np.uint16).astype(np.uint32) << np.uint32(16)
        return tuple(wide.view(np.float32).tolist())
    names = {"f16": "float16", "f32": "float32", "f64": "float64"}
    dtype = np.dtype(names.get(element, f"int{element[1:]}"))
    return tuple(np.frombuffer(raw, dtype).tolist())


def array_of(text: str) -> tuple[int, ...]:
    """The integers of `array<i32: 1, 0>`."""
    _, _, inner = text[len("array<") : -1].partition(":")
    words = [word.strip() for word in inner.split(",")]
    return tuple(int(word == "true") if word in {"true", "false"} else int(word) for word in words if word)
