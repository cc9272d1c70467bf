# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds what the installed distributions declare in an entry-point group: each declaration once, faults included.

`importlib.metadata.entry_points` is not enough: one distribution with broken metadata makes it raise for all, what it
does with a malformed entry differs between versions of Python, and where one distribution is seen at several places,
a leftover without entries may hide the one that has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from metrale_caps.errors import PluginConflictError, PluginDeclarationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.metadata import Distribution

_T = TypeVar("_T")

UNKNOWN = "unknown"
"""Stands for a distribution's name or version where its metadata lack it."""

_FILE = "entry_points.txt"
_EXPECTED = "expected a line `name = package.module:function`"


@dataclass(frozen=True, slots=True)
class PluginOrigin:
    """Where a plugin comes from.

    Attributes:
        plugin: name of its entry point; empty where a distribution's entry points cannot be read at all.
        value: what the entry point names, `package.module:function`.
        distribution: name of the distribution.
        version: of the distribution.
    """

    plugin: str
    value: str
    distribution: str
    version: str

    @override
    def __str__(self) -> str:
        package = f"{self.distribution} {self.version}"
        return f"{self.plugin} ({package})" if self.plugin else package


@dataclass(frozen=True, slots=True)
class Declaration:
    """An entry point as it was declared.

    Attributes:
        origin: who declares it.
        fault: why it cannot be used, or None.
    """

    origin: PluginOrigin
    fault: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Caught:
    """What foreign code raised instead of returning."""

    cause: BaseException


@dataclass(frozen=True, slots=True)
class _Place:
    """A distribution at one place of the path, with what it declares; `order` sorts the places of one distribution."""

    order: tuple[int, bool]
    version: str
    declarations: tuple[Declaration, ...]


def attempt(run: Callable[[], _T]) -> _T | Caught:
    """Return what foreign code returns, or what it raised, `SystemExit` included; only a user's interrupt passes."""
    try:
        return run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the code is a stranger's, and nothing of it may end the host
        return Caught(error)


def normalized(distribution: str) -> str:
    """Return a distribution's name as it is compared: case and the kind of separator do not matter."""
    import re

    return re.sub(r"[-_.]+", "-", distribution).lower()


def split_value(value: str) -> tuple[str, str] | None:
    """Return the module and the dotted name that an entry point's value names; None if it is malformed."""
    import re

    names = r"\w+(?:\.\w+)*"
    match = re.fullmatch(rf"({names})\s*(?::\s*({names})\s*)?(?:\[[^\]]*\]\s*)?", value)
    return None if match is None else (match[1], match[2] or "")


def find_declarations(group: str) -> list[Declaration]:
    """Return what is declared in a group, sorted by name; the order of the path decides nothing but shadowing.

    A distribution found at several places counts once, as the one that is imported: the first on the path that
    declares something in the group, and in one folder dist-info before egg-info. A name that two distributions
    declare is a fault of both.
    """
    places: dict[str, list[_Place]] = {}
    faulty: list[Declaration] = []
    folders: dict[str, int] = {}
    for found in _distributions():
        if isinstance(found, Caught):
            faulty.append(Declaration(PluginOrigin("", "", UNKNOWN, UNKNOWN), found.cause))
            continue
        declarations = _declarations(found, group)
        if declarations:
            origin = declarations[0].origin
            place = _Place(_order(found, folders), origin.version, declarations)
            name = origin.distribution
            places.setdefault(f"? {len(places)}" if name == UNKNOWN else normalized(name), []).append(place)
    declared = [declaration for same in places.values() for declaration in _first(same).declarations]
    return _without_conflicts(sorted([*declared, *faulty], key=lambda each: (each.origin.plugin, str(each.origin))))


def _distributions() -> Iterator[Distribution | Caught]:
    import importlib.metadata

    walk = iter(importlib.metadata.distributions())
    broken = False
    while (distribution := attempt(lambda: next(walk, None))) is not None:
        yield distribution
        if broken and isinstance(distribution, Caught):  # it would raise for ever
            return
        broken = isinstance(distribution, Caught)  # this finder has ended, and the next one has its turn


def _declarations(distribution: Distribution, group: str) -> tuple[Declaration, ...]:
    text = attempt(lambda: _text(distribution))
    if isinstance(text, Caught):
        _, name, version = _identity(distribution)
        return (Declaration(PluginOrigin("", "", name, version), text.cause),)
    entries = _entries(text or "", group)
    if not entries:
        return ()
    named, name, version = _identity(distribution)
    nameless = None if named else "the metadata of its distribution lack a name; install it again"
    distinct = {(plugin, value): malformed for plugin, value, malformed in entries}
    declarations: list[Declaration] = []
    for (plugin, value), malformed in distinct.items():
        values = [other_value for other, other_value in distinct if other == plugin]
        twice = f"{plugin!r} is declared with different values: {', '.join(values)}" if len(values) > 1 else None
        fault = malformed or nameless or twice
        error = None if fault is None else PluginDeclarationError([fault])
        declarations.append(Declaration(PluginOrigin(plugin, value, name, version), error))
    return tuple(declarations)


def _text(distribution: Distribution) -> str | None:
    text = distribution.read_text(_FILE)
    folder: Any = getattr(distribution, "_path", None)
    if text is not None or folder is None:
        return text
    try:  # `read_text` takes a file that may not be read for one that is not there
        return (folder / _FILE).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, KeyError):
        return None


def _entries(text: str, group: str) -> list[tuple[str, str, str | None]]:
    """Return name, value and fault of each entry of the group."""
    entries: list[tuple[str, str, str | None]] = []
    section = ""
    for line in map(str.strip, text.lstrip("\ufeff").splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == group and line and line[0] not in "#;":
            name, _, value = (part.strip() for part in line.partition("="))
            well_formed = name and split_value(value) is not None
            fault = None if well_formed else f"its {_FILE} has the malformed line {line!r}; {_EXPECTED}"
            entries.append((name, value, fault))
        elif line.startswith("[") and group in line:
            entries.append(("", "", f"its {_FILE} has the malformed line {line!r}; expected `[{group}]`"))
    return entries


def _identity(distribution: Distribution) -> tuple[bool, str, str]:
    """Return whether a distribution has a name, and its name and version as well as they can be told."""
    import re

    folder = str(getattr(getattr(distribution, "_path", None), "name", ""))
    guess = re.fullmatch(r"([^-]+)-?(.*?)(?:-py.*)?\.(?:dist|egg)-info", folder)
    guessed_name, guessed_version = guess.groups() if guess else ("", "")
    name, version = _metadata(distribution, "Name"), _metadata(distribution, "Version")
    return bool(name), name or guessed_name or UNKNOWN, version or guessed_version or UNKNOWN


def _metadata(distribution: Distribution, field: str) -> str:
    def read() -> str:
        metadata = distribution.metadata
        return str(metadata[field]).strip() if field in metadata else ""

    found = attempt(read)
    return "" if isinstance(found, Caught) else found


def _order(distribution: Distribution, folders: dict[str, int]) -> tuple[int, bool]:
    folder = attempt(lambda: str(distribution.locate_file("")))
    modern = attempt(lambda: bool(distribution.read_text("METADATA")))
    key = f"{len(folders)}" if isinstance(folder, Caught) else folder
    return folders.setdefault(key, len(folders)), modern is not True


def _first(same: list[_Place]) -> _Place:
    """Return the place that is imported; the highest version where an upgrade left the old metadata in the folder."""
    return min(sorted(same, key=lambda place: _as_ordered(place.version), reverse=True), key=lambda place: place.order)


def _as_ordered(version: str) -> list[tuple[int, int, str]]:
    """Return a version as it is compared: what leads to a release before it, what follows it after it."""
    import re

    order: list[tuple[int, int, str]] = []
    for part in re.findall(r"\d+|[a-z]+|\+", version.lower()):
        if part.isdigit():
            order.append((1, int(part), ""))
        else:
            order.append((-3 if part == "dev" else 0 if part in {"post", "rev", "r", "+"} else -2, 0, part))
    return [*order, (-1, 0, "")]


def _without_conflicts(declarations: list[Declaration]) -> list[Declaration]:
    usable: dict[str, list[PluginOrigin]] = {}
    for declaration in declarations:
        if declaration.fault is None:
            usable.setdefault(declaration.origin.plugin, []).append(declaration.origin)
    return [
        Declaration(each.origin, PluginConflictError("entry point", each.origin.plugin, usable[each.origin.plugin]))
        if each.fault is None and len(usable[each.origin.plugin]) > 1
        else each
        for each in declarations
    ]
