# SPDX-License-Identifier: MIT OR Apache-2.0
"""Plugins are found once each, whatever lies on the path, and broken metadata is a failure of its own distribution."""

from __future__ import annotations

import importlib.metadata
import itertools
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from metrale_caps.errors import PluginConflictError, PluginDeclarationError, PluginFailedError
from metrale_caps.plugins import LayerPlugins, PluginFailure, Stage, load_plugins
from tests.core.plugin_folders import PluginFolders, group, plugin_folders, registers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[PluginFolders]:
    """Folders of plugins on the path."""
    with plugin_folders(tmp_path / "path") as made:
        yield made


def _failure(plugins: LayerPlugins) -> PluginFailure:
    (failure,) = plugins.failures
    assert failure.stage is Stage.FIND
    return failure


def _symlink(folders: PluginFolders, module: str) -> None:
    _ = module
    link = folders.root / "lib64"
    link.symlink_to(folders.folder(), target_is_directory=True)
    sys.path.append(str(link))


def _same_folder(folders: PluginFolders, module: str) -> None:
    _ = module
    sys.path.append(str(folders.folder()))


def _egg_info_beside(folders: PluginFolders, module: str) -> None:
    folders.metadata("dist-plugin", {"plugin": f"{module}:register"}, kind="egg-info")


def _editable(folders: PluginFolders, module: str) -> None:
    folders.metadata("Dist.Plugin", {"plugin": f"{module}:register"}, kind="egg-info", folder="source")


def _listed_twice(folders: PluginFolders, module: str) -> None:
    info = folders.folder() / "dist_plugin-1.0.dist-info" / "entry_points.txt"
    info.write_text(group({"plugin": f"{module}:register"}) * 2)


@pytest.mark.parametrize("double", [_symlink, _same_folder, _egg_info_beside, _editable, _listed_twice])
@pytest.mark.parametrize("backwards", [False, True])
def test_entry_point_that_is_seen_twice_is_one(
    folders: PluginFolders,
    double: Callable[[PluginFolders, str], None],
    backwards: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is called once, and nobody hears of it."""
    module = folders.install("plugin", registers("layer"))
    double(folders, module)
    if backwards:
        sys.path.reverse()
    with caplog.at_level(logging.DEBUG):
        plugins = load_plugins(strict=True)
    assert [str(origin) for origin in plugins.plugins] in (["plugin (dist-plugin 1.0)"], ["plugin (Dist.Plugin 1.0)"])
    assert list(plugins.layers) == ["layer"]
    assert vars(sys.modules[module])["calls"] == [1]
    assert not [record for record in caplog.records if record.name.startswith("metrale_caps")]


def test_first_on_the_path_wins_because_it_is_the_one_imported(folders: PluginFolders) -> None:
    """Of one distribution at two places; what only the other one declares is not used either."""
    for folder, version in (("user", "2.0"), ("system", "1.0")):
        module = folders.module(registers(f"layer_{folder}"), folder)
        entries = {"plugin": f"{module}:register", f"old_{folder}": f"{module}:register_old"}
        entries = entries if folder == "system" else {"plugin": f"{module}:register"}
        folders.metadata("dist", entries, version=version, folder=folder)
    plugins = load_plugins(strict=True)
    assert [(origin.plugin, origin.version) for origin in plugins.plugins] == [("plugin", "2.0")]
    folders.put_on_path(folders.folder("system"), folders.folder("user"))
    plugins = load_plugins()
    assert [(origin.plugin, origin.version) for origin in plugins.plugins] == [("plugin", "1.0")]
    assert [failure.origin.plugin for failure in plugins.failures] == ["old_system"]


@pytest.mark.parametrize("folder", ["site", "source"])
def test_metadata_without_entries_hide_nothing(folders: PluginFolders, folder: str) -> None:
    """A leftover that declares nothing, first on the path, leaves the plugin visible."""
    folders.metadata("dist-plugin", None, version="0.1", folder="source", kind="egg-info")
    folders.metadata("dist-plugin", "[console_scripts]\nx = y:z\n", version="0.1", folder=folder)
    folders.install("plugin", registers("layer"))
    assert list(load_plugins(strict=True).layers) == ["layer"]


def test_in_one_folder_the_newest_dist_info_counts(folders: PluginFolders) -> None:
    """Whatever order the file system lists them in."""
    modules = {version: folders.module(registers(f"layer{version}")) for version in ("0.9", "0.10", "3.0")}
    for version, kind in (("0.9", "dist-info"), ("0.10", "dist-info"), ("3.0", "egg-info")):
        entries = {"plugin": f"{modules[version]}:register"}
        folders.metadata("dist", entries, version=version, kind=kind)
    assert list(load_plugins(strict=True).layers) == ["layer0.10"]


@pytest.mark.parametrize("same_target", [False, True])
def test_entry_point_of_two_distributions_is_a_conflict_in_any_order(folders: PluginFolders, same_target: bool) -> None:
    """Neither is imported, each names all with their versions, and others go on."""
    first = folders.install("plugin", registers("a"), distribution="dist-a", version="1.5", folder="a")
    second = folders.module(registers("b"), "b")
    entries = {"plugin": f"{first if same_target else second}:register"}
    folders.metadata("dist-b", entries, version="2.5", folder="b")
    folders.install("other", registers("fine"), folder="c")
    said: set[tuple[str, ...]] = set()
    for order in itertools.permutations("abc"):
        folders.put_on_path(*map(folders.folder, order))
        plugins = load_plugins()
        assert [failure.stage for failure in plugins.failures] == [Stage.FIND] * 2
        assert [failure.origin.distribution for failure in plugins.failures] == ["dist-a", "dist-b"]
        assert list(plugins.layers) == ["fine"]
        said.add(tuple(map(str, plugins.failures)))
        with pytest.raises(PluginFailedError, match="'plugin' is claimed by") as caught:
            plugins.layer("plugin")
        assert "plugin (dist-a 1.5) and plugin (dist-b 2.5)" in str(caught.value)
        assert isinstance(caught.value.__cause__, PluginConflictError)
    assert len(said) == 1
    assert not {first, second} & sys.modules.keys()


_MALFORMED = [
    "nonsense",
    "broken",
    "broken =",
    "= json:dumps",
    "broken = not a module",
    "broken = a:b:c",
    "broken = 3.:x",
    "[broken",
]


@pytest.mark.parametrize("line", _MALFORMED)
def test_malformed_entry_is_a_failure_and_its_neighbours_are_not(folders: PluginFolders, line: str) -> None:
    """The line is quoted with what was expected, and attributed."""
    module = folders.module(registers("layer"))
    folders.metadata("dist", f"[metrale_caps.layers]\n{line}\nfine = {module}:register\n", version="4.0")
    plugins = load_plugins()
    failure = _failure(plugins)
    assert (failure.origin.distribution, failure.origin.version) == ("dist", "4.0")
    assert isinstance(failure.cause, PluginDeclarationError)
    assert f"has the malformed line {line!r}; expected a line `name = package.module:function`" in str(failure)
    assert list(plugins.layers) == ["layer"]
    name = line.partition("=")[0].strip()
    if name:
        with pytest.raises(PluginFailedError, match="malformed"):
            plugins.layer(name)


def test_malformed_entries_of_other_groups_are_not_ours(folders: PluginFolders) -> None:
    """Nothing is said of them, and ours are found behind them."""
    module = folders.module(registers("layer"))
    folders.metadata("dist", f"stray\n[other]\nnonsense\n= x\n[metrale_caps.layers]\nfine = {module}:register\n")
    folders.metadata("another", "[other\nnonsense")
    assert list(load_plugins(strict=True).layers) == ["layer"]


def test_what_the_format_allows_is_taken(folders: PluginFolders) -> None:
    """Comments, blank lines, white space, extras, a byte order mark, and carriage returns."""
    module = folders.module(registers("layer"))
    text = f"\ufeff[ metrale_caps.layers ]\r\n# one\r\n; two\r\n\r\n  fine={module} : register [cuda, x]\r\n[next]\r\na"
    folders.metadata("dist", text)
    assert list(load_plugins(strict=True).layers) == ["layer"]


def test_header_of_the_group_that_is_not_closed_is_a_failure(folders: PluginFolders) -> None:
    """The plugin does not just vanish."""
    folders.metadata("dist", "[metrale_caps.layers\nplugin = json:dumps\n")
    assert "dist 1.0: its entry_points.txt has the malformed line '[metrale_caps.layers'" in str(
        _failure(load_plugins())
    )


def test_name_that_one_distribution_gives_to_two_things_is_a_failure(folders: PluginFolders) -> None:
    """Both values are quoted, and neither is used."""
    first, second = folders.module(registers("a")), folders.module(registers("b"))
    folders.metadata("dist", f"[metrale_caps.layers]\nx = {first}:register\nx = {second}:register\n")
    plugins = load_plugins()
    assert len(plugins.failures) == 2
    assert not plugins.layers
    with pytest.raises(PluginFailedError, match=f"different values: {first}:register, {second}:register"):
        plugins.layer("x")


def test_module_without_a_function_is_said_to_be_one(folders: PluginFolders) -> None:
    """It is well formed, and no function."""
    folders.metadata("dist", {"plugin": folders.module(registers("a"))})
    (failure,) = load_plugins().failures
    assert failure.stage is Stage.VALIDATE
    assert "is a module and cannot be called" in str(failure)


@pytest.mark.parametrize("metadata", [None, "", "Version: 9\n", "Name:\nVersion: 9\n", "no header at all"])
@pytest.mark.parametrize("kind", ["dist-info", "egg-info"])
def test_distribution_without_a_name_is_a_failure(folders: PluginFolders, metadata: str | None, kind: str) -> None:
    """It is told by the name of its folder; asking for its plugin quotes it; others go on."""
    module = folders.module(registers("layer"))
    entries = {"plugin": f"{module}:register"}
    folders.metadata("dist-x", entries, version="7.1", metadata=metadata, kind=kind)
    folders.install("other", registers("fine"))
    plugins = load_plugins()
    failure = _failure(plugins)
    assert failure.origin.distribution == "dist_x"
    assert "its distribution lack a name" in str(failure)
    assert list(plugins.layers) == ["fine"]
    with pytest.raises(PluginFailedError, match="lack a name"):
        plugins.layer("plugin")


def test_nameless_distributions_without_plugins_are_not_ours(folders: PluginFolders) -> None:
    """Leftovers of other packages are common."""
    folders.metadata("leftover", None, metadata=None)
    folders.metadata("other", "[console_scripts]\nx = y:z\n", metadata=None)
    load_plugins(strict=True)


def test_missing_version_is_unknown(folders: PluginFolders) -> None:
    """The plugin is usable all the same."""
    module = folders.module(registers("layer"))
    entries = {"plugin": f"{module}:register"}
    folders.metadata("dist", entries, metadata="Name: {name}\n", kind="egg-info")
    assert str(load_plugins(strict=True).layer("layer").origin) == "plugin (dist unknown)"


def _bytes(info: Path) -> None:
    (info / "entry_points.txt").write_bytes(b"[metrale_caps.layers]\nx = \xff\xfe:y\n")


def _folder(info: Path) -> None:
    (info / "entry_points.txt").mkdir()


@pytest.mark.parametrize("break_it", [_bytes, _folder])
def test_unreadable_entry_points_are_a_failure_of_their_distribution(
    folders: PluginFolders, break_it: Callable[[Path], None]
) -> None:
    """With its name and version, though no plugin's name is known; others go on."""
    break_it(folders.metadata("broken", None, version="6.0"))
    folders.install("other", registers("fine"))
    plugins = load_plugins()
    assert str(_failure(plugins)).startswith("broken 6.0: ")
    assert isinstance(_failure(plugins).cause, OSError | UnicodeDecodeError)
    assert list(plugins.layers) == ["fine"]
    with pytest.raises(KeyError, match=r"failed are: broken 6\.0"):
        plugins.layer("x")


def test_malformed_entry_is_no_rival_of_a_good_one_of_that_name(folders: PluginFolders) -> None:
    """A broken distribution takes no other one's plugin down."""
    folders.metadata("broken", {"x": "not a module"})
    folders.install("x", registers("fine"))
    plugins = load_plugins()
    assert _failure(plugins).origin.distribution == "broken"
    assert list(plugins.layers) == ["fine"]


class _Foreign(importlib.metadata.Distribution):
    """A distribution that lies in no folder."""

    def __init__(self, name: str, entries: str | None) -> None:
        self._files = {"METADATA": f"Name: {name}\nVersion: 8\n", "entry_points.txt": entries}

    @override
    def read_text(self, filename: Any) -> str | None:
        return self._files.get(filename)

    @override
    def locate_file(self, path: Any) -> Any:
        raise NotImplementedError


class _Finder:
    """Finds what it was given, and then breaks where it was told to."""

    def __init__(self, *found: object, error: BaseException | None = None) -> None:
        self._found = found
        self._error = error

    def find_spec(self, *_arguments: object) -> None:
        return None

    def invalidate_caches(self) -> None:
        return None

    def find_distributions(self, _context: Any) -> Iterator[object]:
        yield from self._found
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("error", [ValueError("broken finder"), SystemExit("broken finder")])
@pytest.mark.parametrize("first", [False, True])
def test_finder_that_breaks_is_a_failure_and_what_was_found_stays(
    folders: PluginFolders, error: BaseException, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a distribution of its that has no attribute that one has."""
    folders.install("other", registers("fine"))
    finder = _Finder(object(), object(), error=error)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path] if first else [*sys.meta_path, finder])
    plugins = load_plugins()
    assert list(plugins.layers) == ["fine"]
    assert [failure.stage for failure in plugins.failures] == [Stage.FIND] * 3
    assert [type(failure.cause) for failure in plugins.failures].count(AttributeError) == 2
    assert sum(f"{type(error).__name__}: broken finder" in str(failure) for failure in plugins.failures) == 1


def test_distributions_of_other_finders_are_as_good(folders: PluginFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that lie in no folder too, with plugins and without."""
    entries = group({"plugin": f"{folders.module(registers('fine'))}:register"})
    finder = _Finder(_Foreign("far", entries), _Foreign("plain", None))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    assert str(load_plugins(strict=True).layer("fine").origin) == "plugin (far 8)"


def test_interrupt_while_plugins_are_found_passes(folders: PluginFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    """As everywhere."""
    folders.folder()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, _Finder(error=KeyboardInterrupt())])
    with pytest.raises(KeyboardInterrupt):
        load_plugins()


def test_nothing_is_remembered_between_two_loads(folders: PluginFolders) -> None:
    """What was installed, removed or set right since is seen."""
    module = folders.install("first", "raise ValueError")
    before = load_plugins()
    assert list(before.layers) == []
    (folders.folder() / f"{module}.py").write_text(registers("first"))
    folders.install("second", registers("second"))
    assert list(load_plugins().layers) == ["first", "second"]
    assert list(before.layers) == []
    folders.put_on_path()
    assert not load_plugins().layers


def test_importing_the_module_loads_no_machinery() -> None:
    """What finds plugins is imported when plugins are asked for."""
    program = (
        "import sys; import metrale_caps.plugins; "
        "sys.exit(str({'importlib.metadata', 'logging', 'email'} & sys.modules.keys() or ''))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False, env=environment, timeout=60
    )
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("1.0rc1", "1.0"),
        ("1.0.dev3", "1.0a1"),
        ("1.0a2", "1.0b1"),
        ("1.0", "1.0.post1"),
        ("1.0.post1", "1.0.1"),
        ("1.0rc2", "1.0rc10"),
        ("1.9", "1.10"),
        ("1.0", "1.0+local"),
    ],
)
def test_metadata_of_the_newer_version_count(older: str, newer: str, folders: PluginFolders) -> None:
    """What a broken upgrade left in the folder is not taken for what is imported; a release follows its candidates."""
    for version in (older, newer):
        folders.install("sound", registers("layer"), distribution="twice", version=version)
    plugins = load_plugins()
    found = [*plugins.plugins, *(failure.origin for failure in plugins.failures)]
    assert [origin.version for origin in found] == [newer]
