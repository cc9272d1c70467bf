# SPDX-License-Identifier: MIT OR Apache-2.0
"""An engine is not built over layers that hide or contradict what they declare."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from typing_extensions import override

from metrale_caps import CompositeLayer, LayerContractError
from metrale_caps.audit import FindingKind
from metrale_caps.engine import Engine
from metrale_caps.kernels.operations import operations
from metrale_caps.models.registry import build_decoder


class _Vetoing:
    """A mixer whose decode must not be captured."""

    def decode_graph_unsupported(self) -> bool:
        return True


class _Around:
    """Runs an inner layer beside a mixer, and has nothing to say."""

    def __init__(self, inner: Any, mixer: object) -> None:
        self.inner, self.mixer = inner, mixer

    def kv_cache_spec(self) -> Any:
        return self.inner.kv_cache_spec()

    def decode(self, hidden: Any, context: Any, /) -> Any:
        return self.inner.decode(hidden, context)

    def decode_verify_multi(self, hidden: Any, context: Any, /) -> Any:
        return self.inner.decode_verify_multi(hidden, context)


class _Block(CompositeLayer, _Around):
    """The same, right by construction."""

    @override
    def capability_parts(self) -> tuple[object, ...]:
        return self.inner, self.mixer


def _engine(model: Any, around: type[_Around]) -> Engine:
    decoder = build_decoder(model, operations("naive"), consume=False)
    layers = (decoder.layers[0], around(decoder.layers[1], _Vetoing()))
    return Engine(dataclasses.replace(decoder, layers=layers))


def test_wrapper_that_hides_a_veto_is_refused_with_what_it_hides(tiny_llama: Any) -> None:
    """The error names layer, part and query, and no engine comes of it."""
    with pytest.raises(LayerContractError, match=r"layer 1 .*hides that self\.mixer") as caught:
        _engine(tiny_llama, _Around)
    (finding,) = caught.value.findings
    assert (finding.kind, finding.name) == (FindingKind.HIDDEN, "decode_graph_unsupported")


def test_composite_runs_and_its_part_s_veto_counts(tiny_llama: Any) -> None:
    """The engine takes the route that the part asks for, and generates."""
    engine = _engine(tiny_llama, _Block)
    assert engine.plan.decode_graph_veto is True
    (output,) = engine.generate([[5, 17, 99]], max_new_tokens=3, ignore_eos=True)
    (plain,) = Engine(build_decoder(tiny_llama, operations("naive"), consume=False)).generate(
        [[5, 17, 99]], max_new_tokens=3, ignore_eos=True
    )
    assert output.token_ids == plain.token_ids
