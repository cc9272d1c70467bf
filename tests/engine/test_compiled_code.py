# SPDX-License-Identifier: MIT OR Apache-2.0
"""Questions inside code that `torch.compile` compiles."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from metrale_caps import QUERIES, LayerCapabilities, capability_of

compile_function: Any = torch.compile  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


class Layer(nn.Module):
    """Answers only where an instance has been given an answer."""


def _pair(query: str) -> tuple[nn.Module, nn.Module]:
    """Two layers of one class that answer differently."""
    first, second = Layer(), Layer()
    answer = QUERIES[query].default is not True  # pyright: ignore[reportArgumentType]
    second.__dict__[query] = lambda: answer
    return first, second


@pytest.mark.parametrize("query", list(QUERIES))
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["default first", "declared first"])
def test_layer_is_not_given_another_layer_s_answer(query: Any, order: tuple[int, int]) -> None:
    """Code compiled around a question asks each layer anew."""

    def routed(layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + 1 if capability_of(layer, query) is QUERIES[query].default else hidden - 1

    compiled = compile_function(routed, backend="eager")
    layers, zero = _pair(query), torch.zeros(1)
    for _ in range(2):
        for index in order:
            assert compiled(layers[index], zero).item() == (1, -1)[index]


def test_snapshot_in_compiled_code_is_the_layer_s_own() -> None:
    """The same for all ten answers at once."""

    def routed(layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        return hidden - 1 if LayerCapabilities.of(layer).decode_graph_unsupported else hidden + 1

    compiled = compile_function(routed, backend="eager")
    first, second = _pair("decode_graph_unsupported")
    zero = torch.zeros(1)
    assert [compiled(layer, zero).item() for layer in (first, second, first)] == [1, -1, 1]


def test_question_in_code_compiled_as_one_graph_is_refused() -> None:
    """Where no break of the graph is allowed, the compiler refuses and says when to ask."""

    def routed(layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + 1 if capability_of(layer, "is_ssm_layer") else hidden - 1

    compiled = compile_function(routed, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="when the model is built"):
        compiled(nn.Linear(1, 1), torch.zeros(1))


_FIRST_QUESTION = """
import metrale_caps, torch

class Layer(torch.nn.Module): ...

def routed(layer, hidden):
    return hidden - 1 if metrale_caps.capability_of(layer, "is_ssm_layer") else hidden + 1

first, second = Layer(), Layer()
second.__dict__["is_ssm_layer"] = lambda: True
compiled = torch.compile(routed, backend="eager")
print([compiled(layer, torch.zeros(1)).item() for layer in (first, second, first, second)])
"""


def test_very_first_question_may_be_asked_in_compiled_code() -> None:
    """Nothing of the package has seen a torch module before; the answers are right from the first on."""
    done = subprocess.run([sys.executable, "-c", _FIRST_QUESTION], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.strip() == "[1.0, -1.0, 1.0, -1.0]"
