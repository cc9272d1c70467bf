# SPDX-License-Identifier: MIT OR Apache-2.0
"""`metrale-caps check`, as a user calls it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from metrale_caps.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LAYERS = """
class Sound:
    def decode(self, hidden, context):
        return hidden

    def decode_verify_multi_unsupported(self) -> bool:
        return True


class Faulty(Sound):
    def __init__(self):
        self.inner = Vetoing()

    def uses_smm_pool(self) -> bool:
        return False

    def is_ssm_layer(self) -> bool:
        return True

    async def decode_rollback_unsupported(self) -> bool:
        return True

    def uses_local_mla_prefill(self) -> int:
        return False


class Vetoing(Sound):
    def decode_graph_unsupported(self) -> bool:
        return True


class NeedsArguments(Sound):
    def __init__(self, width):
        self.width = width

    def decode_graph_unsupported(self) -> int:
        return 1


class Unrelated:
    pass


def make_faulty():
    return Faulty()


def needs_arguments(width):
    return Sound()


def exits():
    raise SystemExit(3)


def interrupts():
    raise KeyboardInterrupt


def makes_none():
    pass


def makes_class():
    return Sound


async def makes_coroutine():
    return Sound()


def makes_generator():
    yield Sound()


class Called(Sound):
    def __call__(self):
        raise RuntimeError("a layer was called")


called = Called()
sound = Sound()


class Talks(Sound):
    def __init__(self):
        print("made")

    def is_ssm_layer(self) -> bool:
        print("asked")
        return False
"""


@pytest.fixture
def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command on a module beside the user; returns status, stdout and stderr."""
    name = f"checked_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(_LAYERS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)

    def run(target: str, *options: str) -> tuple[int, str, str]:
        status = main(["check", f"{name}:{target}", *options])
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


def test_sound_layer_gives_status_0(check: Callable[..., tuple[int, str, str]]) -> None:
    """A layer without findings says so in one line."""
    status, out, err = check("Sound")
    assert (status, err) == (0, "")
    assert out.endswith(":Sound: no findings\n")


@pytest.mark.parametrize("target", ["Faulty", "make_faulty"])
def test_all_findings_are_printed_at_once_with_file_and_line(
    target: str, check: Callable[..., tuple[int, str, str]]
) -> None:
    """Each kind of fault is found in one run, and the place is that of the method, of the class where it has none."""
    status, out, _ = check(target)
    *findings, last = out.splitlines()
    assert status == 1
    assert last.endswith(": 5 findings")
    lines = _LAYERS.splitlines()

    def line_of(text: str) -> int:
        return next(number for number, line in enumerate(lines, start=1) if text in line)

    for kind, place in (
        ("misspelt", "uses_smm_pool"),
        ("malformed", "async def"),
        ("malformed", "-> int"),
        ("contradiction", "def is_ssm_layer"),
        ("hidden capability", "class Faulty"),
    ):
        assert any(f".py:{line_of(place)}: {kind}: " in finding for finding in findings), (kind, findings)


def test_findings_as_json(check: Callable[..., tuple[int, str, str]]) -> None:
    """Machines get the same as one document."""
    status, out, _ = check("Faulty", "--json")
    assert status == 1
    (checked,) = json.loads(out)["checked"]
    assert checked["layer"].endswith(":Faulty")
    assert checked["left_out"] is None
    kinds = sorted(finding["kind"] for finding in checked["findings"])
    assert kinds == ["contradiction", "hidden capability", "malformed", "malformed", "misspelt"]
    assert all(finding["file"] and finding["line"] for finding in checked["findings"])


def test_class_that_needs_arguments_is_read_and_the_rest_is_said_to_be_left_out(
    check: Callable[..., tuple[int, str, str]],
) -> None:
    """Without an instance no answer is asked, and nobody is left to believe that it was."""
    status, out, _ = check("NeedsArguments")
    assert status == 1
    assert "annotated to return int" in out
    assert "1 finding (only the class was read" in out
    assert "'width'" in out


def test_object_outside_the_contract_is_said_to_be_one(check: Callable[..., tuple[int, str, str]]) -> None:
    """A class that neither answers nor runs has no findings, and that is why."""
    status, out, _ = check("Unrelated")
    assert status == 0
    assert "no findings (it answers no query and has no forward method)" in out


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("needs_arguments", "cannot be made without arguments"),
        ("exits", "SystemExit"),
        ("missing", "missing"),
        ("makes_none", "making it gave None; return the layer"),
        ("makes_class", "making it gave the class Sound rather than an instance of it; call it"),
        ("makes_coroutine", "making it gave a coroutine; remove `async`"),
        ("makes_generator", "making it gave an object of type generator; return the layer from an ordinary function"),
        ("called", "is Called, not a class or a function that makes a layer"),
        ("sound", "is Sound, not a class or a function that makes a layer"),
    ],
)
def test_layer_that_cannot_be_made_is_one_sentence_and_status_2(
    target: str, said: str, check: Callable[..., tuple[int, str, str]]
) -> None:
    """What cannot be used is no traceback."""
    status, out, err = check(target)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_a_layer_prints_goes_to_stderr(
    options: tuple[str, ...], check: Callable[..., tuple[int, str, str]]
) -> None:
    """Stdout holds the findings alone, so that a program can read them."""
    status, out, err = check("Talks", *options)
    assert status == 0
    assert err.splitlines() == ["made", "asked", "asked"]
    assert "asked" not in out
    assert not options or json.loads(out)["checked"][0]["findings"] == []


def test_interrupt_while_a_layer_is_made_ends_the_command(check: Callable[..., tuple[int, str, str]]) -> None:
    """What the user does is none of the layer's faults."""
    assert check("interrupts") == (130, "", "")
