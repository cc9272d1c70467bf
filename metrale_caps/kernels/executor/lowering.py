# SPDX-License-Identifier: MIT OR Apache-2.0
"""From a `@triton.jit` function to the text of its intermediate representation, by Triton's own front end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from triton._C.libtriton import ir, passes
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from triton import JITFunction

_TARGET: Final = GPUTarget("cuda", 90, 32)
"""Nothing is compiled for it; the front end asks it which types and dot precisions there are."""


def lower(kernel: JITFunction[..., Any], signature: Mapping[str, str], constants: Mapping[str, object]) -> str:
    """The text of the kernel's intermediate representation before anything specific to a GPU is done to it.

    Args:
        kernel: the kernel.
        signature: Triton's name of each parameter's type, `constexpr` for constants.
        constants: the constants' values.
    """
    source = ASTSource(fn=kernel, signature=dict(signature), constexprs=dict(constants), attrs={})
    backend = make_backend(_TARGET)
    # Assertions are only kept in debug mode, which would also add checks for overflow. Fusion is named, though it
    # happens in later stages, because Triton warns where it is left to a default.
    options = backend.parse_options({"debug": True, "sanitize_overflow": False, "enable_fp_fusion": True})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(
        _TARGET, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    module = stages["ttir"](module, dict(options.__dict__))
    if "tensordesc" in module.str_nodebug():
        _rewrite_descriptors(module)
    return str(module.str_nodebug())


def _rewrite_descriptors(module: Any) -> None:
    """Turn accesses through tensor descriptors into masked loads and stores."""
    manager = ir.pass_manager(module.context)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
    passes.common.add_canonicalizer(manager)
    passes.common.add_cse(manager)
    manager.run(module, "rewrite_tensor_descriptors")
