# SPDX-License-Identifier: MIT OR Apache-2.0
"""The benchmark of questions is red on a wrong answer, and prints its figures and targets otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import __main__ as command
from benchmarks import asked_layers as ways
from benchmarks import asking, imports
from benchmarks.registry import RedError
from benchmarks.timing import Timings, interleaved, target
from metrale_caps import LayerCapabilities

if TYPE_CHECKING:
    from collections.abc import Callable


def _always(value: object) -> Callable[..., Any]:
    def function(*_arguments: object) -> object:
        return value

    return function


WRONG: dict[str, tuple[str, object]] = {
    ways.ASKED: ("capability_of", _always(True)),
    ways.GETATTR: ("default_uses_ssm_pool", _always(None)),
    ways.STATIC: ("getattr_static", _always(None)),
    ways.TYPING: ("typing_is_ssm_layer", object),
    ways.EXTENSIONS: ("extensions_is_ssm_layer", object),
}


def _names(*, declared: bool) -> dict[str, Any]:
    layer = (ways.declaring(ways.Forwards) if declared else ways.Forwards)()
    return {**ways.common_names(), "layer": layer, "snapshot_of_layer": LayerCapabilities.of(layer)}


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain layers in the place of torch modules, few of them, and no fresh interpreters."""
    monkeypatch.setattr(ways, "large_module", lambda: ways.Forwards)
    monkeypatch.setattr(asking, "LAYERS", 4)
    monkeypatch.setattr(asking, "import_times", _always(["imports"]))


@pytest.mark.parametrize("declared", [True, False])
def test_all_ways_of_asking_agree(declared: bool) -> None:
    """Each way gives the layer's own answers, or the defaults."""
    ways.check_ways(_names(declared=declared), "layer", declared=declared)


@pytest.mark.parametrize("way", WRONG)
def test_way_that_answers_otherwise_is_red(way: str) -> None:
    """Whichever way is wrong, on a layer with or without the method, it is the one that is named."""
    name, instead = WRONG[way]
    reds: list[str] = []
    for declared in (True, False):
        try:
            ways.check_ways({**_names(declared=declared), name: instead}, "layer", declared=declared)
        except RedError as red:
            reds.append(str(red))
    assert reds
    assert all(red.startswith(way) for red in reds)


@pytest.mark.usefixtures("_small")
def test_red_case_prints_no_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With a wrong `capability_of` the case fails, says which answer was wrong, and measures nothing."""
    monkeypatch.setattr(ways, "capability_of", _always(True))
    assert command.main(["asking"]) == 1
    said = capsys.readouterr().out
    assert "asking is red" in said
    assert "capability_of gives True for" in said
    assert "target" not in said


@pytest.mark.usefixtures("_small")
def test_plan_that_decides_otherwise_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that lets graphs run while a layer calibrates is not timed."""
    monkeypatch.setattr(asking.RoutePlan, "graphs_ready_after_fp8_kv_cal", _always(True))
    with pytest.raises(RedError, match="graphs_ready_after_fp8_kv_cal"):
        asking.CASE.run(["--rounds", "1"])


@pytest.mark.usefixtures("_small")
def test_figures_stand_beside_their_targets(capsys: pytest.CaptureFixture[str]) -> None:
    """A run prints the machine, each section, and for each target whether it is met."""
    assert command.main(["asking", "--rounds", "1"]) == 0
    said = capsys.readouterr().out
    for part in (
        "machine:",
        "one question",
        "all ten answers of 4 layers",
        "the decision of a step",
        "making the plan",
    ):
        assert part in said
    assert all(line.endswith(("met", "MISSED")) for line in said.splitlines() if "target:" in line)
    assert "bytes allocated by a settled decision at most 0: 0, met" in said


def test_heavy_import_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import of the contract that loads what it must not is not timed."""
    monkeypatch.setattr(imports, "HEAVY", {"typing_extensions"})
    with pytest.raises(RedError, match="typing_extensions"):
        imports.import_times(1)


def test_contenders_take_turns() -> None:
    """Each statement is sampled once a round, and the rounds begin with different ones."""
    order: list[str] = []
    names: dict[str, object] = {"order": order}
    timings = interleaved({"a": "order.append('a')", "b": "order.append('b')"}, names, rounds=4, sample=0)
    assert {name: len(taken) for name, taken in timings.rounds.items()} == {"a": 4, "b": 4}
    assert "".join(order[-8:]) == "abbaabba"


def test_ratio_is_taken_within_each_round() -> None:
    """A round that was slow for both sides does not change how they compare."""
    timings = Timings({"mine": [2.0, 20.0, 2.0], "other": [1.0, 10.0, 1.0]})
    assert timings.ratio("mine", "other") == 2.0


@pytest.mark.parametrize(("value", "verdict"), [(1.0, "met"), (1.1, "MISSED")])
def test_target_says_whether_it_is_met(value: float, verdict: str) -> None:
    """What is at the bound meets it, from either side."""
    assert target("a over b", value, most=1.0).endswith(verdict)
    assert target("a over b", -value, least=-1.0).endswith(verdict)
