# SPDX-License-Identifier: MIT OR Apache-2.0
"""Entries of the `math` dialect, and functions of the device's mathematics library by their symbols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from metrale_caps.kernels.executor.operations.arithmetic import rounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrale_caps.kernels.executor.ir import Operation
    from metrale_caps.kernels.executor.writer import Writer

    Emitter = Callable[[Writer, Operation], None]

FUNCTIONS: Final = {
    "math.exp": "np.exp({0})",
    "math.exp2": "np.exp2({0})",
    "math.log": "np.log({0})",
    "math.log2": "np.log2({0})",
    "math.sqrt": "np.sqrt({0})",
    "math.rsqrt": "reciprocal_sqrt({0})",
    "math.sin": "np.sin({0})",
    "math.cos": "np.cos({0})",
    "math.erf": "error_function({0})",
    "math.tanh": "np.tanh({0})",
    "math.absf": "np.abs({0})",
    "math.floor": "np.floor({0})",
    "math.ceil": "np.ceil({0})",
    "math.fma": "multiply_add({0}, {1}, {2})",
    "tt.precise_sqrt": "np.sqrt({0})",
}

LIBRARY: Final = {
    "exp": "np.exp({0})",
    "exp2": "np.exp2({0})",
    "exp10": "np.power(np.float32(10), {0})",
    "expm1": "np.expm1({0})",
    "log": "np.log({0})",
    "log2": "np.log2({0})",
    "log10": "np.log10({0})",
    "log1p": "np.log1p({0})",
    "sqrt": "np.sqrt({0})",
    "rsqrt": "reciprocal_sqrt({0})",
    "cbrt": "np.cbrt({0})",
    "sin": "np.sin({0})",
    "cos": "np.cos({0})",
    "tan": "np.tan({0})",
    "asin": "np.arcsin({0})",
    "acos": "np.arccos({0})",
    "atan": "np.arctan({0})",
    "atan2": "np.arctan2({0}, {1})",
    "sinh": "np.sinh({0})",
    "cosh": "np.cosh({0})",
    "tanh": "np.tanh({0})",
    "asinh": "np.arcsinh({0})",
    "acosh": "np.arccosh({0})",
    "atanh": "np.arctanh({0})",
    "erf": "error_function({0})",
    "pow": "np.power({0}, {1})",
    "fmod": "np.fmod({0}, {1})",
    "hypot": "np.hypot({0}, {1})",
    "copysign": "np.copysign({0}, {1})",
    "fabs": "np.abs({0})",
    "floor": "np.floor({0})",
    "ceil": "np.ceil({0})",
    "trunc": "np.trunc({0})",
    "rint": "np.rint({0})",
    "nearbyint": "np.rint({0})",
    "fma": "multiply_add({0}, {1}, {2})",
    "isnan": "np.isnan({0}).astype(np.int32)",
    "isinf": "np.isinf({0}).astype(np.int32)",
}
"""Functions of the device's library, by symbol without its prefix and its suffix for single precision."""


def function_entry(template: str) -> Emitter:
    """An entry that computes in the type itself, or in float32 and rounds."""

    def emit(writer: Writer, operation: Operation) -> None:
        writer.elementwise(operation, rounded(template, operation.result.type.element))

    return emit


def absolute_integer(writer: Writer, operation: Operation) -> None:
    """`math.absi`."""
    writer.elementwise(operation, "np.abs({0})")


def clamp(writer: Writer, operation: Operation) -> None:
    """`tt.clampf`: a NaN becomes the lower bound, unless the operation says that NaN propagates."""
    propagates = operation.attributes.get("propagateNan") == "all"
    higher, lower = ("np.maximum", "np.minimum") if propagates else ("np.fmax", "np.fmin")
    writer.elementwise(operation, f"{lower}({higher}({{0}}, {{1}}), {{2}})")


def multiply_high(writer: Writer, operation: Operation) -> None:
    """`tt.mulhiui`."""
    writer.elementwise(operation, "multiply_high_unsigned({0}, {1})")


def library_function(writer: Writer, operation: Operation) -> None:
    """`tt.extern_elementwise`: a function of the device's library."""
    symbol = str(operation.attributes["symbol"])
    stem = symbol.removeprefix("__nv_").removeprefix("__ocml_").removeprefix("fast_")
    template = LIBRARY.get(stem) or LIBRARY.get(stem.removesuffix("f")) or LIBRARY.get(stem.removesuffix("_f32"))
    if template is None:
        raise writer.unsupported("tt.extern_elementwise", f"library function {symbol}")
    writer.elementwise(operation, rounded(template, operation.result.type.element))


ENTRIES: Final[dict[str, Emitter]] = {
    **{name: function_entry(template) for name, template in FUNCTIONS.items()},
    "math.absi": absolute_integer,
    "tt.clampf": clamp,
    "tt.mulhiui": multiply_high,
    "tt.extern_elementwise": library_function,
}
