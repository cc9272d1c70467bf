# SPDX-License-Identifier: MIT OR Apache-2.0
"""Converted GGUF files in the user's cache folder.

Invariant: an entry is written complete. It is written under another name and renamed when it is whole, so a start that
was interrupted leaves nothing that a later one would take for an entry. What happens to it afterwards is not known
here: whoever cannot read one discards it and converts again.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
from safetensors.torch import save_model

if TYPE_CHECKING:
    from metrale_caps.models.checkpoint import Checkpoint

_FORMAT = 1
_HEAD_BYTES = 1 << 20


def find(checkpoint: Checkpoint) -> Path | None:
    """Return the folder of a GGUF file's conversion, or None if there is none."""
    entry = _entry(checkpoint)
    return entry if (entry / "config.json").is_file() else None


def keep(checkpoint: Checkpoint, model: Any, tokenizer: Any) -> Path | None:
    """Write a conversion; None, with nothing left behind, where the cache folder cannot be written."""
    entry = _entry(checkpoint)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=entry.parent))
    except OSError:
        return None
    try:
        _write(model, tokenizer, unfinished)
        if find(checkpoint) is None:
            discard(entry)  # what is left of one that somebody has deleted in part
        # an entry that another process finished first is as good as this one
        with contextlib.suppress(OSError):
            unfinished.replace(entry)
    except Exception:  # noqa: BLE001 - for a full disk each of the libraries that write raises another kind
        return None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return entry


def discard(entry: Path) -> None:
    """Delete an entry that turned out to be damaged, as far as that is possible."""
    shutil.rmtree(entry, ignore_errors=True)


def _write(model: Any, tokenizer: Any, place: Path) -> None:
    # `save_pretrained` refuses a model that was read from a quantised file, although its weights are plain by now
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    save_model(model, str(place / "model.safetensors"), metadata={"format": "pt"})
    model.config.save_pretrained(place)
    model.generation_config.save_pretrained(place)
    tokenizer.save_pretrained(place)


def folder() -> Path:
    """Return the folder of all entries."""
    return platformdirs.user_cache_path("metrale-caps") / "converted"


def _entry(checkpoint: Checkpoint) -> Path:
    file = checkpoint.path
    status = file.stat()
    with file.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    identity = f"{_FORMAT} {file.name} {status.st_size} {status.st_mtime_ns}".encode()
    return folder() / f"{file.stem}-{hashlib.sha256(identity + head).hexdigest()[:16]}"
