# SPDX-License-Identifier: MIT OR Apache-2.0
"""`metrale-caps run`: generates, and says which routes were taken and why."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from metrale_caps.cli.layers_option import add_layers_option, layer_builder
from metrale_caps.cli.terminal import print_json, progress_bar
from metrale_caps.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from metrale_caps.engine import Engine, RouteUse, TokenEvent
    from metrale_caps.models.replacements import LayerBuilder

DEFAULT_PROMPT = "Write one sentence about the sea."
_DEFAULT_THREADS = 2


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "run", help="generate text", description="Generates text through the routes that the layers' answers allow."
    )
    parser.add_argument("--model", help="checkpoint folder or GGUF file (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--prompt", default=DEFAULT_PROMPT, help="what to answer (default: %(default)r)")
    parser.add_argument("--max-new-tokens", type=int, default=48, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--kernels",
        choices=("triton", "naive"),
        default="triton",
        help="the Triton kernels (on a CPU through the executor), or their plain-torch twins",
    )
    add_layers_option(parser)
    template = parser.add_mutually_exclusive_group()
    template.add_argument("--chat", dest="chat", action="store_true", default=None, help="use the chat template")
    template.add_argument("--raw", dest="chat", action="store_false", help="use the prompt as it is")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cpu, cuda, cuda:1, … (default: cuda where there is one)")
    parser.add_argument("--prefill-chunk", type=int, default=512, metavar="N", help="prompt tokens of one step")
    parser.add_argument(
        "--threads",
        type=int,
        default=_DEFAULT_THREADS,
        metavar="N",
        help="CPU threads, at most one for each CPU; decoding is bound by memory, so more than a few slow it down "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--kv-dtype", choices=("auto", "fp8"), default="auto", help="pages in the weights' type (default), or in FP8"
    )
    parser.add_argument("--no-decode-graphs", action="store_true", help="run every decode step eagerly")
    parser.add_argument(
        "--trace", metavar="FILE", help="write the steps with their routes and reasons, to be opened in Perfetto"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of text")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.prompt:
        raise ConfigurationError("the prompt is empty; give at least one word with --prompt")
    if arguments.max_new_tokens < 1:
        raise ConfigurationError(f"--max-new-tokens is {arguments.max_new_tokens}; it must be at least 1")
    if arguments.threads < 1:
        raise ConfigurationError(f"--threads is {arguments.threads}; it must be at least 1")
    from metrale_caps.models.checkpoint import find_checkpoint

    find_checkpoint(arguments.model)  # a wrong path or name is said before the heavy libraries are loaded
    builder = layer_builder(arguments.layers)
    with _trace_file(arguments.trace) as trace:
        return _generate(arguments, builder, trace)


def _trace_file(path: str | None) -> contextlib.AbstractContextManager[IO[str] | None]:
    """Open the file before anything is computed that could then not be written."""
    if path is None:
        return contextlib.nullcontext()
    try:
        return Path(path).open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"the trace cannot be written to {path!r}: {error.strerror or error}") from error


def _generate(arguments: argparse.Namespace, builder: LayerBuilder | None, trace: IO[str] | None) -> int:
    import torch

    from metrale_caps.engine import StepTrace

    torch.set_num_threads(min(arguments.threads, os.cpu_count() or 1))
    steps = StepTrace()
    try:
        with progress_bar() as progress:
            started = time.perf_counter()
            engine = _engine(arguments, builder, progress)
            if trace is not None:
                engine.trace = steps
            loaded = time.perf_counter()
            events = _events(engine, arguments, progress)
            first = next(events)
        return _answer(arguments, engine, first, events, started=started, loaded=loaded)
    finally:
        if trace is not None:  # what led to an error is what one looks for in it
            steps.save(trace)


def _engine(arguments: argparse.Namespace, builder: LayerBuilder | None, progress: Any) -> Engine:
    from metrale_caps.engine import Engine

    return Engine.from_pretrained(
        arguments.model,
        device=arguments.device,
        kernels=arguments.kernels,
        layers=builder,
        progress=progress,
        seed=arguments.seed,
        prefill_chunk=arguments.prefill_chunk,
        kv_dtype=arguments.kv_dtype,
        decode_graphs=not arguments.no_decode_graphs,
    )


def _events(engine: Engine, arguments: argparse.Namespace, progress: Any) -> Iterator[TokenEvent]:
    from metrale_caps.engine import Sampling

    chat = arguments.chat
    if chat is None:
        chat = getattr(engine.tokenizer, "chat_template", None) is not None
    return engine.stream(
        [arguments.prompt],
        max_new_tokens=arguments.max_new_tokens,
        chat=chat,
        sampling=Sampling(temperature=arguments.temperature),
        progress=progress,
    )


def _answer(
    arguments: argparse.Namespace,
    engine: Engine,
    first: TokenEvent,
    events: Iterator[TokenEvent],
    *,
    started: float,
    loaded: float,
) -> int:
    prefilled = time.perf_counter()
    tokens, text, reason = [first.token_id], first.text, first.finish_reason
    _write(first.text, arguments)
    for event in events:
        tokens.append(event.token_id)
        text += event.text
        reason = event.finish_reason
        _write(event.text, arguments)
    decoded = time.perf_counter()
    figures = {
        "load_seconds": round(loaded - started, 3),
        "first_token_seconds": round(prefilled - loaded, 3),
        "decode_tokens_per_second": round((len(tokens) - 1) / (decoded - prefilled), 2) if len(tokens) > 1 else None,
    }
    routes = engine.routes_of(0)
    if arguments.json:
        plan = [decision.as_json() for decision in engine.plan.decisions]
        print_json(
            {
                "text": text,
                "token_ids": tokens,
                "finish_reason": reason,
                **figures,
                "counters": engine.counters.as_json(),
                "memory": engine.memory.as_json(),
                "routes": [use.as_json() for use in routes],
                "plan": plan,
            }
        )
        return 0
    _summary(engine, figures, routes, len(tokens))
    return 0


def _write(text: str, arguments: argparse.Namespace) -> None:
    if not arguments.json:
        sys.stdout.write(text)
        sys.stdout.flush()


def _summary(engine: Engine, figures: dict[str, Any], routes: tuple[RouteUse, ...], tokens: int) -> None:
    rate = figures["decode_tokens_per_second"]
    speed = f", then {rate} tokens per second" if rate else ""
    lines = [
        "",
        "",
        f"{tokens} tokens: ready in {figures['load_seconds']} s, first token after {figures['first_token_seconds']} s"
        + speed,
        str(engine.memory),
        "",
        "routes taken",
        *(f"  {use.taken} ({use.steps} step{'s' if use.steps != 1 else ''})" for use in routes),
        "",
        "route plan",
        *(f"  {decision}" for decision in engine.plan.decisions),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
