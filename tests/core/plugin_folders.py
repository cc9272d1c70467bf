# SPDX-License-Identifier: MIT OR Apache-2.0
"""Distributions of plugins as installers leave them: folders on the path with a module and its metadata."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import itertools
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

_PREFIX = "module_of_plugin_"
_counter = itertools.count()


def registers(*layers: str, then: str = "pass") -> str:
    """Return the source of a plugin that registers layers, and then does something."""
    adds = "".join(f"    registrar.add({layer!r}, print, example=dict)\n" for layer in layers)
    return f"calls = []\ndef register(registrar):\n    calls.append(1)\n{adds}    {then}\n"


class PluginFolders:
    """Folders that are on the path while a test runs; only what lies in them is found."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._patch = patch
        patch.setattr(sys, "path", sys.path.copy())
        everywhere = importlib.metadata.distributions
        patch.setattr(importlib.metadata, "distributions", lambda: everywhere(path=self.on_path()))

    def on_path(self) -> list[str]:
        """The folders, in the order of the path."""
        return [entry for entry in sys.path if entry.startswith(str(self.root))]

    def put_on_path(self, *folders: Path) -> None:
        """Make these the folders, in this order."""
        sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(self.root))]
        sys.path.extend(map(str, folders))
        importlib.invalidate_caches()

    def folder(self, name: str = "site") -> Path:
        """Return a folder, which is put on the path when it is new."""
        folder = self.root / name
        if not folder.is_dir():
            folder.mkdir(parents=True)
            sys.path.append(str(folder))
        return folder

    def module(self, source: str, folder: str = "site") -> str:
        """Write a module of a name that no other test uses, and return the name."""
        name = f"{_PREFIX}{next(_counter)}"
        (self.folder(folder) / f"{name}.py").write_text(source, encoding="utf-8")
        importlib.invalidate_caches()
        return name

    def metadata(
        self,
        distribution: str,
        entries: str | Mapping[str, str] | None,
        *,
        version: str = "1.0",
        folder: str = "site",
        kind: str = "dist-info",
        metadata: str | None = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    ) -> Path:
        """Write a distribution's metadata; `entries` is a file's whole text or what the group holds."""
        stem = distribution.replace("-", "_")
        info = self.folder(folder) / (f"{stem}.egg-info" if kind == "egg-info" else f"{stem}-{version}.dist-info")
        info.mkdir()
        if metadata is not None:
            text = metadata.format(name=distribution, version=version)
            (info / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text(text)
        if entries is not None:
            listed = entries if isinstance(entries, str) else group(entries)
            (info / "entry_points.txt").write_text(listed, encoding="utf-8")
        importlib.invalidate_caches()
        return info

    def install(
        self,
        plugin: str,
        source: str,
        *,
        distribution: str | None = None,
        version: str = "1.0",
        folder: str = "site",
    ) -> str:
        """Install a distribution with one plugin, and return the name of its module."""
        module = self.module(source, folder)
        entries = {plugin: f"{module}:register"}
        self.metadata(distribution or f"dist-{plugin}", entries, version=version, folder=folder)
        return module


def group(entries: Mapping[str, str]) -> str:
    """Return the text of an entry_points.txt."""
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    return f"[console_scripts]\nunrelated = nothing:main\n\n[metrale_caps.layers]\n{lines}"


@contextlib.contextmanager
def plugin_folders(root: Path) -> Generator[PluginFolders]:
    """Yield folders under `root`, and leave path and modules as they were."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("METRALE_STRICT_PLUGINS", raising=False)
        try:
            yield PluginFolders(root, patch)
        finally:
            for name in [name for name in sys.modules if name.startswith(_PREFIX)]:
                del sys.modules[name]
            shutil.rmtree(root, ignore_errors=True)
    importlib.invalidate_caches()
