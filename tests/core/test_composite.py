# SPDX-License-Identifier: MIT OR Apache-2.0
"""A layer made of parts answers as the table says."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from metrale_caps import (
    QUERIES,
    CapabilityAnswerError,
    CompositeLayer,
    Fold,
    LayerCapabilities,
    Source,
    capability_of,
)

EVERY_QUERY = pytest.mark.parametrize("query", list(QUERIES))
_ANY_QUERY: Any = st.sampled_from(sorted(QUERIES))


class Block(CompositeLayer):
    """Made of whatever it is given."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts

    @override
    def capability_parts(self) -> tuple[object, ...]:
        return self.parts


def _part(query: str, answer: object) -> object:
    return type("Part", (), {query: lambda _self: answer})()  # pyright: ignore[reportUnknownLambdaType]


@given(query=_ANY_QUERY, answers=st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=5))
def test_answer_is_the_table_s_fold_over_the_parts(query: Any, answers: list[bool | None]) -> None:
    """One objecting part is enough; a part that says nothing counts with the default."""
    row = QUERIES[query]
    parts = [object() if answer is None and not row.optional else _part(query, answer) for answer in answers]
    said = [row.default if answer is None and not row.optional else answer for answer in answers]
    answer = capability_of(Block(*parts), query)
    if row.objection in said:
        assert answer is row.objection
    elif row.fold is Fold.PER_LAYER:
        assert answer is row.default
    else:
        assert answer is ((not row.objection) if (not row.objection) in said else row.default)


@given(query=_ANY_QUERY, answers=st.lists(st.booleans(), min_size=1, max_size=4), cut=st.integers(1, 3))
def test_composite_of_composites_is_the_composite_of_all(query: Any, answers: list[bool], cut: int) -> None:
    """How parts are grouped makes no difference."""
    parts = [_part(query, answer) for answer in answers]
    groups = [Block(*group) for group in (parts[:cut], parts[cut:]) if group]
    assert capability_of(Block(*groups), query) is capability_of(Block(*parts), query)


@EVERY_QUERY
def test_stack_of_the_parts_and_the_composite_object_alike(query: Any) -> None:
    """A composite stands in the way of a route exactly if its parts would, one by one."""
    row = QUERIES[query]
    for answers in ([True, False], [False, False], [True, True]):
        composite = capability_of(Block(*(_part(query, answer) for answer in answers)), query)
        assert row.objects([composite]) is row.objects(answers)


@EVERY_QUERY
def test_every_query_has_its_method(query: Any) -> None:
    """The composite's own methods, their docstrings and the table agree."""
    method = cast("dict[str, Any]", vars(CompositeLayer))[query]
    assert QUERIES[query].protocol.__name__ in method.__doc__


def test_sources_say_that_the_parts_answered() -> None:
    """A fold is delegated; a method of the class's own is declared and replaces the fold."""

    class Own(Block):
        @override
        def decode_graph_unsupported(self) -> bool:
            return False

    answers = LayerCapabilities.of(Own(_part("decode_graph_unsupported", answer=True)))
    assert answers.decode_graph_unsupported is False
    assert answers.sources["decode_graph_unsupported"] is Source.DECLARED
    assert answers.sources["decode_rollback_unsupported"] is Source.DELEGATED


def test_calibration_follows_the_parts() -> None:
    """The parts are asked anew each time."""

    class Calibrating:
        frozen = False

        def fp8_calibration_frozen(self) -> bool:
            return self.frozen

    part = Calibrating()
    block = Block(part, object())
    assert capability_of(block, "fp8_calibration_frozen") is False
    part.frozen = True
    assert capability_of(block, "fp8_calibration_frozen") is True
    assert capability_of(Block(object()), "fp8_calibration_frozen") is None


def test_composite_without_parts_is_refused() -> None:
    """A composite must say what it is made of, and a part that is not there is left out."""

    class Unwritten(CompositeLayer):
        pass

    for block, said in ((Unwritten(), "not written"), (Block(), "no parts"), (Block(None), "None among the parts")):
        with pytest.raises(CapabilityAnswerError, match=said) as caught:
            capability_of(block, "is_ssm_layer")
        assert "capability_parts" in str(caught.value)


def test_error_of_a_part_names_the_part_and_the_composite() -> None:
    """The part's own error comes out, with the way it took."""

    class Broken:
        def is_ssm_layer(self) -> bool:
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside") as caught:
        capability_of(Block(Broken()), "is_ssm_layer")
    assert ["Broken" in note or "Block" in note for note in caught.value.__notes__] == [True, True]
