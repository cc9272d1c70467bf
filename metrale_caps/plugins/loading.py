# SPDX-License-Identifier: MIT OR Apache-2.0
"""Loads plugins one by one; each is used whole or not at all, and what fails is kept with its cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from metrale_caps.errors import (
    PluginConflictError,
    PluginDeclarationError,
    PluginFailedError,
    PluginLoadError,
    RegistrarClosedError,
    UnknownPluginError,
)
from metrale_caps.plugins.entry_points import Caught, PluginOrigin, attempt, find_declarations, split_value
from metrale_caps.plugins.registration import check_target, registration_faults

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GROUP = "metrale_caps.layers"
"""The entry-point group."""

STRICT_VARIABLE = "METRALE_STRICT_PLUGINS"
"""The environment variable that makes failures fatal when it is 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSource:
    """What a layer is built from: one decoder block of a `transformers` model.

    Attributes:
        block: the model's own module for this block, with its weights.
        config: the model's configuration.
        index: position in the stack.
        context_tokens: positions that the engine prepares for.
    """

    block: Any
    config: Any
    index: int
    context_tokens: int


@dataclass(slots=True)
class _Registered:
    """What a plugin has registered so far; not the plugin's to see."""

    origin: PluginOrigin
    layers: list[tuple[object, object, object]] = field(default_factory=list[tuple[object, object, object]])
    closed: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _, _ in self.layers if type(name) is str))


class LayerRegistrar:
    """Takes the layers of one plugin, while the plugin's function runs."""

    __slots__ = ("_registered",)

    def __init__(self, registered: _Registered) -> None:
        self._registered = registered

    def add(
        self, name: str, build: Callable[[BlockSource], object | None], /, *, example: Callable[[], object]
    ) -> None:
        """Register a layer. It counts once the plugin's function has returned and everything in it is found sound.

        Args:
            name: letters, digits, `_`, `.` and `-`; no other plugin may register it.
            build: makes the layer for a block, or returns None to leave the block to the engine's own layer.
            example: makes a small layer without arguments, for `metrale-caps check`, `explain` and tests.

        Raises:
            RegistrarClosedError: the plugin's function has returned, or has raised.
        """
        if self._registered.closed:
            raise RegistrarClosedError(self._registered.origin, name)
        self._registered.layers.append((name, build, example))


class Stage(Enum):
    """Where a plugin failed."""

    FIND = "find"
    """Its distribution's metadata or its entry point cannot be used as they are."""
    IMPORT = "import"
    """Its module cannot be imported, or lacks what the entry point names."""
    CALL = "call"
    """Its function raised."""
    VALIDATE = "validate"
    """What the entry point names, or what was registered, is not what it has to be."""


@dataclass(frozen=True, slots=True)
class PluginLayer:
    """A layer that a plugin registered.

    Attributes:
        name: the layer's name.
        build: makes the layer for a block, or returns None to leave the block to the engine's own layer.
        example: makes a small layer without arguments.
        origin: the plugin.
    """

    name: str
    build: Callable[[BlockSource], object | None]
    example: Callable[[], object]
    origin: PluginOrigin


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """A plugin that is not used, and why. `str()` of it is one sentence.

    Attributes:
        origin: the plugin.
        stage: where it failed.
        cause: what was raised; of the plugin's own or of ours.
        attempted: names of the layers that it had tried to register.
    """

    origin: PluginOrigin
    stage: Stage
    cause: BaseException
    attempted: tuple[str, ...] = ()

    @override
    def __str__(self) -> str:
        why = describe_cause(self.cause)
        if self.stage is Stage.IMPORT:
            return f"{self.origin}: importing {self.origin.value!r} raised {why}"
        if self.stage is Stage.CALL:
            had = f"; what it had registered is dropped: {', '.join(self.attempted)}" if self.attempted else ""
            return f"{self.origin}: calling {self.origin.value!r} raised {why}{had}"
        return f"{self.origin}: {why}"


@dataclass(frozen=True, slots=True)
class LayerPlugins:
    """The plugins that were found, good and failed.

    Attributes:
        layers: the layers of the good ones by name, sorted.
        failures: the failed ones, with stage and cause.
        plugins: the good ones.
    """

    layers: Mapping[str, PluginLayer]
    failures: tuple[PluginFailure, ...]
    plugins: tuple[PluginOrigin, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", MappingProxyType(dict(self.layers)))

    def layer(self, name: str) -> PluginLayer:
        """Return the layer of that name.

        Raises:
            PluginFailedError: a plugin of that name failed, or one that had tried to register such a layer; it
                quotes the cause and is raised from it.
            UnknownPluginError: nothing has that name; what was found is listed.
        """
        found = self.layers.get(name)
        if found is not None:
            return found
        self.refuse_failed(name)
        raise self.unknown(name)

    def refuse_failed(self, name: str) -> None:
        """Do nothing, unless a plugin of that name, or one that tried to register such a layer, failed.

        Raises:
            PluginFailedError: it did; it quotes the cause and is raised from it.
        """
        called = [failure for failure in self.failures if name and name == failure.origin.plugin]
        for failure in called or [failure for failure in self.failures if name in failure.attempted]:
            raise PluginFailedError(name, failure) from failure.cause

    def unknown(self, name: str) -> UnknownPluginError:
        """Return the error for a name that nothing has; it lists what was found and what failed."""
        import difflib

        failed = [str(failure.origin) for failure in self.failures]
        advice = [f"failed are: {', '.join(failed)}"] if failed else []
        for origin in self.plugins:
            if origin.plugin == name:
                layers = [layer.name for layer in self.layers.values() if layer.origin == origin]
                advice.insert(0, f"{origin} is a plugin, whose layers are {', '.join(layers)}")
        if not self.layers:
            advice.append(f"plugins are found by the entry-point group {GROUP!r} of installed distributions")
        names = [*self.layers, *(failure.origin.plugin for failure in self.failures)]
        nearest = difflib.get_close_matches(name, names, 1)
        return UnknownPluginError(name, tuple(self.layers), nearest[0] if nearest else None, "; ".join(advice))


def load_plugins(*, strict: bool = False) -> LayerPlugins:
    """Find and try every installed plugin; each failure is logged as a warning and kept.

    Args:
        strict: failures are fatal, once all plugins were tried. `METRALE_STRICT_PLUGINS=1` has the same effect.

    Raises:
        PluginLoadError: under `strict`, if any plugin failed.
    """
    plugins = collect_plugins()
    report_failures(plugins, strict=strict)
    return plugins


def report_failures(plugins: LayerPlugins, *, strict: bool = False) -> None:
    """Log every failure as a warning.

    Raises:
        PluginLoadError: failures are fatal, and there is one; it carries all of them.
    """
    if not plugins.failures:
        return
    import logging
    import os

    for failure in plugins.failures:
        logging.getLogger("metrale_caps.plugins").warning("plugin left out: %s", failure)
    if strict or os.environ.get(STRICT_VARIABLE) == "1":
        causes = [failure.cause for failure in plugins.failures]
        cause = causes[0] if len(causes) == 1 else BaseExceptionGroup("plugins failed", causes)
        raise PluginLoadError(plugins.failures) from cause


def collect_plugins() -> LayerPlugins:
    """Find and try every installed plugin as `load_plugins` does, for a caller that reports the failures itself.

    Plugins are tried in the order of their names, so that neither the order of the path nor that of a folder's files
    makes a difference.
    """
    failures: list[PluginFailure] = []
    loaded: dict[PluginOrigin, tuple[PluginLayer, ...]] = {}
    for declaration in find_declarations(GROUP):
        if declaration.fault is not None:
            failures.append(PluginFailure(declaration.origin, Stage.FIND, declaration.fault))
            continue
        outcome = _try_plugin(declaration.origin)
        if isinstance(outcome, PluginFailure):
            failures.append(outcome)
        else:
            loaded[declaration.origin] = outcome
    for conflict in _conflicts(loaded):
        del loaded[conflict.origin]
        failures.append(conflict)
    layers = sorted((layer for layers in loaded.values() for layer in layers), key=lambda layer: layer.name)
    return LayerPlugins({layer.name: layer for layer in layers}, tuple(failures), tuple(loaded))


def describe_cause(cause: BaseException) -> str:
    """Return what an exception says, on one line: its type and text; the text alone of a fault that we found."""
    text = attempt(lambda: str(cause))
    if isinstance(text, Caught):
        return f"{type(cause).__name__}, whose text cannot be shown"
    line = " ".join(text.encode("utf-8", "backslashreplace").decode("utf-8").split())
    if isinstance(cause, PluginDeclarationError | PluginConflictError):
        return line
    return f"{type(cause).__name__}: {line}" if line else type(cause).__name__


def _try_plugin(origin: PluginOrigin) -> tuple[PluginLayer, ...] | PluginFailure:
    target = attempt(lambda: _import(origin.value))
    if isinstance(target, Caught):
        return PluginFailure(origin, Stage.IMPORT, target.cause)
    unfit = attempt(lambda: check_target(origin.value, target))
    if isinstance(unfit, Caught):
        return PluginFailure(origin, Stage.VALIDATE, unfit.cause)
    registered = _Registered(origin)
    returned = attempt(lambda: cast("Any", target)(LayerRegistrar(registered)))
    registered.closed = True
    if isinstance(returned, Caught):
        return PluginFailure(origin, Stage.CALL, returned.cause, registered.names)
    layers = attempt(lambda: _checked_layers(registered, returned))
    if isinstance(layers, Caught):
        return PluginFailure(origin, Stage.VALIDATE, layers.cause, registered.names)
    return layers


def _import(value: str) -> object:
    import importlib

    module, names = split_value(value) or (value, "")
    found: Any = importlib.import_module(module)
    for name in filter(None, names.split(".")):
        found = getattr(found, name)
    return found


def _checked_layers(registered: _Registered, returned: object) -> tuple[PluginLayer, ...]:
    faults = registration_faults(registered.layers, returned)
    if faults:
        raise PluginDeclarationError(faults)
    layers = cast("Sequence[tuple[str, Any, Any]]", registered.layers)
    return tuple(PluginLayer(name, build, example, registered.origin) for name, build, example in layers)


def _conflicts(loaded: Mapping[PluginOrigin, Sequence[PluginLayer]]) -> list[PluginFailure]:
    owners: dict[str, list[PluginOrigin]] = {}
    for origin, layers in loaded.items():
        for layer in layers:
            owners.setdefault(layer.name, []).append(origin)
    failures: list[PluginFailure] = []
    for origin, layers in loaded.items():
        names = tuple(layer.name for layer in layers)
        shared = next((name for name in names if len(owners[name]) > 1), None)
        if shared is not None:
            cause = PluginConflictError("layer name", shared, owners[shared])
            failures.append(PluginFailure(origin, Stage.VALIDATE, cause, names))
    return failures
