# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a finding says, word for word, and of whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from metrale_caps import CapabilityAnswerError, CompositeLayer, audit_layer

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
