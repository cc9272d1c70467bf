# SPDX-License-Identifier: MIT OR Apache-2.0
"""Each plugin is tried on its own: what works is used whole, what fails is kept, told, and quoted when asked for."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrale_caps.errors import (
    PluginConflictError,
    PluginDeclarationError,
    PluginFailedError,
    PluginLoadError,
    RegistrarClosedError,
    UnknownPluginError,
)
from metrale_caps.plugins import BlockSource, LayerPlugins, PluginFailure, PluginOrigin, Stage, load_plugins
from tests.core.plugin_folders import PluginFolders, plugin_folders, registers

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEAVES = "import sys\nsys.exit('left at import')"
_SOURCES = {
    "good1": registers("layer1"),
    "absent": "raise ImportError('no such thing')",
    "leaves": _LEAVES,
    "half": registers("half1", "half2", then="raise ValueError('in the middle')"),
    "good2": registers("layer2", "layer3"),
}
_FAILS = {
    "absent": (Stage.IMPORT, ImportError, "no such thing", ()),
    "leaves": (Stage.IMPORT, SystemExit, "left at import", ()),
    "half": (Stage.CALL, ValueError, "in the middle", ("half1", "half2")),
}


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[PluginFolders]:
    """Folders of plugins on the path."""
    with plugin_folders(tmp_path / "path") as made:
        yield made


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "metrale_caps.plugins" and record.levelno == logging.WARNING
    ]


def _only_failure(plugins: LayerPlugins) -> PluginFailure:
    (failure,) = plugins.failures
    return failure


@settings(max_examples=40)
@given(path=st.permutations(list(_SOURCES)), names=st.permutations(list(_SOURCES)))
def test_failing_plugins_take_nothing_with_them_whatever_the_order(path: list[str], names: list[str]) -> None:
    """Good ones before, between and after failing ones are used; each failure keeps who, where and what."""
    with TemporaryDirectory() as root, plugin_folders(Path(root) / "path") as folders:
        for kind in path:  # plugins are tried by name, and found by the order of the path
            name = f"p{names.index(kind)}"
            folders.install(name, _SOURCES[kind], distribution=f"dist-{kind}", version="2.1", folder=kind)
        plugins = load_plugins()
        assert {origin.distribution for origin in plugins.plugins} == {"dist-good1", "dist-good2"}
        assert list(plugins.layers) == ["layer1", "layer2", "layer3"]
        failures = {failure.origin.distribution.removeprefix("dist-"): failure for failure in plugins.failures}
        assert failures.keys() == _FAILS.keys()
        for kind, (stage, error, text, attempted) in _FAILS.items():
            failure = failures[kind]
            assert (failure.stage, type(failure.cause), str(failure.cause)) == (stage, error, text)
            assert failure.origin.version == "2.1"
            assert failure.attempted == attempted
            assert f"{'calling' if stage is Stage.CALL else 'importing'} '{failure.origin.value}' raised" in str(
                failure
            )
            dropped = f"; what it had registered is dropped: {', '.join(attempted)}" if attempted else text
            assert str(failure).endswith(dropped)
            for name in (failure.origin.plugin, *attempted):
                with pytest.raises(PluginFailedError, match=text) as caught:
                    plugins.layer(name)
                assert caught.value.failure is failure
                assert caught.value.__cause__ is failure.cause


def test_failure_is_logged_with_plugin_distribution_version_and_cause(
    folders: PluginFolders, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning for each failure, none for what works."""
    for name, source in _SOURCES.items():
        folders.install(name, source, version="0.3")
    plugins = load_plugins()
    messages = _warnings(caplog)
    assert len(messages) == len(_FAILS)
    for failure, message in zip(plugins.failures, messages, strict=True):
        assert str(failure) in message
        assert f"{failure.origin.plugin} (dist-{failure.origin.plugin} 0.3): " in message
        assert f"{type(failure.cause).__name__}: {failure.cause}" in message
        assert "\n" not in message


def test_failure_is_visible_where_nothing_is_configured(folders: PluginFolders) -> None:
    """An interpreter that never heard of logging shows the cause on stderr, and goes on."""
    folders.install("good1", _SOURCES["good1"])
    folders.install("leaves", _LEAVES)
    program = "from metrale_caps.plugins import load_plugins; print(load_plugins().layer('layer1').origin)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*folders.on_path(), *filter(None, sys.path)])}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment, timeout=60
    )
    assert done.stdout == "good1 (dist-good1 1.0)\n"
    assert "leaves (dist-leaves 1.0): importing" in done.stderr
    assert "raised SystemExit: left at import" in done.stderr


_RAISES = ("SystemExit(3)", "GeneratorExit()", "RecursionError()", "type('Odd', (BaseException,), {})('no')")


@pytest.mark.parametrize("raised", _RAISES)
@pytest.mark.parametrize("stage", [Stage.IMPORT, Stage.CALL])
def test_whatever_is_raised_is_a_failure(folders: PluginFolders, raised: str, stage: Stage) -> None:
    """Also what is no `Exception`, at import and in the call."""
    statement = f"raise {raised}"
    folders.install("odd", statement if stage is Stage.IMPORT else registers("x", then=statement))
    folders.install("other", registers("fine"))
    plugins = load_plugins()
    assert _only_failure(plugins).stage is stage
    assert list(plugins.layers) == ["fine"]


@pytest.mark.parametrize("source", ["raise KeyboardInterrupt", registers("x", then="raise KeyboardInterrupt")])
def test_the_users_interrupt_passes(folders: PluginFolders, source: str) -> None:
    """Who presses Ctrl-C is not made to wait for the next plugin."""
    folders.install("slow", source)
    with pytest.raises(KeyboardInterrupt):
        load_plugins()


def test_missing_function_is_a_failure_of_the_import(folders: PluginFolders) -> None:
    """The module is there, what the entry point names is not."""
    folders.install("empty", "")
    failure = _only_failure(load_plugins())
    assert failure.stage is Stage.IMPORT
    assert isinstance(failure.cause, AttributeError)
    assert "has no attribute 'register'" in str(failure)


def test_what_cannot_be_shown_of_a_cause_does_no_harm(folders: PluginFolders) -> None:
    """An exception whose text raises, has several lines, or is no valid text."""
    unshown = "class E(Exception):\n    def __str__(self): raise SystemExit\n"
    folders.install("a", f"{unshown}raise E")
    folders.install("b", "raise ValueError('one\\ntwo \\udcff')")
    folders.install("c", "from metrale_caps import MetraleError\nraise MetraleError('of ours')")
    texts = [str(failure) for failure in load_plugins().failures]
    assert texts[0].endswith("raised E, whose text cannot be shown")
    assert texts[1].endswith("raised ValueError: one two \\udcff")
    assert texts[2].endswith("raised MetraleError: of ours")


_MISFITS = {
    "a class": ("class register:\n    def decode(self): ...", "is the class register, but an entry point names"),
    "a number": ("register = 3", "is a int and cannot be called"),
    "a layer": (
        "class L:\n    def decode(self): ...\n    def __call__(self, x): return x\nregister = L()",
        "is a layer, a L, but an entry point names a function",
    ),
    "no argument": ("def register(): ...", "cannot be called with one argument (too many positional"),
    "two arguments": ("def register(a, b): ...", "cannot be called with one argument (missing a required argument"),
    "nothing": ("def register(r): ...", "it registered nothing; call `registrar.add("),
    "returned": ("def register(r): return [1]", "it registered nothing and returned a list"),
    "coroutine": ("async def register(r): r.add('x', print, example=dict)", "returned a coroutine; expected an ord"),
    "generator": ("def register(r): yield r.add('x', print, example=dict)", "returned a generator; expected an ord"),
    "later": (
        "async def later(): ...\ndef register(r):\n    r.add('x', print, example=dict)\n    return later()",
        "returned a coroutine",
    ),
    "empty name": (registers(""), "it registers a layer as ''"),
    "space": (registers("a b"), "it registers a layer as 'a b'; expected a name of letters, digits"),
    "line": (registers("a\n"), "it registers a layer as 'a\\n'"),
    "option": (registers("-a"), "it registers a layer as '-a'"),
    "colon": (registers("a:b"), "it registers a layer as 'a:b'"),
    "no name": ("def register(r): r.add(3, print, example=dict)", "it registers a layer as 3;"),
    "twice": (registers("a", "b", "a"), "it registers 'a' twice"),
    "build": ("def register(r): r.add('x', None, example=dict)", "build of 'x' is a NoneType; expected something"),
    "example": ("def register(r): r.add('x', print, example={})", "example of 'x' is a dict; expected something"),
}


@pytest.mark.parametrize("case", _MISFITS)
def test_what_is_named_or_registered_wrongly_is_said(folders: PluginFolders, case: str) -> None:
    """A failure of validation with what came and what was expected; nothing of it is used, and nothing is leaked."""
    source, says = _MISFITS[case]
    folders.install("misfit", source)
    folders.install("other", registers("fine"))
    plugins = load_plugins()
    failure = _only_failure(plugins)
    assert failure.stage is Stage.VALIDATE
    assert isinstance(failure.cause, PluginDeclarationError)
    assert says in str(failure)
    assert list(plugins.layers) == ["fine"]
    gc.collect()  # a coroutine that nobody awaited would warn here


def test_all_faults_of_a_plugin_are_said_at_once(folders: PluginFolders) -> None:
    """An author corrects them in one go."""
    source = "def register(r):\n    r.add('x y', 1, example=2)\n    r.add('z', print, example=dict)\n"
    folders.install("misfit", f"{source}    r.add('z', print, example=3)\n    r.add(3, print, example=dict)\n")
    failure = _only_failure(load_plugins())
    assert isinstance(failure.cause, PluginDeclarationError)
    assert len(failure.cause.faults) == 6
    assert failure.attempted == ("x y", "z")


@pytest.mark.parametrize(
    "source",
    [
        "import functools\ndef add(r, n): r.add(n, print, example=dict)\nregister = functools.partial(add, n='x')",
        "class C:\n    def __call__(self, r): r.add('x', print, example=dict)\nregister = C()",
        "class C:\n    __signature__ = 3\n    def __call__(self, r): r.add('x', print, example=dict)\nregister = C()",
        "register = lambda r, *more, strict=False: r.add('x', print, example=dict)",
        "class C:\n    @classmethod\n    def go(cls, r): r.add('x', print, example=dict)\nregister = C.go",
    ],
    ids=["partial", "instance", "tells nothing", "lambda", "method"],
)
def test_anything_that_takes_a_registrar_may_be_named(folders: PluginFolders, source: str) -> None:
    """Not only a plain function."""
    folders.install("plugin", source)
    assert list(load_plugins().layers) == ["x"]


def test_good_names_are_taken(folders: PluginFolders) -> None:
    """Letters, digits, underscores, dots and dashes."""
    folders.install("plugin", registers("a", "A-1.b_2", "_x", "9"))
    assert set(load_plugins().layers) == {"a", "A-1.b_2", "_x", "9"}


def test_layer_carries_what_was_registered(folders: PluginFolders) -> None:
    """Name, origin, and the two functions as they are."""
    source = "def build(source): return source.index\ndef example(): return 'small'\n"
    source += "def register(r): r.add('x', build, example=example)"
    module = folders.install("plugin", source, version="3.2")
    layer = load_plugins().layer("x")
    assert layer.origin == PluginOrigin("plugin", f"{module}:register", "dist-plugin", "3.2")
    assert layer.build(BlockSource(block=None, config=None, index=7, context_tokens=16)) == 7
    assert layer.example() == "small"


@pytest.mark.parametrize("fails", [False, True])
def test_registrar_is_closed_when_the_plugin_is_done(folders: PluginFolders, fails: bool) -> None:
    """What it kept raises, also on another thread, and changes nothing."""
    then = "global kept; kept = registrar" + ("; raise ValueError" if fails else "")
    module = folders.install("plugin", registers("x", then=then))
    plugins = load_plugins()
    kept: Any = vars(sys.modules[module])["kept"]
    raised: list[RegistrarClosedError] = []

    def late() -> None:
        try:
            kept.add("y", print, example=dict)
        except RegistrarClosedError as error:
            raised.append(error)

    late()
    thread = threading.Thread(target=late)
    thread.start()
    thread.join()
    assert len(raised) == 2
    assert "plugin (dist-plugin 1.0) registers 'y' after it returned" in str(raised[0])
    assert list(plugins.layers) == ([] if fails else ["x"])


def test_layer_name_of_two_plugins_is_a_conflict_in_any_order(folders: PluginFolders) -> None:
    """Neither is used, both are named with their versions, and a third one is."""
    said: set[tuple[str, ...]] = set()
    sources = {"first": ("shared", "own"), "second": ("shared",), "third": ("apart",)}
    for name, layers in sources.items():
        folders.install(name, registers(*layers), version=f"{len(name)}.0", folder=name)
    for order in itertools.permutations(sources):
        folders.put_on_path(*(folders.folder(name) for name in order))
        plugins = load_plugins()
        assert list(plugins.layers) == ["apart"]
        assert [origin.plugin for origin in plugins.plugins] == ["third"]
        assert {failure.origin.plugin for failure in plugins.failures} == {"first", "second"}
        said.add(tuple(map(str, plugins.failures)))
        for name in ("shared", "own", "first", "second"):
            with pytest.raises(PluginFailedError, match="'shared' is claimed by") as caught:
                plugins.layer(name)
            assert isinstance(caught.value.__cause__, PluginConflictError)
            assert "first (dist-first 5.0) and second (dist-second 6.0)" in str(caught.value)
    assert len(said) == 1


def test_what_a_failed_plugin_attempted_is_free_for_another(folders: PluginFolders) -> None:
    """A failing plugin takes no good one down by the names that it wanted."""
    folders.install("bad", registers("x", then="raise ValueError"))
    folders.install("good", registers("x"))
    plugins = load_plugins()
    assert plugins.layer("x").origin.plugin == "good"


def test_unknown_name_lists_what_was_found_and_suggests(folders: PluginFolders) -> None:
    """Also what failed; it is a `KeyError` that reads as a sentence."""
    folders.install("good", registers("sliding_window", "dilated"))
    folders.install("bad", _LEAVES)
    plugins = load_plugins()
    with pytest.raises(KeyError) as caught:
        plugins.layer("sliding_windwo")
    error = caught.value
    assert isinstance(error, UnknownPluginError)
    assert (error.name, error.known, error.suggestion) == (
        "sliding_windwo",
        ("dilated", "sliding_window"),
        "sliding_window",
    )
    assert str(error).startswith("there is no plugin layer 'sliding_windwo'; did you mean 'sliding_window'?")
    assert "dilated, sliding_window; failed are: bad (dist-bad 1.0)" in str(error)
    folders.install("more", registers("third"))
    with pytest.raises(UnknownPluginError) as caught:
        load_plugins().layer("good")
    assert str(caught.value).endswith(
        "third; good (dist-good 1.0) is a plugin, whose layers are dilated, sliding_window; "
        "failed are: bad (dist-bad 1.0)"
    )


def test_unknown_name_where_nothing_is_installed_says_what_was_looked_for(folders: PluginFolders) -> None:
    """The group is named, so that an author can compare it."""
    folders.folder()
    with pytest.raises(UnknownPluginError, match=r"was found; plugins .*'metrale_caps.layers'") as caught:
        load_plugins().layer("x")
    assert caught.value.suggestion is None


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_strict_makes_failures_fatal_after_all_were_tried(
    folders: PluginFolders, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error carries all failures, and its traceback all causes."""
    modules = {name: folders.install(name, source) for name, source in _SOURCES.items()}
    if by == "variable":
        monkeypatch.setenv("METRALE_STRICT_PLUGINS", "1")
    with pytest.raises(PluginLoadError, match="3 plugins failed") as caught:
        load_plugins(strict=by == "argument")
    assert {failure.origin.plugin for failure in caught.value.failures} == set(_FAILS)
    assert all(str(failure) in str(caught.value) for failure in caught.value.failures)
    causes: Any = caught.value.__cause__
    assert type(causes) is BaseExceptionGroup
    assert causes.exceptions == tuple(failure.cause for failure in caught.value.failures)
    assert all(vars(sys.modules[modules[name]])["calls"] == [1] for name in ("good1", "good2"))


def test_strict_with_one_failure_is_raised_from_its_cause(folders: PluginFolders) -> None:
    """A single traceback is shown as such."""
    folders.install("leaves", _LEAVES)
    with pytest.raises(PluginLoadError, match="a plugin failed: leaves") as caught:
        load_plugins(strict=True)
    assert caught.value.__cause__ is caught.value.failures[0].cause


def test_strict_is_silent_where_nothing_failed(folders: PluginFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a variable that is not 1 means nothing."""
    folders.install("good1", _SOURCES["good1"])
    assert list(load_plugins(strict=True).layers) == ["layer1"]
    folders.install("leaves", _LEAVES)
    monkeypatch.setenv("METRALE_STRICT_PLUGINS", "0")
    assert len(load_plugins().failures) == 1


def test_result_cannot_be_changed(folders: PluginFolders) -> None:
    """Who is handed it sees what was loaded."""
    folders.install("good1", _SOURCES["good1"])
    plugins: Any = load_plugins()
    with pytest.raises(TypeError):
        plugins.layers["x"] = None
    with pytest.raises(FrozenInstanceError):
        plugins.failures = ()
