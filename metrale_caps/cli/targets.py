# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds the layers that a command is given: `module:Class`, a plugin's layer, a plugin, or a distribution of plugins.

Whatever their code raises comes out as one of our errors.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metrale_caps.audit import takes_part
from metrale_caps.errors import ConfigurationError, MetraleError, PluginFailedError
from metrale_caps.plugins import collect_plugins, describe_cause, report_failures

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from metrale_caps.plugins import LayerPlugins, PluginLayer


@dataclass(frozen=True, slots=True)
class Target:
    """One layer to look at.

    Attributes:
        label: what it is called in output: `module:Class`, or the layer with its distribution and version.
        layer_class: its class, where that is known without making an instance.
        make: makes an instance. It raises a `ConfigurationError` where it cannot, whatever the layer's code raises.
        makeable: why it cannot be made without arguments; None where nothing speaks against it.
    """

    label: str
    layer_class: type | None
    make: Callable[[], object]
    makeable: str | None


def names_class(text: str) -> bool:
    """Return whether a text has the form `module:Class`."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def find_targets(text: str) -> list[Target]:
    """Return the layers that a text names; a name of several kinds is first a layer's, then a plugin's.

    Plugins that fail are logged, unless it is one of them that was named.

    Args:
        text: `module:Class` or `module:function`, a plugin's layer, an entry point, or a distribution.

    Raises:
        ConfigurationError: a class or function is not there, or importing it raised something.
        PluginFailedError: a plugin of that name, or of that distribution, failed; the cause is quoted.
        UnknownPluginError: no plugin has that name; what was found is listed.
        PluginLoadError: another plugin failed, and `METRALE_STRICT_PLUGINS=1` makes failures fatal.
    """
    if names_class(text):
        return [_class_target(text)]
    plugins = tried_plugins()
    layers = _named(text, plugins)
    report_failures(plugins)
    return [_plugin_target(layer) for layer in layers]


def tried_plugins() -> LayerPlugins:
    """Return what `collect_plugins` finds; what plugins print goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        return collect_plugins()


@contextlib.contextmanager
def foreign_code(target: str, doing: str) -> Generator[None]:
    """Run code of the user's, which may raise anything.

    What it prints goes to stderr, so that stdout holds what the command has to say and nothing else.

    Raises:
        ConfigurationError: it raised what is none of our errors; the cause's type and text are named.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (MetraleError, KeyboardInterrupt):
        raise
    except BaseException as error:  # `sys.exit` is no reason to leave either
        raise ConfigurationError(f"{target!r} cannot be used: {doing} raised {describe_cause(error)}") from error


def _class_target(text: str) -> Target:
    with _working_folder_importable(), foreign_code(text, "importing it"):
        found = _import(text)
        is_layer = not isinstance(found, type) and (takes_part(found) or hasattr(type(found), "forward"))
    if is_layer or not callable(found):
        raise ConfigurationError(f"{text!r} is {type(found).__name__}, not a class or a function that makes a layer")
    return _target(text, found, "making it", "name a function that makes the layer")


def _plugin_target(layer: PluginLayer) -> Target:
    label = f"{layer.name} ({layer.origin.distribution} {layer.origin.version})"
    return _target(label, layer.example, "making its example", "its `example` must need none")


def _target(label: str, maker: Callable[..., object], doing: str, advice: str) -> Target:
    with foreign_code(label, "reading its signature"):
        obstacle = _required_arguments(maker)
    makeable = None if obstacle is None else f"cannot be made without arguments ({obstacle}); {advice}"

    def make() -> object:
        if makeable is not None:
            raise ConfigurationError(f"{label!r} {makeable}")
        with _working_folder_importable(), foreign_code(label, doing):
            made = maker()
            if fault := _fault_of_made(made):
                raise ConfigurationError(f"{label!r} cannot be used: {doing} gave {fault}")
            return made

    return Target(label, maker if isinstance(maker, type) else None, make, makeable)


def _fault_of_made(made: object) -> str | None:
    """Return why what was made is certainly no layer; a coroutine is closed."""
    if made is None:
        return "None; return the layer"
    if isinstance(made, type):
        return f"the class {made.__name__} rather than an instance of it; call it"
    if inspect.iscoroutine(made):
        made.close()  # it is never awaited, and Python would warn of that
        return "a coroutine; remove `async`"
    if inspect.isawaitable(made) or inspect.isgenerator(made) or inspect.isasyncgen(made):
        return f"an object of type {type(made).__name__}; return the layer from an ordinary function"
    return None


def _named(text: str, plugins: LayerPlugins) -> list[PluginLayer]:
    from metrale_caps.plugins.entry_points import normalized

    if text in plugins.layers:
        return [plugins.layers[text]]
    layers = [layer for layer in plugins.layers.values() if layer.origin.plugin == text]
    if layers:
        return layers
    plugins.refuse_failed(text)
    for failure in plugins.failures:
        if normalized(failure.origin.distribution) == normalized(text):
            raise PluginFailedError(text, failure) from failure.cause
    layers = [layer for layer in plugins.layers.values() if normalized(layer.origin.distribution) == normalized(text)]
    if not layers:
        raise plugins.unknown(text)
    return layers


def _import(text: str) -> object:
    module_name, _, name = text.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _required_arguments(maker: Callable[..., object]) -> str | None:
    """Return what is missing for a call without arguments."""
    try:
        signature = inspect.signature(maker)
    except (TypeError, ValueError):  # some callables of other languages tell nothing
        return None
    try:
        signature.bind()
    except TypeError as error:
        return str(error)
    return None


@contextlib.contextmanager
def _working_folder_importable() -> Generator[None]:
    """Find a module beside the user, as with `python -m`."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove("")
