# SPDX-License-Identifier: MIT OR Apache-2.0
"""Loads configuration, weights and tokenizer through `transformers`.

A GGUF file takes `transformers` half a minute, so the converted weights and tokenizer are kept in the user's cache
folder, written whole or not at all, and the next start reads those.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from metrale_caps.errors import CheckpointError, ConfigurationError
from metrale_caps.models import conversion_cache
from metrale_caps.models.checkpoint import Checkpoint
from metrale_caps.models.progress import silent
from metrale_caps.models.registry import check_architecture

if TYPE_CHECKING:
    from collections.abc import Generator

    from metrale_caps.models.progress import Progress


@dataclass(frozen=True, slots=True)
class Pretrained:
    """What a checkpoint holds.

    Attributes:
        model: a `transformers` causal language model, in evaluation mode.
        tokenizer: its tokenizer, or None where the checkpoint has none.
    """

    model: Any
    tokenizer: Any | None


def load_pretrained(
    checkpoint: Checkpoint, *, dtype: torch.dtype | None, device: torch.device, progress: Progress = silent
) -> Pretrained:
    """Load a checkpoint.

    Args:
        checkpoint: what `find_checkpoint` returned.
        dtype: type of the weights; None for the checkpoint's own on a GPU and fp32 on a CPU.
        device: where the weights go.
        progress: told of each stage.

    Raises:
        CheckpointError: the checkpoint is damaged.
        UnsupportedArchitectureError: it holds a model without layers here.
    """
    if dtype is None and device.type == "cpu":
        dtype = torch.float32
    with _quiet_transformers(), _as_checkpoint_error(checkpoint):
        loaded = _load_gguf(checkpoint, progress) if checkpoint.gguf_file else _load_folder(checkpoint, dtype, progress)
        model = loaded.model.eval()
        model = model.to(device=device) if dtype is None else model.to(device=device, dtype=dtype)
    return Pretrained(model, loaded.tokenizer)


def load_skeleton(checkpoint: Checkpoint, progress: Progress = silent) -> Any:
    """Return a checkpoint's model without weights, on torch's meta device, for explanations.

    Raises:
        CheckpointError: the checkpoint is damaged.
        UnsupportedArchitectureError: it holds a model without layers here.
    """
    transformers = _transformers()

    with _quiet_transformers(), _as_checkpoint_error(checkpoint):
        progress("reading the configuration")
        converted = conversion_cache.find(checkpoint) if checkpoint.gguf_file else None
        source = converted or checkpoint.folder
        gguf_file = None if converted else checkpoint.gguf_file
        config = transformers.AutoConfig.from_pretrained(source, gguf_file=gguf_file, local_files_only=True)
        check_architecture(config)
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(config)


def _load_folder(checkpoint: Checkpoint, dtype: torch.dtype | None, progress: Progress) -> Pretrained:
    transformers = _transformers()

    progress("reading the configuration")
    config = transformers.AutoConfig.from_pretrained(checkpoint.folder, local_files_only=True)
    check_architecture(config)
    progress("loading the weights")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint.folder, config=config, use_safetensors=True, local_files_only=True, dtype=dtype or "auto"
    )
    progress("loading the tokenizer")
    return Pretrained(model, _tokenizer(checkpoint))


def _tokenizer(checkpoint: Checkpoint) -> Any | None:
    transformers = _transformers()

    if not any((checkpoint.folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    return transformers.AutoTokenizer.from_pretrained(checkpoint.folder, local_files_only=True)


def _load_gguf(checkpoint: Checkpoint, progress: Progress) -> Pretrained:
    converted = conversion_cache.find(checkpoint)
    if converted is not None:
        return _load_folder(Checkpoint(converted), torch.float32, progress)
    transformers = _transformers()

    folder, gguf_file = checkpoint.folder, checkpoint.gguf_file
    progress("reading the GGUF file (half a minute the first time)", 0, 4)
    config = transformers.AutoConfig.from_pretrained(folder, gguf_file=gguf_file, local_files_only=True)
    check_architecture(config)
    progress("reading the GGUF file's tokenizer", 1, 4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file, local_files_only=True)
    progress("dequantising the GGUF file's weights", 2, 4)
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar cannot be switched off otherwise
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=gguf_file, local_files_only=True, dtype=torch.float32
        )
    progress("keeping the converted weights for the next start", 3, 4)
    conversion_cache.keep(checkpoint, model, tokenizer)
    return Pretrained(model, tokenizer)


@contextlib.contextmanager
def _as_checkpoint_error(checkpoint: Checkpoint) -> Generator[None]:
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:  # what the libraries raise for damaged files has no common base
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{str(checkpoint.path)!r} could not be loaded: {reason}") from error


@contextlib.contextmanager
def _quiet_transformers() -> Generator[None]:
    """Keep `transformers`' own log lines and bars away: the caller is told through `progress`."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _transformers() -> Any:
    """Import `transformers` when it is needed; it is not typed to the standard held here."""
    return importlib.import_module("transformers")
