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


_SHOWN_NAMES = 3


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
        load = _load_gguf if checkpoint.gguf_file else _load_folder
        loaded = load(checkpoint, dtype, progress)
        model = loaded.model.eval().to(device=device)  # only there: a cast would round the rotary frequencies as well
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
        config = (checkpoint.gguf_file and _converted_configuration(checkpoint)) or _configuration(checkpoint)
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(config)


def _configuration(checkpoint: Checkpoint) -> Any:
    transformers = _transformers()

    config = transformers.AutoConfig.from_pretrained(
        checkpoint.folder, gguf_file=checkpoint.gguf_file, local_files_only=True
    )
    check_architecture(config)
    return config


def _converted_configuration(checkpoint: Checkpoint) -> Any | None:
    """Return the configuration of a GGUF file's conversion, which is read much faster; None without a usable one."""
    converted = conversion_cache.find(checkpoint)
    if converted is None:
        return None
    with contextlib.suppress(Exception):  # whatever is wrong with the entry, the GGUF file itself is still there
        return _configuration(Checkpoint(converted))
    conversion_cache.discard(converted)
    return None


def _load_folder(checkpoint: Checkpoint, dtype: torch.dtype | None, progress: Progress) -> Pretrained:
    transformers = _transformers()

    progress("reading the configuration")
    config = _configuration(checkpoint)
    progress("loading the weights")
    model = _complete(
        checkpoint,
        transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint.folder,
            config=config,
            use_safetensors=True,
            local_files_only=True,
            dtype=dtype or "auto",
            output_loading_info=True,
        ),
    )
    progress("loading the tokenizer")
    return Pretrained(model, _tokenizer(checkpoint))


def _tokenizer(checkpoint: Checkpoint) -> Any | None:
    transformers = _transformers()

    if not any((checkpoint.folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    return transformers.AutoTokenizer.from_pretrained(checkpoint.folder, local_files_only=True)


def _complete(checkpoint: Checkpoint, loaded: tuple[Any, dict[str, Any]]) -> Any:
    """Return the model that `transformers` loaded; it fills up what the files lack with random numbers."""
    model, info = loaded
    wrong_shapes = (str(name) for name, *_ in info["mismatched_keys"])
    faults = {
        "tensors are missing": sorted(info["missing_keys"]),
        "tensors have another shape than the configuration says": sorted(wrong_shapes),
        "tensors cannot be read": list(info["error_msgs"]),
    }
    sentences = [f"{what} ({_abridged(names)})" for what, names in faults.items() if names]
    if sentences:
        raise CheckpointError(f"{str(checkpoint.path)!r} is incomplete: {'; '.join(sentences)}")
    return model


def _abridged(names: list[str]) -> str:
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _load_gguf(checkpoint: Checkpoint, dtype: torch.dtype | None, progress: Progress) -> Pretrained:
    converted = conversion_cache.find(checkpoint)
    if converted is not None:
        with contextlib.suppress(Exception):  # whatever is wrong with the entry, the GGUF file itself is still there
            loaded = _load_folder(Checkpoint(converted), dtype or torch.float32, progress)
            if loaded.tokenizer is not None:
                return loaded
        conversion_cache.discard(converted)
    loaded = _convert(checkpoint, progress)
    if dtype is not None:
        _cast_parameters(loaded.model, dtype)
    return loaded


def _convert(checkpoint: Checkpoint, progress: Progress) -> Pretrained:
    """Read a GGUF file's weights in fp32 and keep them for the next start."""
    transformers = _transformers()

    folder, gguf_file = checkpoint.folder, checkpoint.gguf_file
    progress("reading the GGUF file (half a minute the first time)", 0, 4)
    _configuration(checkpoint)
    progress("reading the GGUF file's tokenizer", 1, 4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file, local_files_only=True)
    progress("dequantising the GGUF file's weights", 2, 4)
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar cannot be switched off otherwise
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=gguf_file, local_files_only=True, dtype=torch.float32, output_loading_info=True
        )
    model = _complete(checkpoint, loaded)
    progress("keeping the converted weights for the next start", 3, 4)
    conversion_cache.keep(checkpoint, model, tokenizer)
    return Pretrained(model, tokenizer)


def _cast_parameters(model: Any, dtype: torch.dtype) -> None:
    """Cast the weights in place and leave the buffers, the rotary frequencies, as they are."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype


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
