# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a walk over an object meets, and what counts as a change of it."""

from __future__ import annotations

import functools
import weakref
from typing import Any, cast

import pytest
from typing_extensions import override

from metrale_caps.audit import object_graph
from metrale_caps.audit.object_graph import attributes_of, changed_paths, fingerprint, walk


def _two(first: int, *, key: int) -> int:
    return first + key


class Holder:
    """Holds what it is given."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)

    def method(self) -> None: ...


def _paths(root: object, *closed: object) -> list[str]:
    return [path for path, _ in walk(root, {id(value) for value in closed})]


def _foreign(module: str, **members: object) -> Any:
    """An object of a class that says it comes from another library."""
    return type("Foreign", (), {"__module__": module, **members})()


def _changed(holder: Holder, **attributes: object) -> list[str]:
    before = fingerprint(holder)
    holder.__dict__.update(attributes)
    return changed_paths(before, fingerprint(holder))


def test_every_kind_of_holder_is_entered_level_by_level() -> None:
    """Attributes, keys, elements, the object of a bound method and what a partial holds; the nearest come first."""
    inner = Holder(deep=1)
    holder = Holder(
        number=2,
        items=[inner],
        table={"key": 3, (1, 2): 4},
        bound=Holder(far=5).method,
        later=functools.partial(_two, 6, key=7),
    )
    assert _paths(holder) == [
        "self.number",
        "self.items",
        "self.table",
        "self.bound",
        "self.later",
        "self.items[0]",
        "self.table['key']",
        "self.table[...]",
        "self.table.keys()",
        "self.bound.__self__",
        "self.later.func",
        "self.later.args",
        "self.later.keywords",
        "self.items[0].deep",
        "self.table.keys()[0]",
        "self.table.keys()[1]",
        "self.bound.__self__.far",
        "self.later.args[0]",
        "self.later.keywords['key']",
    ]


def test_object_that_is_met_again_is_named_but_not_entered_again() -> None:
    """Neither a cycle nor a shared object is walked twice."""
    shared = Holder(inside=1)
    holder = Holder(first=shared, second=shared)
    holder.__dict__["myself"] = holder
    assert _paths(holder) == ["self.first", "self.second", "self.myself", "self.first.inside"]


def test_closed_object_is_neither_named_nor_entered() -> None:
    """What stands after a closed object is still met, and a closed root is walked all the same."""
    shut = Holder(hidden=1)
    holder = Holder(before=0, shut=shut, after=2)
    assert _paths(holder, shut, holder) == ["self.before", "self.after"]


def test_object_that_is_closed_on_the_way_is_not_entered() -> None:
    """Closing what was just met keeps the walk out of it, and lets it go on."""
    shut, other = Holder(hidden=1), Holder(seen=2)
    closed: set[int] = set()
    paths: list[str] = []
    for path, value in walk(Holder(shut=shut, other=other), closed):
        paths.append(path)
        if value is shut:
            closed.add(id(value))
    assert paths == ["self.shut", "self.other", "self.other.seen"]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_walk_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """However much there is, so many values that hold others are met and no more."""
    monkeypatch.setattr(object_graph, "LIMIT", limit)
    assert _paths(Holder(many=[Holder() for _ in range(100)])) == [
        "self.many",
        *(f"self.many[{index}]" for index in range(limit - 1)),
    ]


def test_numbers_do_not_hide_what_stands_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of a tokenizer has more of them than are named, and a layer may stand behind it."""
    monkeypatch.setattr(object_graph, "LIMIT", 3)
    assert _paths(Holder(many=[*range(100), "text", Holder(more=1)])) == [
        "self.many",
        *(f"self.many[{index}]" for index in range(3)),
        "self.many[101]",
    ]
    monkeypatch.setattr(object_graph, "_LOOKED_AT", 20)
    assert len(_paths(Holder(many=[*range(100), Holder()]))) == 4


def test_slots_count_as_attributes_where_they_are_filled() -> None:
    """An empty slot hides no later one, in the class or in its bases."""

    class Base:
        __slots__ = ("late",)

    class Slotted(Base):
        __slots__ = ("__weakref__", "empty", "full")

    slotted: Any = Slotted()
    slotted.full, slotted.late = 1, 2
    assert list(attributes_of(slotted)) == [("full", 1), ("late", 2)]


def test_slots_of_a_base_count_where_the_class_itself_has_none() -> None:
    """A class with a dictionary keeps the slots that it inherits."""

    class Base:
        __slots__ = ("full",)

    class Derived(Base):
        pass

    derived: Any = Derived()
    derived.full, derived.own = 1, 2
    assert list(attributes_of(derived)) == [("own", 2), ("full", 1)]


def test_bookkeeping_of_a_torch_module_is_passed_over() -> None:
    """What torch gives to every module tells nothing of this one; on anything else such a name is an attribute."""
    own: dict[str, object] = {"hooks": 1, "_hook": 2, "my_hooks": 3}
    torch_s: dict[str, object] = {"training": True, "_forward_hooks": {}, "_state_dict_pre_hooks": {}}
    assert dict(attributes_of(Holder(**own, **torch_s, _modules={"inner": 4}))) == {**own, "inner": 4}
    assert dict(attributes_of(Holder(**own, **torch_s))) == {**own, **torch_s}


@pytest.mark.parametrize("registry", ["_modules", "_parameters", "_buffers"])
def test_registries_of_a_torch_module_are_its_attributes(registry: str) -> None:
    """A sub-module is named as its user names it; a registry of another kind is a value like any other."""
    assert list(attributes_of(Holder(**{registry: {"inner": 1}}))) == [("inner", 1)]
    assert list(attributes_of(Holder(**{registry: 2}))) == [(registry, 2)]


class SpecialInt(int):
    """Prints as the number it is."""


@pytest.mark.parametrize(
    ("was", "becomes"), [(1, 2), (1, True), (1, SpecialInt(1)), ("a", b"a"), (None, 0), (Holder(), Holder())]
)
def test_other_value_is_a_change(was: object, becomes: object) -> None:
    """A value of another type is another value, and an object another object."""
    assert _changed(Holder(value=was, kept=[1]), value=becomes) == ["self.value"]


def test_attribute_that_comes_or_goes_is_a_change() -> None:
    """All changed paths are told, in order."""
    holder = Holder(gone=1, kept=2)
    before = fingerprint(holder)
    del holder.__dict__["gone"]
    holder.__dict__["came"] = None
    assert changed_paths(before, fingerprint(holder)) == ["self.came", "self.gone"]
    assert changed_paths({"path": None}, {}) == changed_paths({}, {"path": None}) == ["path"]


def test_fingerprint_keeps_what_it_names_alive() -> None:
    """An object that was let go cannot be mistaken for the one that gets its address."""
    holder: Any = Holder(value=Holder())
    alive = weakref.ref(holder.value)
    before = fingerprint(holder)
    holder.value = None
    assert alive() is not None
    assert changed_paths(before, fingerprint(holder)) == ["self.value"]


@pytest.mark.parametrize(("size", "looked_at"), [(0, True), (4096, True), (4097, False)])
def test_small_array_is_compared_by_content(size: int, looked_at: bool) -> None:
    """What is written into a small numpy array is a change; a large one is not read."""
    content = [b"one"]

    def read(_self: object) -> bytes:
        return content[0]

    array = _foreign("numpy.core", nbytes=size, tobytes=read)
    holder = Holder(array=array)
    before = fingerprint(holder)
    content[0] = b"two"
    assert changed_paths(before, fingerprint(holder)) == (["self.array"] if looked_at else [])


@pytest.mark.parametrize("module", ["numpy", "array_library", "torch"])
def test_what_only_looks_like_an_array_is_not_read(module: str) -> None:
    """An object without a size, or of another library, is told by its identity."""

    def read(_self: object) -> bytes:
        raise AssertionError("the content was read")

    members: dict[str, object] = {} if module == "numpy" else {"nbytes": 8}
    holder = Holder(array=_foreign(module, tobytes=read, **members))
    assert changed_paths(fingerprint(holder), fingerprint(holder)) == []


@pytest.mark.parametrize(("module", "changes"), [("torch", ["self.x"]), ("torch.nn", ["self.x"]), ("touch", [])])
def test_write_to_a_tensor_is_a_change(module: str, changes: list[str]) -> None:
    """Torch counts the writes to a tensor; the count of another library means nothing."""
    tensor = _foreign(module, _version=1)
    holder = Holder(x=tensor)
    before = fingerprint(holder)
    type(tensor)._version = 2
    assert changed_paths(before, fingerprint(holder)) == changes


def test_torch_object_without_a_count_of_writes_is_told_by_its_identity() -> None:
    """A stream or a device counts nothing."""
    holder = Holder(stream=_foreign("torch"))
    assert changed_paths(fingerprint(holder), fingerprint(holder)) == []


class HoldsMore(list[object]):
    """A container with attributes, which cannot be iterated."""

    @override
    def __iter__(self) -> Any:
        raise RuntimeError("not now")


def test_container_of_a_subclass_is_a_container_with_attributes() -> None:
    """Its elements are those of the base, and what its instances keep is met too."""
    holder = HoldsMore([1])
    holder.__dict__["inner"] = 2
    assert list(walk(holder)) == [("self[0]", 1), ("self.inner", 2)]


def _three(_: object) -> int:
    return 3


def _raises(*_: object) -> Any:
    raise RuntimeError("not to be looked at")


@pytest.mark.parametrize(
    ("base", "members"),
    [
        (object, {"__dict__": property(_raises)}),
        (object, {"__dict__": property(_three)}),
        (object, {"__class__": property(_raises)}),
        (set, {"__iter__": _raises}),
        (dict, {"items": _raises, "__iter__": _raises, "__len__": _raises}),
        (int, {"__repr__": _raises}),
        (str, {"__repr__": _raises, "__str__": _raises}),
        (object, {"__module__": None, "__getattribute__": _raises}),
        (object, {"__module__": "numpy", "nbytes": 1, "tobytes": _raises}),
        (object, {"__module__": "torch", "_version": property(_raises)}),
        (object, {"__eq__": _raises, "__hash__": _raises, "__bool__": _raises, "__len__": _raises}),
    ],
)
def test_object_that_refuses_to_be_looked_into_is_passed_over(base: type, members: dict[str, object]) -> None:
    """What is beside it is met, and a change beside it is seen."""
    odd = type("Odd", (base,), members)()
    holder = Holder(odd=odd, inner=Holder(seen=1))
    holder.__dict__[cast("Any", 3)] = Holder()
    assert [path for path in _paths(holder) if "odd." not in path] == ["self.odd", "self.inner", "self.inner.seen"]
    assert _changed(holder) == []
    assert _changed(holder, inner=None) == ["self.inner", "self.inner.seen"]
    _paths(Holder(held=[odd]))
    if base in (int, str):
        assert len(_paths(Holder(table={odd: 1}))) == 2
