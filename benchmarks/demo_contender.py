# SPDX-License-Identifier: MIT OR Apache-2.0
"""One contender of the demo benchmark, in a process of its own: prints its figures as one line of JSON.

`python -m benchmarks.demo_contender {transformers,naive,triton} BATCH PROMPT_TOKENS NEW_TOKENS THREADS`
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

_TEXT = (
    "The lighthouse keeper climbed the narrow stairs every evening, counting each step aloud so that the wind would "
    "not feel alone. At the top he lit the lamp, wiped the glass, and wrote one line in the log: the ships, the "
    "weather, and what he had dreamt the night before about the old harbour town. "
)


class _GemmClock:
    """Adds up the time inside torch's products with weights, `linear` and `mm`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        functional.linear = self._timed(functional.linear)
        torch.mm = self._timed(torch.mm)

    def _timed(self, product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def timed(*arguments: Any, **options: Any) -> torch.Tensor:
            started = time.perf_counter()
            result = product(*arguments, **options)
            self.seconds += time.perf_counter() - started
            return result

        return timed


def _prompts(tokenizer: Any, batch: int, length: int) -> list[list[int]]:
    tokens: list[int] = tokenizer(_TEXT * (1 + (length + batch) // 50))["input_ids"]
    return [tokens[start : start + length] for start in range(batch)]


def _measure(
    generate: Callable[[int], list[list[int]]],
    ready_seconds: float,
    batch: int,
    prompt: int,
    new: int,
    clock: _GemmClock,
) -> dict[str, Any]:
    started = time.perf_counter()
    generate(1)
    first = time.perf_counter() - started
    started = time.perf_counter()
    generate(1)
    prefill = time.perf_counter() - started
    before, started = clock.seconds, time.perf_counter()
    tokens = generate(new)
    whole = time.perf_counter() - started
    decode = whole - prefill
    return {
        "tokens": tokens,
        "ready_seconds": ready_seconds,
        "first_token_seconds": first,
        "seconds_per_prompt_token": prefill / (batch * prompt),
        "seconds_per_step": decode / (new - 1),
        "decode_tokens_per_second": batch * (new - 1) / decode,
        "share_outside_gemms": 1 - (clock.seconds - before) / whole,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _engine(kernels: Any, batch: int, prompt: int) -> Callable[[int], list[list[int]]]:
    from metrale_caps.engine import Engine

    engine = Engine.from_pretrained(kernels=kernels)
    prompts = _prompts(engine.tokenizer, batch, prompt)

    def generate(new: int) -> list[list[int]]:
        outputs = engine.generate(prompts, max_new_tokens=new, ignore_eos=True)
        return [list(output.token_ids) for output in outputs]

    return generate


def _transformers(batch: int, prompt: int) -> Callable[[int], list[list[int]]]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from metrale_caps.models.checkpoint import find_checkpoint

    checkpoint = find_checkpoint(None)
    source: dict[str, Any] = {"gguf_file": checkpoint.gguf_file}
    tokenizers: Any = AutoTokenizer
    models: Any = AutoModelForCausalLM
    tokenizer = tokenizers.from_pretrained(checkpoint.folder, **source)
    model = models.from_pretrained(checkpoint.folder, **source, dtype=torch.float32).eval()
    ids = torch.tensor(_prompts(tokenizer, batch, prompt))

    def generate(new: int) -> list[list[int]]:
        mask = torch.ones_like(ids)
        out: Any = model.generate(ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False)
        return out[:, ids.shape[1] :].tolist()

    return generate


def main() -> None:
    """Measure the contender named on the command line."""
    name = sys.argv[1]
    batch, prompt, new, threads = (int(argument) for argument in sys.argv[2:6])
    torch.set_num_threads(threads)
    started = time.perf_counter()
    generate = _transformers(batch, prompt) if name == "transformers" else _engine(name, batch, prompt)
    ready = time.perf_counter() - started
    print(json.dumps(_measure(generate, ready, batch, prompt, new, _GemmClock())))


if __name__ == "__main__":
    main()
