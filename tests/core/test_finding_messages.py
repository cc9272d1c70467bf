# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a finding says, word for word, and of whom."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from metrale_caps import QUERIES, CapabilityAnswerError, CompositeLayer, IsSsmLayer, audit_layer
from metrale_caps.audit.source_place import Place

if TYPE_CHECKING:
    from collections.abc import Callable


class Decodes:
    """A layer that decodes, alone and in a verify of several sequences."""

    def decode(self, hidden: Any, _context: Any) -> Any:
        return hidden

    decode_verify_multi = decode


class Misspelt(Decodes):
    """Has a name that nothing asks for."""

    def is_smm_layer(self) -> bool:
        return True


class Malformed(Decodes):
    """Answers with a number."""

    def is_ssm_layer(self) -> int:
        return 1


class Raising(Decodes):
    """Fails when asked."""

    def is_ssm_layer(self) -> bool:
        raise RuntimeError("broken")


class Unstable(Decodes):
    """Answers otherwise each time, and keeps the count where no layer is changed."""

    asked: tuple[bool, ...] = ()

    def decode_graph_unsupported(self) -> bool:
        Unstable.asked = (*Unstable.asked, True)
        return len(Unstable.asked) % 2 == 1


class Counting(Decodes):
    """Counts how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0
        self.answers = 0

    def decode_graph_unsupported(self) -> bool:
        self.calls += 1
        self.answers += 1
        return True


class Claiming:
    """Claims what it has no methods for."""

    def is_ssm_layer(self) -> bool:
        return True

    def uses_ssm_pool(self) -> bool:
        return False


class Vetoes(Decodes):
    """Cannot be captured in a graph."""

    def decode_graph_unsupported(self) -> bool:
        return True


class Wraps(Decodes):
    """Holds a layer and answers nothing."""

    def __init__(self, inner: object) -> None:
        self.inner = inner


class Forgetful(CompositeLayer, Decodes):
    """A composite that leaves out a part."""

    def __init__(self) -> None:
        self.mixer = Decodes()
        self.head = Vetoes()

    @override
    def capability_parts(self) -> tuple[object, ...]:
        return (self.mixer,)


HERE = __name__
MISSPELT = "has `is_smm_layer`, which nothing asks for; did you mean the query `is_ssm_layer`?"
MALFORMED = (
    "declares is_ssm_layer: answered an object of type builtins.int; expected a method without arguments that returns "
    "exactly bool. Convert the answer with bool(...), on the host."
)
UNSTABLE = "answered decode_graph_unsupported = True and then False; it is asked once, when the model is built"
CHANGED = "changed self.answers, self.calls when asked decode_graph_unsupported; answering must have no side effects"
NO_PHASES = (
    "answers is_ssm_layer = True (declared) but has no `prefill_phase1`, `prefill_gdn_full`, `prefill_phase3`: a split "
    "prefill runs it in phases; write what is missing, or answer False"
)
NO_STATE = (
    "answers uses_ssm_pool = False (declared) but has no `alloc_state`, `release_state`: the engine asks it for each "
    "sequence's state; write what is missing, or answer True"
)
NO_VERIFY = (
    "answers decode_verify_multi_unsupported = False by default but has no `decode_verify_multi`: drafts of several "
    "sequences are verified in one call; write what is missing, or answer True"
)
HIDDEN = (
    f"hides that self.inner ({HERE}.Vetoes) answers decode_graph_unsupported = True; answer it, or derive from "
    "`CompositeLayer` and name the part in `capability_parts`"
)
LEFT_OUT = f"hides that self.head ({HERE}.Vetoes) answers decode_graph_unsupported = True; add it to `capability_parts`"


@pytest.mark.parametrize(
    ("layer", "messages"),
    [
        (Misspelt, [MISSPELT]),
        (Malformed, [MALFORMED]),
        (Raising, ["raised RuntimeError when asked is_ssm_layer: broken"]),
        (Unstable, [UNSTABLE]),
        (Counting, [CHANGED]),
        (Claiming, ["has no `decode`; every layer must decode one token", NO_PHASES, NO_STATE, NO_VERIFY]),
        (lambda: Wraps(Vetoes()), [HIDDEN]),
        (Forgetful, [LEFT_OUT]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_finding(layer: Callable[[], object], messages: list[str]) -> None:
    """Each finding names the layer's own class, what was found, and what to do."""
    asked = layer()
    found = audit_layer(asked).findings
    who = f"{HERE}.{type(asked).__name__}"
    assert [str(finding) for finding in found] == [f"{who} {message}" for message in messages]
    assert {finding.layer_type for finding in found} == {who}
    assert all(f"{finding.name}" in finding.message for finding in found)
    assert all(finding.as_json()["message"] == finding.message for finding in found)
    assert all(finding.as_json()["layer_type"] == who for finding in found)


class FirstOnly(Decodes):
    """Answers once and fails from then on, and keeps the count where no layer is changed."""

    asked: tuple[bool, ...] = ()

    def is_ssm_layer(self) -> bool:
        FirstOnly.asked = (*FirstOnly.asked, True)
        if len(FirstOnly.asked) > 1:
            raise RuntimeError("worn out")
        return False


def test_answer_that_fails_the_second_time() -> None:
    """The error that came instead of the answer is told."""
    said = "answered is_ssm_layer = False and then raised RuntimeError: worn out"
    (finding,) = audit_layer(FirstOnly()).findings
    assert finding.message == f"{said}; it is asked once, when the model is built"


@pytest.mark.parametrize(("cls", "error"), [(Malformed, CapabilityAnswerError), (Raising, RuntimeError)])
def test_finding_keeps_the_error_behind_it(cls: type, error: type[Exception]) -> None:
    """What was raised is there for whoever wants to raise it."""
    (finding,) = audit_layer(cls()).findings
    assert type(finding.error) is error
    assert finding.name == "is_ssm_layer"


def test_hidden_part_of_a_part() -> None:
    """The path that leads to the inner wrapper stands before what it hides."""
    composite = Forgetful()
    composite.mixer = Forgetful()
    messages = [finding.message for finding in audit_layer(composite).findings]
    assert f"holds self.mixer, which {LEFT_OUT}" in messages


def test_part_that_fails_is_hidden_all_the_same() -> None:
    """A wrapper hides a part whose answer cannot be had, and the part's own fault takes nothing down."""
    messages = [finding.message for finding in audit_layer(Wraps(Raising())).findings]
    assert messages == [
        HIDDEN.replace("Vetoes", "Raising").replace("decode_graph_unsupported = True", "is_ssm_layer = None")
    ]


def test_composite_that_fails_to_name_its_parts_is_audited_to_the_end() -> None:
    """Its answers cannot be had, and each of them says so."""

    class Broken(CompositeLayer, Decodes):
        @override
        def capability_parts(self) -> tuple[object, ...]:
            raise RuntimeError("lost")

    audit = audit_layer(Broken())
    assert audit.capabilities is None
    assert {finding.message.partition(" when asked ")[0] for finding in audit.findings} == {"raised RuntimeError"}
    assert {finding.name for finding in audit.findings} == set(QUERIES)


def test_part_that_only_inherits_a_protocol_answers_nothing() -> None:
    """There is nothing to hide in a body-less method."""
    assert audit_layer(Wraps(type("Stub", (IsSsmLayer,), {})())).findings == ()


def test_each_query_of_a_part_is_judged_for_itself() -> None:
    """An answer of the wrapper's own to one query does not hide that it hides another."""

    class Both(Vetoes):
        def uses_ssm_pool(self) -> bool:
            return True

    class Answers(Wraps):
        def decode_graph_unsupported(self) -> bool:
            return True

    (finding,) = audit_layer(Answers(Both())).findings
    assert finding.name == "uses_ssm_pool"


def test_proxy_that_forwards_one_query_hides_another() -> None:
    """What it forwards reaches the layer; what it does not is hidden in it."""

    class Both(Vetoes):
        def uses_ssm_pool(self) -> bool:
            return True

    class Forwards(Wraps):
        def __getattr__(self, name: str) -> Any:
            if name != "decode_graph_unsupported":
                raise AttributeError(name, name=name)
            return self.__dict__["inner"].decode_graph_unsupported

    (finding,) = audit_layer(Forwards(Both())).findings
    assert finding.name == "uses_ssm_pool"


def test_answer_of_the_part_itself_is_hidden_too() -> None:
    """A method that was put on an instance answers, although no class has it."""
    part: Any = type("Part", (), {})()
    part.is_ssm_layer = lambda: True
    (finding,) = audit_layer(Wraps(part)).findings
    assert finding.name == "is_ssm_layer"


def test_part_that_answers_less_than_the_whole_hides_nothing_of_it() -> None:
    """A part may hold the layer it is in, which answers more than the part does."""

    class Whole(Vetoes):
        def __init__(self, part: Any) -> None:
            self.part = part
            part.owner = self

        def uses_ssm_pool(self) -> bool:
            return True

    assert audit_layer(Whole(Vetoes())).findings == ()


def test_parts_that_know_the_whole_hide_nothing_of_it() -> None:
    """A part may hold the layer it is in, or itself, and neither is hidden in it."""

    class Whole(Vetoes):
        def __init__(self, part: Any) -> None:
            self.part = part
            part.owner = self
            part.itself = part

    assert audit_layer(Whole(Vetoes())).findings == ()


def test_layers_of_a_stack_that_hold_each_other_and_are_held_by_parts() -> None:
    """What stands in the stack is audited there, however it is reached."""
    whole, other = Vetoes(), Vetoes()
    inner: Any = Vetoes()
    inner.neighbour = Wraps(other)
    layer: Any = whole
    layer.inner = inner
    assert audit_layer(whole, in_stack=[whole, other]).findings == ()


def test_slip_in_a_base_is_found_in_what_derives_from_it() -> None:
    """A class inherits the names that nothing asks for."""
    (finding,) = audit_layer(type("Derived", (Misspelt,), {})()).findings
    assert finding.name == "is_smm_layer"


def test_attribute_of_the_instance_beside_the_class_s_method_is_its_own() -> None:
    """A layer that answers may keep something under a similar name."""
    layer: Any = Vetoes()
    layer.decode_graphs_unsupported = False
    assert audit_layer(layer).findings == ()


@pytest.mark.parametrize("wrap", [staticmethod, classmethod, property, functools.partialmethod])
def test_place_is_that_of_the_method_however_it_is_wrapped(wrap: Any) -> None:
    """A fault is mended where the function is written."""

    def answer(*_arguments: object) -> int:
        return 1

    (finding,) = audit_layer(type("Layer", (Decodes,), {"is_ssm_layer": wrap(answer)})()).findings
    assert finding.place == Place(__file__, answer.__code__.co_firstlineno)


class Composed(CompositeLayer, Decodes):
    """A composite of whatever it is given."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts

    @override
    def capability_parts(self) -> tuple[object, ...]:
        return self.parts


@pytest.mark.parametrize(
    ("cls", "message"), [(Malformed, MALFORMED), (Raising, "raised RuntimeError when asked is_ssm_layer: broken")]
)
@pytest.mark.parametrize("depth", [1, 2])
def test_fault_of_a_part_is_found_once_at_the_part(cls: type, message: str, depth: int) -> None:
    """The place is that of the part's method, however deep it is, and the whole is named beside it."""
    layer: object = cls()
    for _ in range(depth):
        layer = Composed(Decodes(), layer)
    (finding,) = audit_layer(layer).findings
    assert (finding.layer_type, finding.name) == (f"{HERE}.{cls.__name__}", "is_ssm_layer")
    assert finding.message == f"{message}; it is a part of {HERE}.Composed"
    (alone,) = audit_layer(cls()).findings
    assert finding.place == alone.place


@pytest.mark.parametrize("parts", [(), (None,)])
def test_composite_without_parts_is_told_so_once(parts: tuple[object, ...]) -> None:
    """All ten answers fail for one reason."""
    (finding,) = audit_layer(Composed(*parts)).findings
    assert (finding.layer_type, finding.name) == (f"{HERE}.Composed", "capability_parts")


class Compiled:
    """Forwards everything, as what a compiler makes of a module does."""

    def __init__(self, original: object) -> None:
        self.original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)


def test_part_behind_a_named_one_that_forwards_is_not_hidden() -> None:
    """A compiled part answers for what was compiled; one that hides it is told to be the one that does."""
    assert audit_layer(Composed(Compiled(Vetoes()))).findings == ()
    (finding,) = audit_layer(Composed(Wraps(Vetoes()))).findings
    assert finding.message == f"holds self.parts[0], which {HIDDEN}"
