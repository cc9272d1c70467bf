# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line: what a user sees, and one sentence with status 2 for every bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from metrale_caps import QUERIES
from metrale_caps.cli import main
from metrale_caps.routing.limits import UNAVAILABLE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama folder without a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)  # pyright: ignore[reportUnknownMemberType]
    sizes: dict[str, Any] = {
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
    }
    folder = str(tmp_path_factory.mktemp("model"))
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def speaking_checkpoint(checkpoint: str) -> str:
    """The same with a tokenizer of single characters."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    vocabulary = {chr(32 + index): index for index in range(95)} | {"<unk>": 95}
    tokenizer: Any = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 - a token, no secret
    tokenizer.pre_tokenizer = Split("", "isolated")
    wrapped: Any = PreTrainedTokenizerFast
    wrapped(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(checkpoint)  # noqa: S106
    return checkpoint


def test_list_shows_all_ten_queries(capsys: pytest.CaptureFixture[str]) -> None:
    """As text and as JSON, from the table."""
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in QUERIES)
    assert main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["query"], row["default"]) for row in rows] == [(row.name, row.default) for row in QUERIES.values()]


def test_explain_shows_every_decision_of_a_folder(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan is explained without loading weights."""
    assert main(["explain", checkpoint]) == 0
    text = capsys.readouterr().out
    assert "GroupedQueryAttentionLayer" in text
    assert "decode_graph: captured in graphs" in text
    assert main(["explain", checkpoint, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["layers"]) == 2
    assert {decision["query"] for decision in plan["decisions"]} == set(QUERIES)


class Explained:
    """A layer for `explain module:Class`."""

    def decode(self, hidden: Any, _context: Any) -> Any:
        return hidden

    def decode_verify_multi_unsupported(self) -> bool:
        return True

    def decode_graph_unsupported(self) -> bool:
        return True


def test_explain_takes_a_class(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's class is explained by its own answers."""
    monkeypatch.setitem(sys.modules, "explained_layers", sys.modules[__name__])
    assert main(["explain", "explained_layers:Explained"]) == 0
    text = capsys.readouterr().out
    assert "decode_graph_unsupported = True (declared)" in text
    assert "uses_ssm_pool = True (default)" in text
    assert "verify: one sequence at a time rather than" in text


def test_run_answers_and_says_its_routes(speaking_checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Text, speed, routes taken and the plan on stdout; nothing on stderr where it is no terminal."""
    arguments = ["run", "--model", speaking_checkpoint, "--prompt", "hello", "--max-new-tokens", "5"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert "tokens per second" in captured.out
    assert "prefill: `prefill` per chunk (1 step)" in captured.out
    assert "decode: one sequence, captured in a graph (1 step)" in captured.out
    assert "decode: one sequence, replayed from its graph (3 steps)" in captured.out
    assert "route plan" in captured.out
    assert captured.err == ""


def test_run_as_json_is_one_document_and_both_kernels_agree(
    speaking_checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document holds text, tokens, figures, routes and plan; kernels and twins give the same tokens."""
    tokens: list[list[int]] = []
    for kernels in ("triton", "naive"):
        arguments = ["run", "--model", speaking_checkpoint, "--prompt", "hello", "--max-new-tokens", "5", "--json"]
        assert main([*arguments, "--kernels", kernels]) == 0
        document = json.loads(capsys.readouterr().out)
        assert {"text", "token_ids", "finish_reason", "routes", "plan", "decode_tokens_per_second"} <= set(document)
        tokens.append(document["token_ids"])
    assert tokens[0] == tokens[1]


def _missing(folder: Path) -> str:
    return str(folder / "nothing")


def _pickle(folder: Path) -> str:
    file = folder / "model.bin"
    file.write_bytes(b"cos\nsystem\n")
    return str(file)


def _empty_name(_folder: Path) -> str:
    return ""


def _foreign_home(_folder: Path) -> str:
    return "~no-such-user-at-all/x.gguf"


def _long_name(_folder: Path) -> str:
    return "x" * 300


def _text_file(folder: Path) -> str:
    file = folder / "notes.txt"
    file.write_text("not a model")
    return str(file)


def _foreign(folder: Path) -> str:
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "model.safetensors").write_bytes(b"never read")
    return str(folder)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (_missing, "there is no file or folder"),
        (_text_file, "is not a GGUF file"),
        (_pickle, "is a pickle"),
        (_foreign, "'gpt2' has no layers here"),
        (str, "no config.json"),
        (_empty_name, "path is empty"),
        (_foreign_home, "cannot be read"),
        (_long_name, "cannot be read: File name too long"),
    ],
    ids=["missing", "text", "pickle", "architecture", "empty folder", "empty name", "foreign home", "long name"],
)
@pytest.mark.parametrize("command", ["run --prompt x --model", "explain"])
def test_bad_model_is_one_sentence_and_status_two(
    model: Any, says: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is wrong with a model, stderr has one line and stdout none."""
    assert main([*command.split(), model(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--max-new-tokens", "-3"], "--max-new-tokens is -3"),
        (["--max-new-tokens", "0"], "--max-new-tokens is 0"),
        (["--threads", "0"], "--threads is 0"),
        (["--prompt", "x" * 64], "the context holds 64"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--prefill-chunk", "0"], "prefill_chunk is 0"),
        (["--chat"], "no chat template"),
        (["--device", "toaster"], "toaster"),
        (["--prompt", "a\udcff"], "is not valid text"),
        (["--prompt", "a\udcff", "--raw"], "is not valid text"),
    ],
    ids=lambda value: " ".join(value)[:24] if isinstance(value, list) else "",  # pyright: ignore[reportUnknownArgumentType]
)
def test_bad_option_is_one_sentence_and_status_two(
    speaking_checkpoint: str, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values without a meaning are refused in one line."""
    assert main(["run", "--model", speaking_checkpoint, *options]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["run", "--max-new-tokens", "many"], ["run", "--kernels", "fast"], ["run", "--speed"]]
)
def test_wrong_usage_is_one_line_and_status_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The usage is not printed; the line says where it is."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "--help" in captured.err


def test_more_threads_than_cpus_are_not_used(speaking_checkpoint: str) -> None:
    """A number that no system could start is as good as the number of CPUs."""
    arguments = ["run", "--model", speaking_checkpoint, "--max-new-tokens", "1", "--threads", "100000000000"]
    before = torch.get_num_threads()
    try:
        assert main(arguments) == 0
        assert torch.get_num_threads() == os.cpu_count()
    finally:
        torch.set_num_threads(before)


_IMPORTS = {
    "division": ("1 / 0", "importing it raised ZeroDivisionError: division by zero"),
    "syntax": ("def", "importing it raised SyntaxError"),
    "names": ("from json import nothing", "importing it raised ImportError: cannot import name"),
    "leaves": ("import sys; sys.exit('bye')", "importing it raised SystemExit: bye"),
    "absent": ("", "raised AttributeError: module"),
    "value": ("Layer = 3", "is int, not a class"),
    "arguments": (
        "class Layer:\n  def __init__(self, x): pass",
        "without arguments (missing a required argument: 'x')",
    ),
    "typed": ("class Layer:\n  def __init__(self): len(3)", "making it raised TypeError: object of type 'int' has no"),
    "made": ("def Layer():\n  raise SystemExit", "making it raised SystemExit"),
    "odd": ("class Odd(BaseException): pass\ndef Layer():\n  raise Odd('no')", "making it raised Odd: no"),
    "asked": ("class Layer:\n  def uses_ssm_pool(self): return 1 / 0", "ZeroDivisionError"),
    "quits": ("class Layer:\n  def uses_ssm_pool(self): raise SystemExit('no')", "SystemExit: no"),
}


@pytest.mark.parametrize("case", _IMPORTS)
def test_class_whose_code_fails_is_one_sentence(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever importing, making or asking raises, its type is named and the status is 2."""
    source, says = _IMPORTS[case]
    (tmp_path / f"layer_{case}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert main(["explain", f"layer_{case}:Layer"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert "" not in sys.path


@pytest.mark.parametrize("target", ["no_such_module:Layer", "json:nothing", "json:__doc__", "json:dumps"])
def test_class_that_cannot_be_explained_is_one_sentence(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A module, a name or arguments that are missing are said so."""
    assert main(["explain", target]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_class_and_checkpoint_are_explained_for_the_same_engine(
    checkpoint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine itself cannot do is said for a class too."""
    monkeypatch.setitem(sys.modules, "explained_layers", sys.modules[__name__])
    said: list[set[str]] = []
    for target in (checkpoint, "explained_layers:Explained"):
        assert main(["explain", target, "--json"]) == 0
        text = capsys.readouterr().out
        said.append({reason for reason in UNAVAILABLE.values() if reason in text})
    assert said == [set(UNAVAILABLE.values())] * 2


def test_class_is_explained_where_torch_is_missing(tmp_path: Path) -> None:
    """The answers of a layer need no engine."""
    (tmp_path / "plain_layer.py").write_text(
        "class Layer:\n"
        "  def decode(self, hidden, context): return hidden\n"
        "  def decode_verify_multi_unsupported(self): return True"
    )
    program = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from metrale_caps.cli import main; sys.exit(main(['explain', 'plain_layer:Layer']))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert "this engine makes no drafts yet" in done.stdout


def test_module_can_be_run_and_reader_may_leave() -> None:
    """`python -m metrale_caps list | head -1` ends without a traceback."""
    command = f"{sys.executable} -m metrale_caps list --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603, S607
    assert done.stdout == "[\n"
    assert done.stderr == ""


def test_run_writes_a_trace_and_takes_an_fp8_cache(
    speaking_checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file opens as trace events; the reason for eager steps inside the calibration window is told."""
    trace = tmp_path / "steps.json"
    arguments = ["run", "--model", speaking_checkpoint, "--prompt", "hello", "--max-new-tokens", "5"]
    assert main([*arguments, "--kernels", "naive", "--trace", str(trace), "--kv-dtype", "fp8"]) == 0
    assert "fp8_calibration_frozen = False" in capsys.readouterr().out
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 5
    assert main([*arguments, "--kernels", "naive", "--no-decode-graphs", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["counters"]["graph_captures"] == 0
    assert document["counters"]["eager_decode_steps"] == {"the option decode_graphs is False": 4}


def test_trace_that_cannot_be_written_is_said_before_anything_runs(
    speaking_checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, and no text."""
    missing = tmp_path / "nowhere" / "steps.json"
    assert main(["run", "--model", speaking_checkpoint, "--trace", str(missing)]) != 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the trace cannot be written to" in captured.err
    assert len(captured.err.strip().splitlines()) == 1
