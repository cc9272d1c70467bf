# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which way a stack of layers runs, decided from its layers' answers; every decision carries all its reasons.

Invariants: nothing here imports torch or triton. Nine answers of each layer are asked once, when the plan is made;
only `fp8_calibration_frozen` is asked again. The dispatchers read the plan's attributes and nothing else.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from metrale_caps.audit import FindingKind, audit_stack
from metrale_caps.errors import LayerContractError
from metrale_caps.queries import QUERIES, QueryName
from metrale_caps.routing.calibration import CalibrationWatch
from metrale_caps.routing.decision import CHOICES, Decision, DecisionName, EngineReason, LayerReason, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metrale_caps.capabilities import LayerCapabilities

__all__ = ["Decision", "EngineReason", "LayerReason", "Reason", "RoutePlan"]


class RoutePlan:
    """The routes of one stack of layers.

    The attributes are what the layers' answers come to. A decision also knows what the engine itself cannot do.

    The plan owns the tuple of layers it decided about; the dispatchers run that tuple, so decision and execution
    cannot disagree.

    Attributes:
        layers: the stack.
        capabilities: each layer's ten answers, asked when the plan was made.
        decode_graph_veto: no decode step may be captured.
        hc_perseq: a batched decode runs each sequence through `decode`.
        hc_qsa_perseq: a fused decode and prefill step runs both separately.
        decode_rollback_unsupported: a rollback declines.
        can_batch_verify_dispatch: drafts of several sequences may be verified at once.
        graph_stale_on_new_sequence: freeing or moving a sequence drops its slot's graphs.
        inpass_cut_capture_supported: a prefill may capture a snapshot inside its pass.
        split_prefill_layers: indices of the layers that a split prefill runs in phases.
        own_state_layers: indices of the layers that allocate their own state.
    """

    def __init__(self, layers: Sequence[object], *, unavailable: Mapping[DecisionName, str] | None = None) -> None:
        """Ask every layer and decide.

        Args:
            layers: the stack, in the order it runs.
            unavailable: routes the engine itself cannot take, by the name of the decision, each with the reason.

        Raises:
            LayerContractError: the audit found faults: names that nothing asks for, answers that are none, hidden or
                contradicted by what the layer can do; all are listed.
            Exception: whatever a layer's own method raises comes out as itself.
        """
        self.layers: tuple[object, ...] = tuple(layers)
        self.capabilities: tuple[LayerCapabilities, ...] = _audited(self.layers)
        self._unavailable = dict(unavailable or {})
        self._watch = CalibrationWatch(self.layers)
        self.decode_graph_veto: bool = self._objects("decode_graph")
        self.hc_perseq: bool = self._objects("batched_decode")
        self.hc_qsa_perseq: bool = self._objects("fused_step")
        self.decode_rollback_unsupported: bool = self._objects("rollback")
        self.can_batch_verify_dispatch: bool = not self._objects("verify")
        self.graph_stale_on_new_sequence: bool = self._objects("graphs_on_new_sequence")
        self.inpass_cut_capture_supported: bool = not self._objects("tail_capture")
        self.split_prefill_layers: tuple[int, ...] = self._indices("is_ssm_layer", answer=True)
        self.own_state_layers: tuple[int, ...] = self._indices("uses_ssm_pool", answer=False)

    def _objects(self, name: DecisionName) -> bool:
        query = CHOICES[name].query
        return QUERIES[query].objects(self._current_answers(query))

    def _indices(self, query: QueryName, *, answer: bool) -> tuple[int, ...]:
        return tuple(index for index, layer in enumerate(self.capabilities) if layer.answer(query) is answer)

    def graphs_ready_after_fp8_kv_cal(self) -> bool:
        """Return whether no layer is inside its FP8 calibration window; asked before each step."""
        return self._watch.ready()

    def refresh_calibration(self) -> None:
        """Ask all layers again, after something has started a new calibration window."""
        self._watch = CalibrationWatch(self.layers)

    def mla_prefill_needs_full_recompute(self) -> bool:
        """Return whether a prefix lookup must match nothing; `METRALE_MLA_PREFIX_SKIP=1` overrides, read each time."""
        return not self._overridden("prefix_lookup") and self._objects("prefix_lookup")

    def _overridden(self, name: DecisionName) -> bool:
        variable = CHOICES[name].override
        return variable is not None and os.environ.get(variable) == "1"

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every decision with its reasons, made when asked for and not on a step's path."""
        return tuple(self.decision(name) for name in CHOICES)

    def decision(self, name: DecisionName) -> Decision:
        """Return one decision with all its reasons."""
        choice = CHOICES[name]
        query = QUERIES[choice.query]
        answers = self._current_answers(choice.query)
        reasons: list[Reason] = [
            LayerReason(index, layer.layer_type, choice.query, answer, layer.sources[choice.query])
            for index, (layer, answer) in enumerate(zip(self.capabilities, answers, strict=True))
            if answer is query.objection
        ]
        route = choice.otherwise if query.objects(answers) else choice.wanted
        if route == choice.otherwise and not reasons:
            reasons.append(EngineReason("the stack has no layers"))
        if name in self._unavailable:
            reasons.insert(0, EngineReason(self._unavailable[name]))
            route = choice.without_engine or choice.otherwise
        elif self._overridden(name):
            reasons.insert(0, EngineReason(f"{choice.override}=1 overrides the layers"))
            route = choice.wanted
        return Decision(name, choice.query, query.asked, route, choice.wanted, tuple(reasons))

    def _current_answers(self, query: QueryName) -> list[bool | None]:
        if QUERIES[query].changes:
            return list(self._watch.answers())
        return [layer.answer(query) for layer in self.capabilities]

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain data: the layers with their answers and sources, and the decisions."""
        return {
            "layers": [
                {
                    "index": index,
                    "type": layer.layer_type,
                    "answers": {
                        name: {"answer": layer.answer(name), "source": layer.sources[name].value} for name in QUERIES
                    },
                }
                for index, layer in enumerate(self.capabilities)
            ],
            "decisions": [decision.as_json() for decision in self.decisions],
        }

    @override
    def __str__(self) -> str:
        return "\n".join(str(decision) for decision in self.decisions)


def _audited(layers: tuple[object, ...]) -> tuple[LayerCapabilities, ...]:
    audits = audit_stack(layers)
    findings = [finding for audit in audits for finding in audit.findings]
    for finding in findings:
        if finding.kind is FindingKind.RAISING and finding.error is not None:
            raise finding.error
    if findings:
        raise LayerContractError(findings)
    return tuple(audit.capabilities for audit in audits if audit.capabilities is not None)
