# SPDX-License-Identifier: MIT OR Apache-2.0
"""The demonstration's cost beside `transformers`, in one run.

Each contender runs in a process of its own, so that peak memory is its own; the rounds alternate. Before a figure is
printed the contenders' tokens are compared: all must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.registry import Case, RedError, spread

CONTENDERS = ("transformers", "naive", "triton")


def _run(options: list[str]) -> list[str]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks demo")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(options)
    lines = [
        f"SmolLM2-135M-Instruct, fp32, prompts of {chosen.prompt_tokens} tokens, {chosen.new_tokens} new tokens each",
        f"{chosen.threads} thread(s), {chosen.rounds} rounds; median (minimum to maximum)",
    ]
    for batch in chosen.batches:
        lines += _compare(batch, chosen)
    return lines


def _compare(batch: int, chosen: argparse.Namespace) -> list[str]:
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    for round_number in range(chosen.rounds):
        for name in CONTENDERS:
            sys.stderr.write(f"batch {batch}, round {round_number + 1} of {chosen.rounds}, {name}\n")
            results[name].append(_measure(name, batch, chosen))
    tokens = {name: [result["tokens"] for result in rounds] for name, rounds in results.items()}
    reference = tokens["transformers"][0]
    for name, rounds in tokens.items():
        if any(answer != reference for answer in rounds):
            raise RedError(f"the tokens of {name} at batch {batch} are not those of transformers")
    per_second = {name: _median(rounds, "decode_tokens_per_second") for name, rounds in results.items()}
    lines = ["", f"batch {batch}"]
    for name, rounds in results.items():
        ratio = per_second[name] / per_second["transformers"]
        lines += [
            f"  {name}",
            f"    decode tokens per second    {_spread(rounds, 'decode_tokens_per_second')}",
            f"    the same over transformers  {ratio:.2f}",
            f"    seconds per decode step     {_spread(rounds, 'seconds_per_step')}",
            f"    seconds per prompt token    {_spread(rounds, 'seconds_per_prompt_token')}",
            f"    time outside torch GEMMs    {_spread(rounds, 'share_outside_gemms')}",
            f"    seconds until ready         {_spread(rounds, 'ready_seconds')}",
            f"    seconds to the first token  {_spread(rounds, 'first_token_seconds')}",
            f"    peak memory, MB             {_spread(rounds, 'peak_megabytes')}",
        ]
    return lines


def _median(rounds: list[dict[str, Any]], figure: str) -> float:
    return median(float(result[figure]) for result in rounds)


def _spread(rounds: list[dict[str, Any]], figure: str) -> str:
    return spread([float(result[figure]) for result in rounds])


def _measure(name: str, batch: int, chosen: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.demo_contender", name, str(batch)]
    command += [str(chosen.prompt_tokens), str(chosen.new_tokens), str(chosen.threads)]
    threads = {name: str(chosen.threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    environment = {**os.environ, **threads, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, env=environment, cwd=Path(__file__).parents[1]
    )
    if done.returncode:
        raise RedError(f"{name} failed: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.splitlines()[-1])


CASE = Case("demo", "the default model's speed and memory, beside transformers", _run)
