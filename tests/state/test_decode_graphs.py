# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which graphs are kept: the ones used last, pinned ones always, never those of a slot that changed hands."""

from __future__ import annotations

from collections import OrderedDict
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrale_caps.state.decode_graphs import DecodeGraphs, GraphKey
from metrale_caps.state.row_ladder import LADDER, padded_rows

_MAX_SLOTS = 4
_KEYS = st.builds(
    GraphKey,
    st.sampled_from(["decode", "verify"]),
    st.lists(st.integers(0, _MAX_SLOTS), min_size=1, max_size=3).map(tuple),
)
_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), _KEYS),
        st.tuples(st.just("put"), _KEYS),
        st.tuples(st.just("drop"), st.integers(-2, _MAX_SLOTS + 3)),
        st.tuples(st.just("move"), st.tuples(st.integers(0, _MAX_SLOTS + 1), st.integers(0, _MAX_SLOTS + 1))),
    ),
    max_size=30,
)


@given(actions=_ACTIONS, capacity=st.integers(1, 4))
def test_graphs_are_those_used_last_without_dropped_slots(actions: list[tuple[str, object]], capacity: int) -> None:
    """Against an ordered dictionary, through any actions; every graph that is gone was evicted or dropped."""
    graphs: DecodeGraphs[int] = DecodeGraphs(capacity, _MAX_SLOTS)
    model: OrderedDict[GraphKey, int] = OrderedDict()
    made = 0
    for number, (action, argument) in enumerate(actions):
        if isinstance(argument, GraphKey):
            if action == "put":
                if argument not in model:
                    made += 1
                model[argument] = number
                graphs.put(argument, number)
            assert graphs.get(argument) == model.get(argument)
            if argument in model:
                model.move_to_end(argument)
            while len(model) > capacity:
                model.popitem(last=False)
        else:
            if isinstance(argument, int):
                graphs.drop_slot(argument)
                gone = {argument}
            else:
                source, target = cast("tuple[int, int]", argument)
                graphs.move_slot(source, target)
                gone = {source, target}
            claimable = gone & set(range(_MAX_SLOTS))
            model = OrderedDict((key, graph) for key, graph in model.items() if not claimable & set(key.slots))
        assert graphs.keys == tuple(model)
    assert graphs.evictions + graphs.dropped == made - len(graphs)


def test_pinned_graph_does_not_give_way() -> None:
    """Nor is it lost when everything else is in use as well; unpinned, it is like any other."""
    graphs: DecodeGraphs[str] = DecodeGraphs(1, _MAX_SLOTS)
    first, second, third = (GraphKey("decode", (slot,)) for slot in range(3))
    graphs.put(first, "first")
    with graphs.pinned(first):
        graphs.put(second, "second")
        assert graphs.keys == (first, second)
    graphs.put(third, "third")
    assert graphs.keys == (third,)
    with pytest.raises(RuntimeError, match="in use"), graphs.pinned(third):
        raise RuntimeError("in use")
    graphs.put(first, "first")
    assert graphs.keys == (first,)


def test_order_and_padding_are_part_of_the_key() -> None:
    """No subset, no other order, no other kind of step finds a graph."""
    graphs: DecodeGraphs[str] = DecodeGraphs(8, _MAX_SLOTS)
    graphs.put(GraphKey("decode", (0, 1, 2, _MAX_SLOTS)), "graph")
    others = [("decode", (0, 1, 2)), ("decode", (1, 0, 2, _MAX_SLOTS)), ("verify", (0, 1, 2, _MAX_SLOTS))]
    assert [graphs.get(GraphKey(kind, slots)) for kind, slots in others] == [None] * 3


def test_refusals_outlive_graphs_and_are_forgotten_when_all_are_dropped() -> None:
    """A key that was refused is not tried again because others were; `clear` lets every key be tried again."""
    graphs: DecodeGraphs[str] = DecodeGraphs(1, _MAX_SLOTS)
    keys = [GraphKey("decode", (slot,)) for slot in range(3)]
    for key in keys:
        graphs.refuse(key, f"refused {key.slots}")
    assert [graphs.refusal(key) for key in keys] == [f"refused {key.slots}" for key in keys]
    graphs.put(keys[0], "graph")
    assert graphs.clear() == 1
    assert [graphs.refusal(key) for key in keys] == [None] * 3


@given(st.integers(1, 400))
def test_batch_is_padded_to_the_next_width(rows: int) -> None:
    """Never to fewer rows than it has; a batch past the ladder keeps its own."""
    width = padded_rows(rows)
    assert width >= rows
    assert width in LADDER or (width == rows > LADDER[-1])
    assert all(not rows <= step < width for step in LADDER)
