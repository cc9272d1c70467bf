# SPDX-License-Identifier: MIT OR Apache-2.0
"""The table, the protocols, the static names and the public names agree."""

from __future__ import annotations

import inspect
from typing import Any, cast, get_type_hints

import pytest

import metrale_caps
from metrale_caps import QUERIES, Fold, protocols
from metrale_caps.queries import literal_query_names

EVERY_ROW = pytest.mark.parametrize("row", QUERIES.values(), ids=list(QUERIES))


@EVERY_ROW
def test_each_protocol_has_the_query_as_its_only_member(row: Any) -> None:
    """One protocol for each query, with one method of the query's name and nothing else."""
    members = [name for name in cast("dict[str, object]", vars(row.protocol)) if not name.startswith("_")]
    assert members == [row.name]
    assert row.protocol.__name__ == "".join(part.capitalize() for part in row.name.split("_"))


@EVERY_ROW
def test_annotation_says_what_the_table_says(row: Any) -> None:
    """The protocol's return annotation is the table's answer type, and the method takes no argument."""
    method = getattr(row.protocol, row.name)
    assert get_type_hints(method)["return"] == (bool | None if row.optional else bool)
    assert list(inspect.signature(method).parameters) == ["self"]


@EVERY_ROW
def test_default_is_an_answer_the_table_allows(row: Any) -> None:
    """A default is a bool, or None where None is an answer."""
    assert isinstance(row.default, bool) or (row.default is None and row.optional)


@EVERY_ROW
def test_docstring_says_all_that_an_author_needs(row: Any) -> None:
    """Each protocol says what is asked, the default, who asks, and what a wrong answer costs."""
    text = inspect.getdoc(row.protocol) or ""
    for part in ("Asks:", "Default:", "Asked by:", "If the answer is wrong:"):
        assert part in text, f"{row.protocol.__name__} lacks {part!r}"
    assert str(row.default) in text.partition("Default:")[2].partition("Asked by:")[0]


def test_protocol_module_has_no_protocol_without_a_row() -> None:
    """Every protocol of the module stands in the table, and is exported."""
    assert sorted(protocols.__all__) == sorted(row.protocol.__name__ for row in QUERIES.values())


def test_static_names_are_the_table_s_names() -> None:
    """The names that pyright accepts are those the table has."""
    assert sorted(literal_query_names()) == sorted(QUERIES)


def test_only_the_calibration_may_change_while_the_model_runs() -> None:
    """Nine answers are asked once; `fp8_calibration_frozen` again and again."""
    assert [name for name, row in QUERIES.items() if row.changes] == ["fp8_calibration_frozen"]


def test_public_names_are_those_that_exist() -> None:
    """`__all__` names what the package exports, each once, and nothing else."""
    assert "RoutePlan" in dir(metrale_caps)  # though it is loaded when it is first used
    values = {name: getattr(metrale_caps, name) for name in dir(metrale_caps) if not name.startswith("_")}
    exported = [name for name, value in values.items() if not inspect.ismodule(value) and name != "TYPE_CHECKING"]
    assert sorted(metrale_caps.__all__) == sorted(exported)


def test_misspelt_public_name_is_missing_as_in_any_module() -> None:
    """The error carries the name, from which Python makes its suggestion."""
    with pytest.raises(AttributeError, match="has no attribute 'RoutPlan'") as caught:
        metrale_caps.RoutPlan  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # noqa: B018
    assert caught.value.name == "RoutPlan"


def test_folds_of_an_empty_stack() -> None:
    """An empty stack vetoes nothing and grants nothing."""
    assert Fold.ANY.apply([]) is False
    assert Fold.ALL_NON_EMPTY.apply([]) is False
    assert Fold.NO_FALSE.apply([]) is True
    assert Fold.PER_LAYER.apply([]) is None


@pytest.mark.parametrize(
    ("answers", "ready"),
    [([None, None], True), ([None, False, True], False), ([None, True], True), ([True, True], True), ([False], False)],
)
def test_no_answer_is_not_a_false_answer(answers: list[bool | None], ready: bool) -> None:
    """Layers that do not calibrate hold nothing up; one open window does."""
    assert Fold.NO_FALSE.apply(answers) is ready
