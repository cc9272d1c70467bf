# SPDX-License-Identifier: MIT OR Apache-2.0
"""Folders and GGUF files give the same model that `transformers` gives; conversions are kept whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from metrale_caps.engine import Engine
from metrale_caps.errors import CheckpointError
from metrale_caps.models import conversion_cache
from metrale_caps.models.checkpoint import find_checkpoint
from metrale_caps.models.loading import load_pretrained, load_skeleton

if TYPE_CHECKING:
    from pathlib import Path

_PROMPT = [5, 17, 99, 42, 8]


@pytest.fixture
def llama() -> Any:
    """A tiny Llama with its own weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)  # pyright: ignore[reportUnknownMemberType]
    sizes: dict[str, Any] = {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes)).eval()


@pytest.fixture
def folder(llama: Any, tmp_path: Path) -> Path:
    """The same as a checkpoint folder."""
    llama.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def _tokens(model: Any) -> tuple[int, ...]:
    engine = Engine.from_pretrained(model, kernels="naive")
    return engine.generate([_PROMPT], max_new_tokens=8, ignore_eos=True)[0].token_ids


def test_folder_gives_the_tokens_of_the_model_object(llama: Any, folder: Path) -> None:
    """Two ways to the same weights."""
    assert _tokens(folder) == _tokens(str(folder)) == _tokens(llama)


def test_sharded_folder_is_read(llama: Any, tmp_path: Path) -> None:
    """Weights in several files are one checkpoint."""
    llama.save_pretrained(tmp_path / "sharded", max_shard_size="50KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    assert _tokens(tmp_path / "sharded") == _tokens(llama)


def test_cut_weights_are_one_error(folder: Path) -> None:
    """A file that ends early is refused with the checkpoint's name."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="checkpoint"):
        _tokens(folder)


def test_skeleton_has_no_weights(folder: Path) -> None:
    """An explanation needs the shapes alone."""
    model = load_skeleton(find_checkpoint(folder))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_dtype_is_what_was_asked_for(folder: Path) -> None:
    """On a CPU weights are fp32 unless another type is asked for."""
    checkpoint = find_checkpoint(folder)
    cpu = torch.device("cpu")
    assert load_pretrained(checkpoint, dtype=None, device=cpu).model.dtype == torch.float32
    assert load_pretrained(checkpoint, dtype=torch.bfloat16, device=cpu).model.dtype == torch.bfloat16


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    """A small Llama as a GGUF file, tokenizer included."""
    import gguf

    file = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(259)
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * 259)
    writer.add_token_types([2, 3, 3, *[6] * 256])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    shapes = {
        "token_embd": (259, 32),
        "output": (259, 32),
        "output_norm": (32,),
        "blk.0.attn_norm": (32,),
        "blk.0.ffn_norm": (32,),
        "blk.0.attn_q": (32, 32),
        "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32),
        "blk.0.ffn_gate": (48, 32),
        "blk.0.ffn_up": (48, 32),
        "blk.0.ffn_down": (32, 48),
    }
    generator = np.random.default_rng(3)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", generator.normal(size=shape).astype(np.float32) * 0.3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return conversion_cache.folder()


def _stages(file: Path) -> tuple[list[str], dict[str, torch.Tensor]]:
    stages: list[str] = []

    def note(stage: str, _done: int = 0, _total: int | None = None, /) -> None:
        stages.append(stage)

    loaded = load_pretrained(find_checkpoint(file), dtype=None, device=torch.device("cpu"), progress=note)
    return stages, dict(loaded.model.state_dict())


def test_second_start_reads_the_conversion_and_gets_the_same_weights(tiny_gguf: Path, cache: Path) -> None:
    """The first start converts, the second does not, and all weights are bit for bit the same."""
    first_stages, first = _stages(tiny_gguf)
    (entry,) = cache.iterdir()
    assert (entry / "model.safetensors").is_file()
    second_stages, second = _stages(tiny_gguf)
    assert any("GGUF" in stage for stage in first_stages)
    assert not any("GGUF" in stage for stage in second_stages)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_changed_file_is_converted_again(tiny_gguf: Path, cache: Path) -> None:
    """An entry belongs to one content."""
    _stages(tiny_gguf)
    content = bytearray(tiny_gguf.read_bytes())
    content[-1] ^= 1
    tiny_gguf.write_bytes(bytes(content))
    stages, _ = _stages(tiny_gguf)
    assert any("GGUF" in stage for stage in stages)
    assert len(list(cache.iterdir())) == 2


def test_interrupted_conversion_leaves_no_entry(tiny_gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the middle of writing leaves nothing that a later start would take for a conversion."""

    def fail(*_arguments: Any, **_options: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(conversion_cache, "save_model", fail)
        _stages(tiny_gguf)
    assert list(cache.iterdir()) == []
    stages, _ = _stages(tiny_gguf)
    assert any("GGUF" in stage for stage in stages)


def test_cache_that_cannot_be_written_is_no_error(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a place for it the conversion is simply not kept."""
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    _stages(tiny_gguf)
