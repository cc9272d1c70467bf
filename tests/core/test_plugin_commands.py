# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line on plugins, where neither torch nor an engine is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from metrale_caps.cli import main
from metrale_caps.cli.targets import Target, find_targets
from metrale_caps.errors import ConfigurationError, PluginFailedError, PluginLoadError, UnknownPluginError
from tests.core.plugin_folders import PluginFolders, plugin_folders, registers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LAYER = """
class Layer:
    def decode(self, hidden, context): return hidden
    def decode_verify_multi_unsupported(self): return True
    def decode_graph_unsupported(self): return True
def small(): return Layer()
def build(source): return None
"""
_TWO = _LAYER + (
    "def register(registrar):\n"
    "    registrar.add('alpha', build, example=small)\n"
    "    registrar.add('beta', build, example=Layer)\n"
)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginFolders]:
    """Folders of plugins on the path, and a working folder with nothing in it."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with plugin_folders(tmp_path / "path") as made:
        yield made


def _install(folders: PluginFolders) -> None:
    folders.install("good", _TWO, distribution="My-Layers", version="1.2")
    folders.install("bad", "raise ImportError('no [/such] thing')", distribution="bad-layers", version="0.1")


def test_plugins_are_shown_with_their_layers_and_failures(
    folders: PluginFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    """Distribution, version, layers, stage and cause; failures are no reason for a status."""
    _install(folders)
    assert main(["plugins"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].split() == ["plugin", "distribution", "version", "layers"]
    assert lines[1].split() == ["good", "My-Layers", "1.2", "alpha,", "beta"]
    assert lines[2].startswith("failed (import): bad (bad-layers 0.1): importing ")
    assert lines[2].endswith("raised ImportError: no [/such] thing")
    assert len(lines) == 3
    assert captured.err == ""


def test_plugins_as_json(folders: PluginFolders, capsys: pytest.CaptureFixture[str]) -> None:
    """The same facts as one document."""
    _install(folders)
    folders.install("half", registers("x", "y", then="raise ValueError"))
    folders.install("other", registers("zeta"))
    assert main(["plugins", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["group"] == "metrale_caps.layers"
    good, other = document["plugins"]
    assert other["layers"] == ["zeta"]
    assert (good["plugin"], good["distribution"], good["version"]) == ("good", "My-Layers", "1.2")
    assert good["layers"] == ["alpha", "beta"]
    bad, half = document["failures"]
    assert (bad["plugin"], bad["distribution"], bad["version"]) == ("bad", "bad-layers", "0.1")
    assert (bad["stage"], bad["cause_type"], bad["cause"]) == (
        "import",
        "ImportError",
        "ImportError: no [/such] thing",
    )
    assert bad["value"].endswith(":register")
    assert (half["stage"], half["cause"], half["attempted"]) == ("call", "ValueError", ["x", "y"])


@pytest.mark.parametrize("by", ["option", "variable"])
def test_strict_is_status_one_if_any_failed(
    folders: PluginFolders, by: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is shown all the same; where nothing failed the status is 0."""
    arguments = ["plugins", "--strict"] if by == "option" else ["plugins"]
    if by == "variable":
        monkeypatch.setenv("METRALE_STRICT_PLUGINS", "1")
    folders.install("good", _TWO)
    assert main(arguments) == 0
    _ = capsys.readouterr()
    folders.install("bad", "raise ImportError")
    assert main(arguments) == 1
    text = capsys.readouterr().out
    assert "alpha, beta" in text
    assert "raised ImportError" in text


def test_only_failures_are_shown_without_an_empty_table(
    folders: PluginFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table without rows would say that nothing is installed."""
    folders.install("bad", "raise ImportError")
    assert main(["plugins"]) == 0
    assert capsys.readouterr().out.startswith("failed (import): bad")


def test_nothing_installed_says_which_group_was_looked_for(
    folders: PluginFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    """An author sees what to compare."""
    folders.folder()
    assert main(["plugins", "--strict"]) == 0
    assert "no installed distribution has the entry-point group 'metrale_caps.layers'" in capsys.readouterr().out


def test_names_with_brackets_are_shown_as_they_are_on_a_terminal(
    folders: PluginFolders, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are text, not markup."""
    folders.metadata("dist", {"x[red]y[/such]": f"{folders.module(_TWO)}:register"})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["plugins"]) == 0
    assert "x[red]y[/such]" in capsys.readouterr().out


def test_plugins_and_explain_need_no_torch(folders: PluginFolders) -> None:
    """The whole path through a fresh interpreter, where torch cannot be imported."""
    folders.install("good", _TWO)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*folders.on_path(), *filter(None, sys.path)])}
    for arguments, says in ((["plugins"], "alpha, beta"), (["explain", "alpha"], "route plan")):
        program = (
            "import sys; sys.modules['torch'] = sys.modules['triton'] = sys.modules['rich'] = None\n"
            f"from metrale_caps.cli import main; sys.exit(main({arguments!r}))"
        )
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment, timeout=60
        )
        assert done.stderr == ""
        assert done.returncode == 0
        assert says in done.stdout


def test_explain_takes_a_layer_a_plugin_and_a_distribution(
    folders: PluginFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each layer under its own heading."""
    folders.install("good", _TWO, distribution="My-Layers", version="1.2")
    headings = {"alpha": ["alpha"], "good": ["alpha", "beta"], "my_layers": ["alpha", "beta"]}
    for name, layers in headings.items():
        assert main(["explain", name]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if "(My-Layers 1.2)" in line] == [f"{each} (My-Layers 1.2)" for each in layers]
        assert lines[0] == "alpha (My-Layers 1.2)"
        assert lines.count("  decode_graph_unsupported = True (declared)") == len(layers)
        assert lines.count("route plan") == len(layers)


@pytest.mark.parametrize("name", ["alpha", "good"])
def test_explain_of_a_plugin_as_json_has_one_form(
    folders: PluginFolders, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list, however many layers there are."""
    folders.install("good", _TWO)
    assert main(["explain", name, "--json"]) == 0
    targets: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["targets"]
    layers = ["alpha"] if name == "alpha" else ["alpha", "beta"]
    assert [target["target"] for target in targets] == [f"{layer} (dist-good 1.0)" for layer in layers]
    assert all(target["plan"]["decisions"] for target in targets)


@pytest.mark.parametrize("name", ["bad", "bad-layers", "Bad_Layers"])
def test_explain_of_a_failed_plugin_quotes_the_cause(
    folders: PluginFolders, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, and nothing is logged besides."""
    _install(folders)
    assert main(["explain", name]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "raised ImportError: no [/such] thing" in captured.err


def test_explain_of_an_unknown_name_says_both_things_it_may_have_been(
    folders: PluginFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file, and no plugin; what was found is listed."""
    folders.install("good", _TWO)
    assert main(["explain", "alphaa"]) == 2
    said = capsys.readouterr().err
    assert "there is no file or folder 'alphaa'" in said
    assert "nor is it a plugin: there is no plugin layer 'alphaa'; did you mean 'alpha'? Found are: alpha, beta" in said
    assert said.count("\n") == 1


def test_existing_path_comes_before_a_plugin_of_that_name(
    folders: PluginFolders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint folder is not explained as something else."""
    folders.install("alpha", _TWO)
    (tmp_path / "work" / "alpha").mkdir()
    assert main(["explain", "alpha"]) == 2
    assert "no config.json" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["./alpha", "x/alpha", "~nobody-of-this-name"])
def test_no_plugin_is_tried_for_what_is_plainly_a_path(
    folders: PluginFolders, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mistyping a path runs no foreign code."""
    module = folders.install("alpha", _TWO)
    assert main(["explain", name]) == 2
    assert "plugin" not in capsys.readouterr().err
    assert module not in sys.modules


def test_failures_of_others_are_logged_beside_what_was_asked(
    folders: PluginFolders, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not disappear; under the strict variable they are fatal."""
    _install(folders)
    assert [target.label for target in find_targets("alpha")] == ["alpha (My-Layers 1.2)"]
    assert ["bad-layers 0.1" in record.getMessage() for record in caplog.records] == [True]
    monkeypatch.setenv("METRALE_STRICT_PLUGINS", "1")
    with pytest.raises(PluginLoadError):
        find_targets("alpha")


def test_target_knows_its_class_and_makes_its_example(folders: PluginFolders) -> None:
    """The class is known where the example is one."""
    folders.install("good", _TWO)
    alpha, beta = find_targets("good")
    assert alpha.layer_class is None
    assert beta.layer_class is not None
    assert type(alpha.make()) is beta.layer_class
    assert type(beta.make()) is beta.layer_class
    assert (alpha.makeable, beta.makeable) == (None, None)


def test_layer_comes_before_plugin_and_plugin_before_distribution(folders: PluginFolders) -> None:
    """The narrowest meaning of a name is taken."""
    folders.install("name", registers("name", "other"), distribution="dist-a")
    folders.install("entry", registers("third"), distribution="name")
    folders.install("dist-a", registers("fourth"), distribution="dist-b")
    found = {text: [target.label for target in find_targets(text)] for text in ("name", "dist-a", "dist_b")}
    assert found == {
        "name": ["name (dist-a 1.0)"],
        "dist-a": ["fourth (dist-b 1.0)"],
        "dist_b": ["fourth (dist-b 1.0)"],
    }


def test_failed_plugin_of_a_distribution_is_not_passed_over(folders: PluginFolders) -> None:
    """Who asks for the whole distribution is told that a part of it failed."""
    good, bad = folders.module(_TWO), folders.module("raise ImportError('half of it')")
    folders.metadata("dist", {"good": f"{good}:register", "bad": f"{bad}:register"})
    folders.install("apart", registers("apart"))
    assert len(find_targets("good")) == 2
    assert len(find_targets("dist-apart")) == 1
    with pytest.raises(PluginFailedError, match="half of it"):
        find_targets("dist")


@pytest.mark.parametrize("text", ["nothing", "", "a b"])
def test_unknown_target_lists_what_was_found(folders: PluginFolders, text: str) -> None:
    """Whatever the name looks like."""
    folders.install("good", _TWO)
    with pytest.raises(UnknownPluginError, match="Found are: alpha, beta"):
        find_targets(text)


def _plugin(folders: PluginFolders, example: str) -> Target:
    folders.install("good", f"def register(r): r.add('x', print, example={example})")
    return find_targets("x")[0]


@pytest.mark.parametrize("error", ["SystemExit('gone')", "ValueError('gone')"])
def test_example_that_raises_is_an_error_of_ours(folders: PluginFolders, error: str) -> None:
    """It names the layer, the type and the text."""
    target = _plugin(folders, f"lambda: (_ for _ in ()).throw({error})")
    with pytest.raises(ConfigurationError, match=r"x \(dist-good 1\.0\).*making its example raised \w+: gone"):
        target.make()


def test_example_that_needs_arguments_says_so_before_it_is_made(folders: PluginFolders) -> None:
    """So that `check` can go on without an instance."""
    target = _plugin(folders, "lambda size: size")
    assert target.makeable is not None
    assert "cannot be made without arguments (missing a required argument: 'size')" in target.makeable
    with pytest.raises(ConfigurationError, match=r"'x \(dist-good 1\.0\)' cannot be made without arguments"):
        target.make()


def test_class_is_found_without_making_it(folders: PluginFolders) -> None:
    """A class that needs arguments is still a class to look at; a function is none."""
    module = folders.module("class A:\n    class B:\n        def __init__(self, n): ...\ndef f(): return 5\n")
    (target,) = find_targets(f"{module}:A.B")
    assert target.label == f"{module}:A.B"
    assert target.layer_class is vars(sys.modules[module])["A"].B
    assert target.makeable is not None
    (function,) = find_targets(f"{module}:f")
    assert function.layer_class is None
    assert function.make() == 5


def test_plugins_are_checked_by_layer_by_plugin_and_by_distribution(
    folders: PluginFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each layer that a name stands for is audited by its example; one finding is enough for status 1."""
    faulty = _TWO.replace("def small", "class Faulty(Layer):\n    def is_ssm_layr(self): return True\ndef small", 1)
    folders.install("good", faulty.replace("example=Layer", "example=Faulty"), distribution="My-Layers", version="1.2")
    for target, statuses in (("alpha", [0]), ("beta", [1]), ("good", [0, 1]), ("my_layers", [0, 1])):
        assert main(["check", target, "--json"]) == max(statuses)
        checked = json.loads(capsys.readouterr().out)["checked"]
        assert [len(one["findings"]) for one in checked] == statuses
        assert all("(My-Layers 1.2)" in one["layer"] for one in checked)


def test_check_of_a_failed_plugin_quotes_the_cause(folders: PluginFolders, capsys: pytest.CaptureFixture[str]) -> None:
    """What failed cannot be checked, and is not taken for sound."""
    _install(folders)
    assert main(["check", "bad"]) == 2
    assert "no [/such] thing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["plugins"], ["check", "talks"], ["explain", "talks"]], ids=lambda given: given[0]
)
def test_what_a_plugin_prints_goes_to_stderr(
    arguments: list[str], folders: PluginFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is printed while plugins are imported and called, stdout is one JSON document."""
    folders.install("talks", "print('imported')" + _TWO + "    print('called')\n")
    assert main([*arguments, "--json"]) == 0
    told = capsys.readouterr()
    json.loads(told.out)
    assert told.err.splitlines()[:2] == ["imported", "called"]
