# SPDX-License-Identifier: MIT OR Apache-2.0
"""How the answers of a stack become routes, with every reason."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrale_caps import (
    QUERIES,
    Asked,
    Decision,
    DecodeLayer,
    LayerContractError,
    RoutePlan,
    Source,
    SplitPrefillLayer,
    SsmStateSpec,
)
from metrale_caps.routing.decision import CHOICES, DecisionName, EngineReason, LayerReason


class Decodes:
    """A layer that can do what the default answers promise, and gives none."""

    def decode(self, hidden: Any, _context: Any) -> Any:
        return hidden

    def decode_verify_multi(self, hidden: Any, _context: Any) -> Any:
        return hidden


class _RunsInPhases:
    """What an answer to `is_ssm_layer` may oblige a layer to have."""

    def prefill_phase1(self, *_: Any) -> None: ...

    def prefill_gdn_full(self, *_: Any) -> None: ...

    def prefill_phase3(self, hidden: Any, *_: Any) -> Any:
        return hidden

    def ssm_state_spec(self) -> SsmStateSpec:
        return SsmStateSpec((3, 16), (16, 16))


class _OwnsState:
    """What an answer to `uses_ssm_pool` may oblige a layer to have."""

    def alloc_state(self) -> object:
        return object()

    def release_state(self, _state: Any) -> None: ...


_OBLIGED = {"is_ssm_layer": _RunsInPhases, "uses_ssm_pool": _OwnsState}


def _method(answer: bool | None) -> Any:
    def method(_self: object) -> bool | None:
        return answer

    return method


def _layer(**answers: bool | None) -> Any:
    obliged = tuple(base for name, base in _OBLIGED.items() if name in answers)
    return type("Layer", (Decodes, *obliged), {name: _method(answer) for name, answer in answers.items()})()


_FOLDED = [choice for choice in CHOICES.values() if choice.name not in {"long_prefill", "recurrent_state"}]


@pytest.mark.parametrize("choice", _FOLDED, ids=lambda choice: choice.name)
@pytest.mark.parametrize("position", [0, 1, 3])
def test_one_layer_changes_the_route_wherever_it_stands(choice: Any, position: int) -> None:
    """First, middle or last: one objecting layer is enough, and it is the one that is named."""
    objection = QUERIES[choice.query].objection
    agreeing = not objection
    stack = [_layer(**{choice.query: agreeing}) for _ in range(4)]
    assert RoutePlan(stack).decision(choice.name).route == choice.wanted
    stack[position] = _layer(**{choice.query: objection})
    decision = RoutePlan(stack).decision(choice.name)
    assert decision.route == choice.otherwise
    (reason,) = decision.reasons
    assert isinstance(reason, LayerReason)
    assert (reason.layer_index, reason.query, reason.source) == (position, choice.query, Source.DECLARED)
    assert f"layer {position}" in str(decision)


_ANSWERS = st.fixed_dictionaries(
    {},
    optional={
        name: st.sampled_from([True, False, None] if row.optional else [True, False]) for name, row in QUERIES.items()
    },
)


@given(st.lists(_ANSWERS, max_size=5))
def test_decisions_agree_with_the_folds_of_the_table(stack: list[dict[str, bool | None]]) -> None:
    """For any stack, each decision follows the table's fold, and reasons stand exactly where a route is not wanted."""
    plan = RoutePlan([_layer(**answers) for answers in stack])
    for choice in _FOLDED:
        row = QUERIES[choice.query]
        folded = row.fold.apply([answers.get(row.name, row.default) for answers in stack])
        wanted = folded is not row.objection
        decision = plan.decision(choice.name)
        assert (decision.route == choice.wanted) is wanted
        assert bool(decision.reasons) is not wanted


def test_plan_attributes_follow_the_decisions() -> None:
    """What the dispatchers read is what the decisions say."""
    vetoing = RoutePlan([_layer(decode_graph_unsupported=True, decode_multi_seq_unsupported=True), _layer()])
    assert vetoing.decode_graph_veto
    assert vetoing.hc_perseq
    assert vetoing.hc_qsa_perseq
    assert not vetoing.inpass_cut_capture_supported
    free = RoutePlan([_layer(supports_replay_tail_split=True)])
    assert not free.decode_graph_veto
    assert not free.hc_perseq
    assert free.can_batch_verify_dispatch
    assert free.inpass_cut_capture_supported


def test_layers_are_partitioned_by_their_own_answers() -> None:
    """Split prefill and state ownership are decided layer by layer."""
    plan = RoutePlan([_layer(), _layer(is_ssm_layer=True), _layer(uses_ssm_pool=False), _layer(is_ssm_layer=True)])
    assert plan.split_prefill_layers == (1, 3)
    assert plan.own_state_layers == (2,)


def test_engine_limit_is_a_reason_of_its_own() -> None:
    """A route the engine cannot take is not taken, and the reason names the engine beside the layers."""
    plan = RoutePlan([_layer(), _layer(decode_graph_unsupported=True)], unavailable={"decode_graph": "no graphs here"})
    decision = plan.decision("decode_graph")
    assert decision.route == "eager"
    assert isinstance(decision.reasons[0], EngineReason)
    assert isinstance(decision.reasons[1], LayerReason)
    assert "no graphs here" in str(decision)


def test_engine_limit_is_no_answer_of_the_layers() -> None:
    """What the engine cannot do changes the route, and not what the layers are said to have answered."""
    plan = RoutePlan([_layer()], unavailable={"rollback": "no rollback here", "long_prefill": "no phases here"})
    assert not plan.decode_rollback_unsupported
    assert plan.decision("rollback").route == "decline (LayerStateNotRewindable)"
    split = RoutePlan([_layer(is_ssm_layer=True)], unavailable={"long_prefill": "no phases here"})
    assert split.decision("long_prefill").route == "`prefill` on every layer"


def test_inherited_forward_stub_is_no_method() -> None:
    """A layer that inherits a forward protocol without a body lacks the method, whatever it answers."""

    class Stubs(SplitPrefillLayer, DecodeLayer):
        def is_ssm_layer(self) -> bool:
            return True

        def decode_verify_multi_unsupported(self) -> bool:
            return True

    with pytest.raises(LayerContractError) as caught:
        RoutePlan([type("Layer", (Stubs,), {})()])
    text = str(caught.value)
    assert all(f"`{name}`" in text for name in ("decode", "prefill_phase1", "prefill_gdn_full", "prefill_phase3"))


def test_printed_calibration_is_the_one_that_is_obeyed() -> None:
    """The decision goes by the same answers as the step does, also after the watch has settled."""
    answers = [True]

    class Calibrating(Decodes):
        def fp8_calibration_frozen(self) -> bool:
            return answers[0]

    plan = RoutePlan([Calibrating()])
    answers[0] = False
    assert plan.graphs_ready_after_fp8_kv_cal()
    assert plan.decision("graphs_after_calibration").route == "graphs allowed"
    plan.refresh_calibration()
    assert not plan.graphs_ready_after_fp8_kv_cal()
    assert plan.decision("graphs_after_calibration").route != "graphs allowed"


def test_lifting_one_suppression_does_not_lift_another() -> None:
    """The calibration freezing leaves a graph veto in place: they are separate decisions."""
    frozen = [False]

    class Calibrating(Decodes):
        def fp8_calibration_frozen(self) -> bool | None:
            return frozen[0]

    plan = RoutePlan([Calibrating(), _layer(decode_graph_unsupported=True)])
    assert not plan.graphs_ready_after_fp8_kv_cal()
    frozen[0] = True
    assert plan.graphs_ready_after_fp8_kv_cal()
    assert plan.decode_graph_veto


def test_calibration_polls_one_witness_until_it_flips() -> None:
    """Only the layer that last said False is asked each step; a settled stack asks nobody."""
    asked: list[int] = []

    class Calibrating(Decodes):
        def __init__(self, index: int) -> None:
            self.index = index
            self.frozen = False

        def fp8_calibration_frozen(self) -> bool:
            asked.append(self.index)
            return self.frozen

    layers = [Calibrating(index) for index in range(4)]
    plan = RoutePlan([*layers, _layer()])
    asked.clear()
    assert not plan.graphs_ready_after_fp8_kv_cal()
    assert not plan.graphs_ready_after_fp8_kv_cal()
    assert asked == [0, 0]
    for layer in layers:
        layer.frozen = True
    assert plan.graphs_ready_after_fp8_kv_cal()
    asked.clear()
    assert plan.graphs_ready_after_fp8_kv_cal()
    assert asked == []


def test_calibration_that_opens_again_needs_a_refresh() -> None:
    """The settled answer latches, as documented, until the plan is told to ask again."""

    class Calibrating(Decodes):
        frozen = True

        def fp8_calibration_frozen(self) -> bool:
            return self.frozen

    layer = Calibrating()
    plan = RoutePlan([layer])
    layer.frozen = False
    assert plan.graphs_ready_after_fp8_kv_cal()
    plan.refresh_calibration()
    assert not plan.graphs_ready_after_fp8_kv_cal()


@pytest.mark.parametrize(("value", "recompute"), [(None, True), ("1", False), ("0", True), ("true", True)])
def test_prefix_skip_variable_is_read_at_each_lookup(
    monkeypatch: pytest.MonkeyPatch, value: str | None, recompute: bool
) -> None:
    """Exactly `METRALE_MLA_PREFIX_SKIP=1` overrides a local prefill, whenever it is set."""
    monkeypatch.delenv("METRALE_MLA_PREFIX_SKIP", raising=False)
    plan = RoutePlan([_layer(uses_local_mla_prefill=True)])
    assert plan.mla_prefill_needs_full_recompute()
    if value is not None:
        monkeypatch.setenv("METRALE_MLA_PREFIX_SKIP", value)
    assert plan.mla_prefill_needs_full_recompute() is recompute


def test_all_broken_obligations_are_reported_at_once() -> None:
    """A stack whose layers lack what their answers promise is refused with the whole list."""

    class Bare:
        def is_ssm_layer(self) -> bool:
            return True

        def uses_ssm_pool(self) -> bool:
            return False

    with pytest.raises(LayerContractError) as caught:
        RoutePlan([_layer(), Bare()])
    text = str(caught.value)
    for missing in ("decode", "prefill_gdn_full", "alloc_state", "decode_verify_multi"):
        assert f"`{missing}`" in text
    assert {finding.layer_index for finding in caught.value.findings} == {1}


def test_static_answers_are_asked_when_the_plan_is_made_and_never_again() -> None:
    """A layer's nine static answers are read by the audit, twice to see that they stay, and by no step."""
    calls: list[str] = []

    class Counting(Decodes):
        def decode_graph_unsupported(self) -> bool:
            calls.append("asked")
            return False

    plan = RoutePlan([Counting()])
    assert calls == ["asked", "asked"]
    for _ in range(3):
        assert plan.decisions
        plan.graphs_ready_after_fp8_kv_cal()
    assert calls == ["asked", "asked"]


def test_plan_as_json_is_plain_data() -> None:
    """The plan can be written as JSON and holds every decision and every answer."""
    plan = RoutePlan([_layer(is_ssm_layer=True)])
    data = json.loads(json.dumps(plan.as_json()))
    assert [decision["name"] for decision in data["decisions"]] == list(get_args(DecisionName))
    assert set(data["layers"][0]["answers"]) == set(QUERIES)


def test_every_query_has_a_decision() -> None:
    """No query is without a consequence in the plan."""
    assert {choice.query for choice in CHOICES.values()} == set(QUERIES)


def test_decision_tells_all_about_the_layer_in_the_way() -> None:
    """Route, route wanted, when it is asked, and of the layer its index, type, query, answer and source."""
    decision = RoutePlan([_layer(), _layer(decode_graph_unsupported=True)]).decision("decode_graph")
    query = "decode_graph_unsupported"
    reason = LayerReason(1, f"{__name__}.Layer", query, answer=True, source=Source.DECLARED)
    assert decision == Decision("decode_graph", query, Asked.AT_BUILD, "eager", "captured in graphs", (reason,))


def test_stack_without_layers_is_the_reason_where_all_would_have_to_agree() -> None:
    """Nobody stands in the way, and still the route is not the wanted one."""
    plan = RoutePlan([])
    assert plan.decision("tail_capture").reasons == (EngineReason("the stack has no layers"),)
    assert plan.decision("decode_graph").reasons == ()


def test_override_is_a_reason_beside_the_layers_that_it_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable comes first, and the route is the wanted one."""
    monkeypatch.setenv("METRALE_MLA_PREFIX_SKIP", "1")
    decision = RoutePlan([_layer(uses_local_mla_prefill=True)]).decision("prefix_lookup")
    assert decision.route == decision.wanted == "reuse the matched prefix"
    override, layer = decision.reasons
    assert override == EngineReason("METRALE_MLA_PREFIX_SKIP=1 overrides the layers")
    assert isinstance(layer, LayerReason)


def test_plan_s_attributes_are_exact_answers() -> None:
    """What the dispatchers read is True or False, one for each objection."""
    objecting = RoutePlan([_layer(decode_rollback_unsupported=True, graph_stale_on_new_sequence=True)])
    assert objecting.decode_rollback_unsupported is objecting.graph_stale_on_new_sequence is True
    free = RoutePlan([_layer()])
    assert free.decode_rollback_unsupported is free.graph_stale_on_new_sequence is False


def test_layer_as_json_tells_each_answer_and_its_source() -> None:
    """A layer is told by its index and type, an answer by what it is and where it came from."""
    plan = RoutePlan([_layer(is_ssm_layer=True)])
    answers = {name: {"answer": row.default, "source": "default"} for name, row in QUERIES.items()}
    answers["is_ssm_layer"] = {"answer": True, "source": "declared"}
    assert plan.as_json()["layers"] == [{"index": 0, "type": f"{__name__}.Layer", "answers": answers}]
