# SPDX-License-Identifier: MIT OR Apache-2.0
"""Decode steps: inputs into fixed buffers, then a replay, a capture, or the layers' own code.

A step that may have a graph and has none is captured, which runs nothing, and then replayed like any later one. A
capture that fails has changed nothing but what layers and states hold on the host; that is put back, and the step runs
eagerly. So each step happens exactly once, whichever way it goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from metrale_caps.errors import CaptureError
from metrale_caps.kernels.graphs import StepGraph, capture
from metrale_caps.layer import forward_method
from metrale_caps.plugins.loading import describe_cause
from metrale_caps.routing.decision import EngineReason
from metrale_caps.routing.graph_gate import GraphGate
from metrale_caps.routing.taken import RouteTaken
from metrale_caps.state.buffer_guard import BufferGuard, Owner
from metrale_caps.state.decode_buffers import DecodeBuffers
from metrale_caps.state.decode_graphs import DecodeGraphs, GraphKey
from metrale_caps.state.host_state import HostState
from metrale_caps.state.row_ladder import LADDER, padded_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from metrale_caps.engine.counters import Counters
    from metrale_caps.engine.options import EngineOptions
    from metrale_caps.layer import DecodeContext
    from metrale_caps.models.decoder import Decoder
    from metrale_caps.routing.decision import Reason
    from metrale_caps.routing.decode import DecodeDispatcher
    from metrale_caps.routing.stack import LayerStates, Stack
    from metrale_caps.state.sequence import Sequence

_REPLAYED = "replayed from its graph"
_CAPTURED = "captured in a graph"
_EAGER = "eager"


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph and the guard over what it baked."""

    graph: StepGraph
    guard: BufferGuard


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """A step ready to run.

    Attributes:
        sequences: the sequences, one row each.
        buffers: the fixed buffers, filled.
        context: the step over them.
        states: the states of the layers that own theirs, for each row.
    """

    sequences: Rows[Sequence]
    buffers: DecodeBuffers
    context: DecodeContext
    states: LayerStates


class DecodeSteps:
    """Runs decode steps of one decoder and keeps their graphs.

    Attributes:
        graphs: the captured steps.
        gate: decides whether a step may have a graph.
    """

    def __init__(
        self,
        decoder: Decoder,
        stack: Stack,
        dispatcher: DecodeDispatcher,
        *,
        num_blocks: int,
        options: EngineOptions,
        counters: Counters,
    ) -> None:
        self._decoder = decoder
        self._stack = stack
        self._dispatcher = dispatcher
        self._options = options
        self._counters = counters
        self._num_blocks = num_blocks
        self._ends = {"embedding": decoder.embedding, "final_norm": decoder.final_norm, "head": decoder.head}
        self._buffers: dict[int, DecodeBuffers] = {}
        self._routes: dict[tuple[int, str, tuple[Reason, ...]], RouteTaken] = {}
        self._replayed_layers = _replayed_layers(stack)
        # compiled kernels and workspaces of libraries cannot be made inside a capture
        self._warms_up = decoder.device.type == "cuda"
        self._warm: set[int] = set()
        self._no_room: dict[tuple[int, type[Exception]], EngineReason] = {}
        self.graphs: DecodeGraphs[_Captured] = DecodeGraphs(options.max_decode_graphs, options.max_slots)
        self.gate: GraphGate = GraphGate(stack.plan, most_rows=LADDER[-1])
        if not options.decode_graphs:
            self.gate.suppressions.add("decode_graphs", "the option decode_graphs is False")

    def run(self, sequences: Rows[Sequence]) -> tuple[torch.Tensor, tuple[RouteTaken, ...]]:
        """Return logits `[sequences, vocabulary]` of the next token of each sequence, and the route each one took."""
        if len(sequences) == 1 or not self._dispatcher.one_by_one:
            logits, route = self._run(sequences, len(sequences))
            return logits, (route,) * len(sequences)
        steps = [self._run([sequence], len(sequences)) for sequence in sequences]
        return torch.cat([logits for logits, _ in steps]), tuple(route for _, route in steps)

    def warm_up(self) -> None:
        """Run a step of padding alone at each width, unless a layer owns its state, which padding has none of."""
        if self._stack.plan.own_state_layers:
            return
        most = 1 if self._dispatcher.one_by_one else self._options.max_slots
        for width in sorted({padded_rows(rows) for rows in range(1, most + 1)}):
            buffers = self._buffers_of(width)
            buffers.fill([])
            self._body(DecodeInputs([], buffers, buffers.context(width), [dict[int, object]()] * width))
            self._warm.add(width)

    def inputs(self, sequences: Rows[Sequence]) -> DecodeInputs:
        """Write a step's inputs into its buffers; a batch is padded unless a layer owns its state."""
        rows = len(sequences)
        width = rows if self._stack.plan.own_state_layers else padded_rows(rows)
        buffers = self._buffers_of(width)
        buffers.fill(sequences)
        states = [sequence.layer_states for sequence in sequences] + [dict[int, object]()] * (width - rows)
        return DecodeInputs(sequences, buffers, buffers.context(width - rows), states)

    def _buffers_of(self, width: int) -> DecodeBuffers:
        if width not in self._buffers:
            context_blocks = -(-self._decoder.context_tokens // self._options.block_size)
            self._buffers[width] = DecodeBuffers(
                width,
                min(context_blocks, self._num_blocks),
                block_size=self._options.block_size,
                dummy_slot=self._options.max_slots,
                dummy_block=self._num_blocks,
                device=self._decoder.device,
            )
        return self._buffers[width]

    def _run(self, sequences: Rows[Sequence], batch: int) -> tuple[torch.Tensor, RouteTaken]:
        """Run one step; `batch` is how many sequences the scheduler picked."""
        step = self.inputs(sequences)
        width = step.buffers.width
        key = GraphKey(
            "decode", tuple(one.slot or 0 for one in sequences) + (self._options.max_slots,) * (width - len(sequences))
        )
        reasons = (*self.gate.objections(width), *self._without_room(sequences), *self._not_yet(key, width))
        captured, mode = self.graphs.get(key), _REPLAYED
        if not reasons and captured is None:
            reasons = self._capture(key, step)
            captured, mode = self.graphs.get(key), _CAPTURED
        if reasons or captured is None:
            return self._eager(step, batch, reasons)
        if mode == _REPLAYED:
            captured.guard.check(step.states)
            self._counters.graph_replays += 1
        return self._replay(key, captured, step), self.route(batch, mode)

    def _not_yet(self, key: GraphKey, width: int) -> tuple[Reason, ...]:
        """Return why a step that has no graph is not captured now."""
        refusal = self.graphs.refusal(key)
        if refusal is not None:
            return (EngineReason(f"its capture failed: {refusal}"),)
        if self._warms_up and width not in self._warm:
            return (EngineReason("the first step of a width prepares kernels that a capture must find ready"),)
        return ()

    def _without_room(self, sequences: Rows[Sequence]) -> tuple[Reason, ...]:
        """Ask the layers with host bookkeeping whether every row fits what a graph would write to."""
        reasons: list[Reason] = []
        for index, check, _ in self._replayed_layers:
            for sequence in sequences:
                try:
                    check(sequence.layer_states.get(index), sequence.cursor, 1)
                except Exception as error:  # noqa: BLE001 - what has no room is the layer's to say, in its own way
                    # one reason for all steps, whatever numbers its later errors name
                    text = f"layer {index} has no room for a replay, since {describe_cause(error)}"
                    reasons.append(self._no_room.setdefault((index, type(error)), EngineReason(text)))
                    break
        return tuple(reasons)

    def _sync(self, sequences: Rows[Sequence], rows: int) -> None:
        for index, _, sync in self._replayed_layers:
            for sequence in sequences:
                sync(sequence.layer_states.get(index), sequence.cursor, rows)

    def _body(self, step: DecodeInputs) -> torch.Tensor:
        hidden = self._dispatcher.run(self._decoder.embed(step.buffers.tokens), step.context, step.states)
        return self._decoder.logits(hidden[: max(1, len(step.sequences))])

    def _capture(self, key: GraphKey, step: DecodeInputs) -> tuple[Reason, ...]:
        """Capture a step and keep its graph; return why it failed, with everything as before."""
        held = HostState(self._named(step))
        try:
            graph = capture(lambda: self._body(step), self._decoder.device)
            _refuse_replaced(held)
            captured = _Captured(graph, BufferGuard(graph.baked, self._owners(step)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the step runs eagerly, and fails there if it must
            held.restore()
            self.graphs.refuse(key, describe_cause(error))
            self._counters.capture_failures += 1
            return self._not_yet(key, step.buffers.width)
        evictions = self.graphs.evictions
        self.graphs.put(key, captured)
        self._counters.graph_captures += 1
        self._counters.graph_evictions += self.graphs.evictions - evictions
        return ()

    def _named(self, step: DecodeInputs) -> list[tuple[str, object]]:
        """Return the layers and the states of a step, as errors call them."""
        name = self._stack.layer_name
        layers = [(name(index), layer) for index, layer in enumerate(self._stack.plan.layers)]
        states = [(f"the state of {name(index)}", state) for own in step.states for index, state in own.items()]
        return [*layers, *states]

    def _replay(self, key: GraphKey, captured: _Captured, step: DecodeInputs) -> torch.Tensor:
        with self.graphs.pinned(key):
            captured.graph.replay()
            # the next replay overwrites the graph's own
            logits = captured.graph.output.clone()
        self._sync(step.sequences, 1)
        return logits

    def _eager(self, step: DecodeInputs, batch: int, reasons: tuple[Reason, ...]) -> tuple[torch.Tensor, RouteTaken]:
        logits = self._body(step)
        self._warm.add(step.buffers.width)
        self.count_eager(reasons)
        return logits, self.route(batch, _EAGER, reasons)

    def count_eager(self, reasons: tuple[Reason, ...]) -> None:
        """Count a step that ran without a graph under each of its reasons."""
        self._counters.eager_decode_steps.update(map(str, reasons))

    def route(self, batch: int, mode: str, reasons: tuple[Reason, ...] = ()) -> RouteTaken:
        """Return the route of a batch that ran in a mode."""
        known = (min(batch, 2), mode, reasons)
        if known not in self._routes:
            route = self._dispatcher.route(batch)
            self._routes[known] = RouteTaken(route.step, f"{route.route}, {mode}", (*route.reasons, *reasons))
        return self._routes[known]

    def released(self, slot: int) -> None:
        """Drop the graphs of a slot whose sequence is gone, if a layer says that they are stale then."""
        if self._stack.plan.graph_stale_on_new_sequence:
            self._counters.graphs_dropped += self.graphs.drop_slot(slot)

    def moved(self, source: int, target: int) -> None:
        """Drop the graphs of both slots after a sequence moved, if a layer says that they are stale then."""
        if self._stack.plan.graph_stale_on_new_sequence:
            self._counters.graphs_dropped += self.graphs.move_slot(source, target)

    def _owners(self, step: DecodeInputs) -> list[Owner]:
        """Return who may own a buffer of the step, the most particular first."""
        plan = self._stack.plan
        name = self._stack.layer_name
        stale = "its layer must answer True to `graph_stale_on_new_sequence`, or keep it in one place"
        fixed = "keep it in one place, or drop the graphs with `engine.drop_graphs()` after replacing it"
        states = [
            Owner(name=f"the state of {name(index)}", root=state, layer=index, state_of=row, advice=stale)
            for row, own in enumerate(step.states)
            for index, state in own.items()
        ]
        pages = [
            Owner(name=f"the pages of layer {index}", root=kv, layer=index, advice="pages must stay where they are")
            for index, kv in enumerate(self._stack.pages)
            if kv is not None
        ]
        pool = [
            Owner(
                name=f"the recurrent state of layer {index}",
                root=ssm,
                layer=index,
                advice="it must stay in the pool",
            )
            for index, ssm in enumerate(self._stack.ssm)
            if ssm is not None
        ]
        layers = [
            Owner(name=name(index), root=layer, layer=index, advice=fixed) for index, layer in enumerate(plan.layers)
        ]
        rest = [
            Owner(name="the engine's step inputs", root=step.buffers, advice=fixed, sole=True),
            Owner(name="the model", root=self._ends, advice=fixed),
        ]
        return [*states, *pages, *pool, *layers, *rest]


def _refuse_replaced(held: HostState) -> None:
    """Refuse a step that puts tensors in the place of others: a replay would not, and read the old ones for ever."""
    replaced = held.replaced_tensor()
    if replaced is not None:
        what = f"another tensor is put in the place of {replaced}; write to it instead, as with `copy_`"
        raise CaptureError(what, None)


def _replayed_layers(stack: Stack) -> tuple[tuple[int, Callable[..., Any], Callable[..., Any]], ...]:
    """Return the layers with host bookkeeping: index, `check_replay_room` and `sync_replayed_step`."""

    def nothing(*_: object) -> None:
        return None

    found: list[tuple[int, Callable[..., Any], Callable[..., Any]]] = []
    for index, layer in enumerate(stack.plan.layers):
        check, sync = (forward_method(layer, name) for name in ("check_replay_room", "sync_replayed_step"))
        if check is not None or sync is not None:
            found.append((index, check or nothing, sync or nothing))
    return tuple(found)
