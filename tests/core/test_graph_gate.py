# SPDX-License-Identifier: MIT OR Apache-2.0
"""Whether a step may have a graph is one decision with all its reasons, and each reason belongs to who gave it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrale_caps import RoutePlan
from metrale_caps.errors import ConfigurationError
from metrale_caps.routing.decision import LayerReason
from metrale_caps.routing.graph_gate import GraphGate, GraphSuppressions


class Plain:
    """A layer that can all."""

    def decode(self, hidden: object, _context: object) -> object:
        return hidden

    def decode_verify_multi_unsupported(self) -> bool:
        return True


class Vetoes(Plain):
    """A layer that cannot be captured."""

    def decode_graph_unsupported(self) -> bool:
        return True


class Calibrates(Plain):
    """A layer inside its calibration window."""

    frozen = False

    def fp8_calibration_frozen(self) -> bool:
        return self.frozen


_NAMES = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.tuples(st.booleans(), _NAMES), max_size=20))
def test_lifting_one_suppression_never_lifts_another(actions: list[tuple[bool, str]]) -> None:
    """Through any order of adding and lifting, those that hold are those that were added and not lifted."""
    suppressions, held = GraphSuppressions(), dict[str, str]()
    for number, (adds, name) in enumerate(actions):
        if adds == (name in held):
            with pytest.raises(ConfigurationError, match=repr(name)):
                suppressions.add(name, "again") if adds else suppressions.lift(name)
        elif adds:
            held[name] = f"reason {number}"
            suppressions.add(name, held[name])
        else:
            del held[name]
            suppressions.lift(name)
        assert suppressions.names == tuple(held)
        assert [str(reason) for reason in suppressions.reasons] == list(held.values())


@pytest.mark.parametrize("position", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("kind", [Vetoes, Calibrates])
def test_one_layer_stands_in_the_way_of_every_graph(kind: type[Plain], position: int) -> None:
    """And is the reason."""
    layers: list[Plain] = [Plain(), Plain(), Plain()]
    layers[position] = kind()
    gate = GraphGate(RoutePlan(layers), most_rows=8)
    for rows in (1, 8):
        (reason,) = gate.objections(rows)
        assert isinstance(reason, LayerReason)
        assert reason.layer_index == position


def test_all_reasons_are_given_at_once_and_go_one_by_one() -> None:
    """A suppression, a veto, a calibration and a width, each independent of the others."""
    calibrates = Calibrates()
    gate = GraphGate(RoutePlan([Vetoes(), calibrates]), most_rows=4)
    gate.suppressions.add("mine", "I am looking at something")
    assert len(gate.objections(5)) == 4
    gate.suppressions.lift("mine")
    assert len(gate.objections(5)) == 3
    calibrates.frozen = True
    assert len(gate.objections(5)) == 2
    (veto,) = gate.objections(4)
    assert "decode_graph_unsupported = True" in str(veto)


def test_frozen_calibration_lifts_no_suppression_of_someone_else() -> None:
    """What a failed capture or a person said holds on."""
    calibrates = Calibrates()
    gate = GraphGate(RoutePlan([calibrates]), most_rows=4)
    gate.suppressions.add("capture", "the driver cannot")
    calibrates.frozen = True
    assert [str(reason) for reason in gate.objections(1)] == ["the driver cannot"]
    gate.suppressions.lift("capture")
    assert gate.objections(1) == ()
