# SPDX-License-Identifier: MIT OR Apache-2.0
"""Folders and GGUF files give the same model that `transformers` gives; conversions are kept whole or not at all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]

from metrale_caps.engine import Engine
from metrale_caps.errors import CheckpointError
from metrale_caps.models import conversion_cache
from metrale_caps.models.checkpoint import find_checkpoint
from metrale_caps.models.loading import load_pretrained, load_skeleton

if TYPE_CHECKING:
    from collections.abc import Callable

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
    model = load_pretrained(checkpoint, dtype=torch.bfloat16, device=cpu).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    _assert_frequencies_are_exact(model)


def _assert_frequencies_are_exact(model: Any) -> None:
    """Rotary frequencies are fp32 values and no rounded ones, whatever type the weights have."""
    frequencies: torch.Tensor = model.model.rotary_emb.inv_freq
    assert frequencies.dtype == torch.float32
    torch.testing.assert_close(frequencies, 10000.0 ** -(torch.arange(0, 16, 2) / 16), rtol=1e-6, atol=0)


def _without_one(name: str) -> str | None:
    return None if name == "model.layers.1.mlp.up_proj.weight" else name


def _renamed(name: str) -> str | None:
    return name.replace("model.layers.", "model.blocks.")


def _rewrite(folder: Path, rename: Callable[[str], str | None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    renamed = {rename(name): tensor for name, tensor in tensors.items()}
    save_file(
        {name: tensor for name, tensor in renamed.items() if name}, folder / "model.safetensors", {"format": "pt"}
    )


@pytest.mark.parametrize(
    ("rename", "says"),
    [
        (_without_one, r"tensors are missing \(model\.layers\.1\.mlp\.up_proj\.weight\)$"),
        (_renamed, r"tensors are missing \(model\.layers\.0\.input_layernorm\.weight, .* and 15 more\)$"),
    ],
)
def test_missing_tensors_are_refused_by_name(folder: Path, rename: Callable[[str], str | None], says: str) -> None:
    """What a checkpoint lacks is not made up of random numbers."""
    _rewrite(folder, rename)
    with pytest.raises(CheckpointError, match=says):
        _tokens(folder)


def test_tensors_of_another_shape_are_refused(folder: Path) -> None:
    """A configuration that does not belong to the weights is no reason to make up others."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))
    with pytest.raises(CheckpointError, match="checkpoint"):
        _tokens(folder)


def test_tensors_that_no_layer_uses_are_harmless(llama: Any, folder: Path) -> None:
    """Old checkpoints carry buffers along that are computed nowadays."""
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert _tokens(folder) == _tokens(llama)


def test_tied_head_is_not_missing(llama: Any, tmp_path: Path) -> None:
    """A head that shares the embedding's weights is not in the file, and is there all the same."""
    llama.config.tie_word_embeddings = True
    llama.tie_weights()
    llama.save_pretrained(tmp_path / "tied")
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")
    assert _tokens(tmp_path / "tied") == _tokens(llama)


_GGUF_SHAPES = {
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


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    """A small Llama as a GGUF file, tokenizer included."""
    return _write_gguf(tmp_path / "tiny.gguf", _GGUF_SHAPES)


def _write_gguf(file: Path, shapes: dict[str, tuple[int, ...]]) -> Path:
    import gguf

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


@pytest.mark.parametrize("error", [OSError, SafetensorError, Exception], ids=lambda error: error.__name__)
def test_interrupted_conversion_leaves_no_entry(
    tiny_gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Whichever library fails in the middle of writing, nothing stays that a later start would take for an entry."""

    def fail(_model: Any, file: str, **_options: Any) -> None:
        Path(file).write_bytes(b"half of it")
        raise error("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(conversion_cache, "save_model", fail)
        _stages(tiny_gguf)
    assert list(cache.iterdir()) == []
    stages, _ = _stages(tiny_gguf)
    assert any("GGUF" in stage for stage in stages)


@pytest.mark.skipif(sys.platform == "win32", reason="has no limit of a file's size")
def test_conversion_that_does_not_fit_is_not_kept(tiny_gguf: Path, cache: Path) -> None:
    """A file that may not grow as large as the weights stands for a full disk; the model is loaded all the same."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        _, weights = _stages(tiny_gguf)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(cache.iterdir()) == []
    _, expected = _stages(tiny_gguf)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def _truncate_weights(entry: Path) -> None:
    weights = entry / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def _delete_weights(entry: Path) -> None:
    (entry / "model.safetensors").unlink()


def _delete_configuration(entry: Path) -> None:
    (entry / "config.json").unlink()


def _damage_configuration(entry: Path) -> None:
    (entry / "config.json").write_text("{")


def _delete_tokenizer(entry: Path) -> None:
    for file in entry.glob("tokenizer*"):
        file.unlink()


@pytest.mark.parametrize(
    "damage", [_truncate_weights, _delete_weights, _delete_configuration, _damage_configuration, _delete_tokenizer]
)
def test_damaged_conversion_is_made_again(tiny_gguf: Path, cache: Path, damage: Callable[[Path], None]) -> None:
    """What happened to the cache is no fault of the user's file: it is converted once more, and then kept again."""
    _, expected = _stages(tiny_gguf)
    (entry,) = cache.iterdir()
    damage(entry)
    stages, weights = _stages(tiny_gguf)
    assert any("GGUF" in stage for stage in stages)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert list(cache.iterdir()) == [entry]
    stages, _ = _stages(tiny_gguf)
    assert not any("GGUF" in stage for stage in stages)


def test_damaged_conversion_is_no_hindrance_to_an_explanation(tiny_gguf: Path, cache: Path) -> None:
    """The configuration comes from the GGUF file then."""
    _stages(tiny_gguf)
    (entry,) = cache.iterdir()
    _damage_configuration(entry)
    assert load_skeleton(find_checkpoint(tiny_gguf)).config.hidden_size == 32


def test_gguf_file_that_lacks_a_tensor_is_refused_and_not_kept(tmp_path: Path, cache: Path) -> None:
    """Random numbers are not converted either."""
    shapes = {name: shape for name, shape in _GGUF_SHAPES.items() if name != "blk.0.ffn_up"}
    file = _write_gguf(tmp_path / "lacking.gguf", shapes)
    with pytest.raises(CheckpointError, match=r"lacking\.gguf.*model\.layers\.0\.mlp\.up_proj\.weight"):
        _stages(file)
    assert not cache.exists()


def test_gguf_file_in_another_type_is_the_same_before_and_after_conversion(tiny_gguf: Path, cache: Path) -> None:
    """Weights are rounded once, from fp32, and rotary frequencies never."""
    loaded = [
        load_pretrained(find_checkpoint(tiny_gguf), dtype=torch.bfloat16, device=torch.device("cpu")).model
        for _ in range(2)
    ]
    assert len(list(cache.iterdir())) == 1
    first, second = (dict(model.named_parameters()) for model in loaded)
    for name, weight in first.items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, second[name])
    for model in loaded:
        _assert_frequencies_are_exact(model)


def test_cache_that_cannot_be_written_is_no_error(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a place for it the conversion is simply not kept."""
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    _stages(tiny_gguf)
