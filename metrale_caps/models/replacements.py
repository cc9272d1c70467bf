# SPDX-License-Identifier: MIT OR Apache-2.0
"""Layers that take the place of the engine's own: a plugin's, or those of any function that builds one for a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from metrale_caps.errors import ConfigurationError
from metrale_caps.plugins import BlockSource, load_plugins

if TYPE_CHECKING:
    from collections.abc import Iterable

LayerBuilder: TypeAlias = Callable[[BlockSource], object | None]
"""Makes the layer for a block, or returns None to leave the block to the engine's own layer."""


@dataclass(frozen=True, slots=True)
class _PluginBuilder:
    """A plugin's `build`, which an error can name."""

    label: str
    build: LayerBuilder

    def __call__(self, source: BlockSource) -> object | None:
        return self.build(source)


def find_builder(layers: str | LayerBuilder | None) -> LayerBuilder | None:
    """Return what builds layers: a plugin's layer for a name, anything else as it is.

    Raises:
        PluginFailedError: the plugin that has, or should have, a layer of that name failed; the cause is quoted.
        UnknownPluginError: no plugin has such a layer; what was found is listed.
        ConfigurationError: it is neither a name nor a function.
    """
    if layers is None:
        return None
    if isinstance(layers, str):
        found = load_plugins().layer(layers)
        return _PluginBuilder(f"the layer {found.name!r} of the plugin {found.origin}", found.build)
    if not callable(layers):
        raise ConfigurationError(
            f"layers is an object of type {type(layers).__qualname__}; give the name of a plugin's layer, or a "
            "function that takes a BlockSource and returns a layer or None"
        )
    return layers


def build_replacements(
    build: LayerBuilder | None, blocks: Iterable[Any], config: Any, context_tokens: int
) -> tuple[object | None, ...]:
    """Return the layer of each block that the builder makes one for, None for the others.

    It is asked for every block before the engine's own layers take their weights out of any.

    Raises:
        Exception: whatever the builder raises, with a note that names it and the block.
    """
    if build is None:
        return tuple(None for _ in blocks)
    layers: list[object | None] = []
    for index, block in enumerate(blocks):
        source = BlockSource(block=block, config=config, index=index, context_tokens=context_tokens)
        try:
            layers.append(build(source))
        except Exception as error:
            error.add_note(f"raised by {_label(build)} while it was built for block {index}")
            raise
    return tuple(layers)


def _label(build: LayerBuilder) -> str:
    if isinstance(build, _PluginBuilder):
        return build.label
    function = build if hasattr(build, "__qualname__") else type(build)
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}".strip(".")
