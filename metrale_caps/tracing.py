# SPDX-License-Identifier: MIT OR Apache-2.0
"""Keeps torch's compiler out of questions, without importing torch.

The compiler traces Python code once and keeps the outcome with guards. Its guards do not cover where a layer's method
is found, so that a traced question would give one layer another's answer. A marked function is therefore never traced
into a graph (which breaks there, or is refused where one graph was demanded), and its own frame and all below it are
left to the interpreter.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType, FunctionType

_waiting: list[CodeType] = []


def never_trace(*functions: FunctionType) -> None:
    """Mark functions; they are left as they are but for two attributes."""
    for function in functions:
        function.__dict__["_torchdynamo_disable"] = True  # as `torch.compiler.disable` does
        function.__dict__["_torchdynamo_disable_msg"] = "ask a layer when the model is built, not in compiled code"
        _waiting.append(function.__code__)


def torch_module_was_seen() -> None:
    """Tell torch's interpreter hook about the marked functions; called when torch is surely loaded."""
    if not _waiting:
        return
    # the public decorator would import the whole compiler
    hook: Any = getattr(getattr(sys.modules.get("torch"), "_C", None), "_dynamo", None)
    try:
        interpreter = hook.eval_frame
        strategy = interpreter._FrameExecStrategy  # noqa: SLF001 - the public way is built on it
        action = interpreter._FrameAction  # noqa: SLF001
        leave_alone = strategy(action.SKIP, action.SKIP)
    except AttributeError:  # a torch that calls them otherwise still breaks its graphs at marked functions
        return
    while _waiting:
        code = _waiting.pop()
        interpreter.set_code_exec_strategy(code, leave_alone)
        interpreter.reset_code(code)  # compiled before this, if the very first question was asked in compiled code


never_trace(torch_module_was_seen)
