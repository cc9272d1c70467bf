# SPDX-License-Identifier: MIT OR Apache-2.0
"""How survivors of mutation are compared with the list of accepted ones."""

from __future__ import annotations

import pytest

from tests import mutants
from tests.mutants import Mutant, parse_mutant, read_accepted, verdict

NAME = "metrale_caps.capabilities.xǁLayerCapabilitiesǁof__mutmut_32"
DIFF = """--- metrale_caps/capabilities.py
+++ metrale_caps/capabilities.py
@@ -1,3 +1,3 @@
     def of(cls, layer: object) -> Self:
-        answers = _DEFAULTS.copy()
+        answers = None
         return cls()
"""
ENTRY = """[[accepted]]
file = "metrale_caps/capabilities.py"
function = "LayerCapabilities.of"
was = "answers = _DEFAULTS.copy()"
becomes = "answers = None"
why = "nobody can tell"
"""
FILES = {"metrale_caps/capabilities.py"}


def test_mutant_is_told_by_its_text() -> None:
    """The number that the tool gives a mutant is not part of it; file, function and the changed lines are."""
    mutant = parse_mutant(NAME, DIFF)
    assert mutant == parse_mutant(NAME.replace("_32", "_7"), DIFF)
    assert (mutant.file, mutant.function) == ("metrale_caps/capabilities.py", "LayerCapabilities.of")
    assert (mutant.was, mutant.becomes) == ("answers = _DEFAULTS.copy()", "answers = None")
    assert parse_mutant("metrale_caps.routing.plan.x__audited__mutmut_1", DIFF).function == "_audited"
    assert parse_mutant("metrale_caps.routing.plan.x_audited__mutmut_1", DIFF).function == "audited"
    with pytest.raises(ValueError, match="names no mutant"):
        parse_mutant("metrale_caps.routing.plan", DIFF)


def test_survivor_that_is_not_accepted_is_reported_with_its_diff() -> None:
    """A change that nobody notices and nobody accepted is shown."""
    (wrong,) = verdict({parse_mutant(NAME, DIFF)}, {}, FILES)
    assert DIFF in wrong
    assert "LayerCapabilities.of" in wrong


def test_accepted_survivor_is_no_news() -> None:
    """What is listed and survives is as it should be."""
    assert verdict({parse_mutant(NAME, DIFF)}, read_accepted(ENTRY), FILES) == []


def test_accepted_mutant_that_no_longer_survives_is_reported() -> None:
    """The list must not outlive what it excuses; files that were not run are not judged."""
    accepted = read_accepted(ENTRY)
    (wrong,) = verdict(set(), accepted, FILES)
    assert "take it off the list" in wrong
    assert verdict(set(), accepted, {"metrale_caps/audit.py"}) == []


def test_type_of_a_cast_is_no_change() -> None:
    """The first argument of `cast` is for checkers; what is cast is not."""
    cast = 'return cast("Answer", getattr(self, query))'
    assert Mutant("f", "g", cast, "return cast(None, getattr(self, query))").is_the_same_program
    assert Mutant("f", "g", cast, 'return cast("XXAnswerXX", getattr(self, query))').is_the_same_program
    assert not Mutant("f", "g", cast, 'return cast("Answer", None)').is_the_same_program


def test_accepted_entries_are_given_once_and_with_a_reason() -> None:
    """The list that is checked in can be read, and an entry without a reason or a second one cannot."""
    assert all(read_accepted(mutants.ACCEPTED.read_text(encoding="utf-8")).values())
    with pytest.raises(ValueError, match="no reason"):
        read_accepted(ENTRY.replace("nobody can tell", " "))
    with pytest.raises(ValueError, match="listed twice"):
        read_accepted(ENTRY + ENTRY)
