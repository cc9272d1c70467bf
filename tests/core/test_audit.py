# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the audit finds, in both outcomes, and what it leaves alone."""

from __future__ import annotations

import functools
import json
import linecache
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from metrale_caps import (
    QUERIES,
    CompositeLayer,
    DecodeGraphUnsupported,
    LayerContractError,
    RoutePlan,
    audit_class,
    audit_layer,
    capability_of,
)
from metrale_caps.audit import Finding, FindingKind

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_QUERY = pytest.mark.parametrize("query", list(QUERIES))


class Sound:
    """A layer that can do all its default answers promise."""

    def decode(self, hidden: Any, _context: Any) -> Any:
        return hidden

    def decode_verify_multi(self, hidden: Any, _context: Any) -> Any:
        return hidden


def _says(answer: object) -> Any:
    def method(*_: object) -> object:
        return answer

    return method


def _answering(query: str, answer: object, *bases: type) -> Any:
    return type("Answering", bases or (Sound,), {query: _says(answer)})()


def _found(layer: object) -> list[tuple[FindingKind, str]]:
    return [(finding.kind, finding.name) for finding in audit_layer(layer).findings]


def _only(layer: object) -> Finding:
    (finding,) = audit_layer(layer).findings
    return finding


def _source_line(finding: Finding) -> str:
    assert finding.place is not None
    return linecache.getline(finding.place.file, finding.place.line).strip()


def test_sound_layer_has_no_finding() -> None:
    """A layer that declares nothing and can do what the defaults say is left alone."""
    audit = audit_layer(Sound())
    assert audit.findings == ()
    assert audit.capabilities is not None
    assert audit_class(Sound) == ()


@pytest.mark.parametrize("value", [object(), 3, [Sound], {"a": {1, 2}}], ids=["object", "number", "list", "dict"])
def test_object_that_takes_no_part_in_the_contract_owes_it_nothing(value: object) -> None:
    """Whatever is neither asked nor run has no obligations."""
    assert audit_layer(value).findings == ()


def test_misspelt_query_is_found_with_the_name_it_was_meant_to_be() -> None:
    """A method a slip away from a query, behind an inherited stub, is named with its line."""

    class Layer(Sound, DecodeGraphUnsupported):
        def decode_graph_unsuported(self) -> bool:
            return True

    finding = _only(Layer())  # pyright: ignore[reportAbstractUsage] - which is how a checker finds it
    assert (finding.kind, finding.name) == (FindingKind.MISSPELT, "decode_graph_unsuported")
    assert "did you mean the query `decode_graph_unsupported`" in finding.message
    assert _source_line(finding) == "def decode_graph_unsuported(self) -> bool:"
    assert audit_class(Layer) == (finding,)


@given(st.sampled_from(sorted(QUERIES)), st.data())
def test_any_single_slip_in_a_query_s_name_is_found(query: str, data: st.DataObject) -> None:
    """A letter left out, doubled, changed or swapped with its neighbour, anywhere in the name."""
    at = data.draw(st.integers(1, len(query) - 2))
    slip = data.draw(
        st.sampled_from(
            [
                query[:at] + query[at + 1 :],
                query[:at] + query[at] + query[at:],
                query[:at] + "x" + query[at + 1 :],
                query[:at] + query[at + 1] + query[at] + query[at + 2 :],
                query.replace("_", ""),
                query.title().replace("_", ""),
            ]
        )
    )
    layer = type("Layer", (Sound,), {slip: _says(True)})()
    if slip != query:
        assert (FindingKind.MISSPELT, slip) in _found(layer)


def test_misspelt_forward_method_is_found() -> None:
    """A forward method that nothing will call is named too."""

    class Layer(Sound):
        def decode_multi_seqs(self, hidden: Any, _context: Any) -> Any:
            return hidden

    assert "the method `decode_multi_seq`" in _only(Layer()).message


def test_name_of_the_opposite_is_not_taken_for_a_slip() -> None:
    """Renaming the method would turn its answer round, so the finding says what the query asks."""

    class Layer(Sound):
        def decode_graph_supported(self) -> bool:
            return False

    class Inherits(Layer, DecodeGraphUnsupported):
        pass

    class Both(Layer):
        def decode_graph_unsupported(self) -> bool:
            return not self.decode_graph_supported()

    told = "has `decode_graph_supported`, which nothing asks for; the query is `decode_graph_unsupported`, whose answer"
    assert _only(Layer()).message == f"{told} is the opposite"
    assert [finding.message for finding in audit_class(Inherits)] == [f"{told} is the opposite"]
    assert _found(Both()) == []


def test_misspelt_name_of_the_parts_is_found() -> None:
    """A composite that does not name its parts is told why."""

    class Block(CompositeLayer, Sound):
        def capability_part(self) -> tuple[object, ...]:
            return (Sound(),)

    (misspelt,) = audit_class(Block)
    assert (misspelt.kind, misspelt.name) == (FindingKind.MISSPELT, "capability_part")
    assert "did you mean the method `capability_parts`?" in misspelt.message


def test_forward_method_that_cannot_be_called_is_found() -> None:
    """Coroutines, generators, and other arguments than the engine gives; a decorated function is called as it is."""

    class Layer(Sound):
        async def prefill(self, hidden: Any, _context: Any) -> Any:
            return hidden

        def decode_multi_seq(self, hidden: Any) -> Any:
            return hidden

        def decode_verify(self, hidden: Any, _context: Any) -> Any:
            yield hidden

        def release_state(self, state: Any, more: Any) -> None: ...

        @functools.wraps(decode_multi_seq)
        def sync_replayed_step(self, *_: Any) -> None: ...

        @staticmethod
        def snapshot_aux(_state: Any, _more: Any = None) -> None: ...

    many = "too many positional arguments"
    told = {(finding.kind, finding.name): finding.message for finding in audit_layer(Layer()).findings}
    assert told == {
        (FindingKind.MALFORMED, name): f"has a `{name}` that {fault}"
        for name, fault in (
            ("prefill", "is a coroutine function; remove `async`"),
            ("decode_multi_seq", f"cannot be called as `decode_multi_seq(hidden, context)` ({many})"),
            ("decode_verify", "is a generator function; return the answer rather than yield it"),
            ("release_state", "cannot be called as `release_state(state)` (missing a required argument: 'more')"),
        )
    }
    assert [finding.name for finding in audit_class(Layer)] == [name for _, name in told]
    finding = next(finding for finding in audit_class(Layer) if finding.name == "prefill")
    assert _source_line(finding) == "async def prefill(self, hidden: Any, _context: Any) -> Any:"


def test_attribute_of_the_instance_is_looked_at() -> None:
    """A misspelt name that only the instance has is found as well."""
    layer: Any = Sound()
    layer.uses_smm_pool = lambda: False
    assert _found(layer) == [(FindingKind.MISSPELT, "uses_smm_pool")]


def test_misspelt_slot_is_found() -> None:
    """A slot is an attribute like any other."""

    class Layer(Sound):
        __slots__ = ("is_ssm_layr",)

    assert _found(Layer()) == [(FindingKind.MISSPELT, "is_ssm_layr")]


def test_override_that_is_misspelt_is_found_although_a_base_answers() -> None:
    """The base's answer stands where the author meant to change it."""

    class Base(Sound):
        def decode_graph_unsupported(self) -> bool:
            return False

    class Layer(Base):
        def decode_graph_unsupportd(self) -> bool:
            return True

    assert _found(Layer()) == [(FindingKind.MISSPELT, "decode_graph_unsupportd")]


@pytest.mark.parametrize(
    "name", ["encode", "refill", "prefill_phase2", "_is_ssm_layr", "uses_kv_pool", "is_gdn_layer", "decoder", "states"]
)
def test_name_of_another_word_is_left_alone(name: str) -> None:
    """Other words, other numbers and private names are the layer's own."""
    assert _found(type("Layer", (Sound,), {name: _says(True)})()) == []


def test_near_name_beside_the_right_one_is_the_layer_s_own() -> None:
    """A class that has both names knows what it does."""

    class Layer(Sound):
        def uses_ssm_pool(self) -> bool:
            return True

        def uses_ssm_pools(self) -> bool:
            return True

    assert _found(Layer()) == []


@EVERY_QUERY
@pytest.mark.parametrize("answer", [1, "yes", [], object()], ids=["int", "str", "list", "object"])
def test_malformed_answer_is_a_finding_and_not_an_error(query: str, answer: object) -> None:
    """The audit goes on past what `capability_of` refuses."""
    layer = _answering(query, answer)
    layer.decode_multi_seqs = True
    assert _found(layer) == [(FindingKind.MISSPELT, "decode_multi_seqs"), (FindingKind.MALFORMED, query)]
    assert audit_layer(layer).capabilities is None


def test_class_in_place_of_a_layer_is_a_finding() -> None:
    """A class was handed over where a layer belongs."""
    assert {kind for kind, _ in _found(Sound)} == {FindingKind.MALFORMED}


def test_exception_of_a_layer_is_a_finding_that_keeps_it() -> None:
    """What a method raises is reported with its text, and kept."""
    error = ZeroDivisionError("oh")

    class Layer(Sound):
        def is_ssm_layer(self) -> bool:
            raise error

    finding = _only(Layer())
    assert finding.kind is FindingKind.RAISING
    assert finding.error is error
    assert "raised ZeroDivisionError when asked is_ssm_layer: oh" in finding.message


def test_class_is_audited_without_an_instance() -> None:
    """Every kind of declaration that could never answer is found in the class, in the order of the table."""

    class Layer(Sound):
        @property
        def uses_local_mla_prefill(self) -> bool:
            return True

        async def fp8_calibration_frozen(self) -> bool:
            return True

        def decode_graph_unsupported(self) -> int:
            return 1

        decode_multi_seq_unsupported = True

        def decode_rollback_unsupported(self, _why: str) -> bool:
            return True

        def decode_verify_multi_unsupported(self) -> Any:
            yield True

        @functools.cached_property
        def graph_stale_on_new_sequence(self) -> bool:
            return True

        is_ssm_layer = None

        @staticmethod
        def uses_ssm_pool(_layer: object) -> bool:
            return True

        def supports_replay_tail_split(self) -> bool | None:
            return None

    said = {finding.name: finding.message for finding in audit_class(Layer)}
    assert list(said) == list(QUERIES)
    for query, part in zip(
        QUERIES,
        [
            *("property", "coroutine", "return int", "not a method", "arguments", "generator", "property", "None"),
            *("arguments", "bool | None"),
        ],
        strict=True,
    ):
        assert part in said[query]
    assert all(finding.kind is FindingKind.MALFORMED for finding in audit_class(Layer))


def test_declarations_that_answer_are_left_alone() -> None:
    """Static and class methods, partials, optional arguments, other ways to write the answer's type."""

    class Layer(Sound):
        @staticmethod
        def uses_local_mla_prefill() -> bool:
            return True

        @classmethod
        def decode_graph_unsupported(cls) -> bool:
            return True

        def fp8_calibration_frozen(self) -> None:
            return None

        def decode_multi_seq_unsupported(self, _why: str = "") -> Any:
            return True

        def decode_rollback_unsupported(self):  # noqa: ANN202
            return True

        graph_stale_on_new_sequence = functools.partialmethod(lambda _self, answer: answer, True)  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType, reportUnknownArgumentType]
        supports_replay_tail_split = staticmethod(functools.partial(bool, 1))

    assert audit_class(Layer) == ()
    assert _found(Layer()) == []


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="a partial on a class is a method from 3.14 on")
@pytest.mark.filterwarnings("ignore:functools.partial will be a method descriptor:FutureWarning")
def test_partial_on_a_class_answers_without_the_layer() -> None:
    """Python 3.13 warns that this ends with 3.14; until then it is an answer."""

    def answer(which: bool) -> bool:
        return which

    class Layer(Sound):
        supports_replay_tail_split = functools.partial(answer, True)

    assert audit_class(Layer) == ()
    assert _found(Layer()) == []
    assert capability_of(Layer(), "supports_replay_tail_split") is True


@pytest.mark.parametrize(
    ("query", "answer", "methods"),
    [
        ("is_ssm_layer", True, ("prefill_phase1", "prefill_gdn_full", "prefill_phase3")),
        ("uses_ssm_pool", False, ("alloc_state", "release_state")),
        ("decode_verify_multi_unsupported", False, ("decode_verify_multi",)),
    ],
)
def test_answer_without_the_methods_it_obliges_to_is_a_contradiction(
    query: str, answer: bool, methods: tuple[str, ...]
) -> None:
    """Each method that is missing is named, alone or with others; the other answer obliges to nothing."""

    class Decodes:
        def decode(self, hidden: Any, _context: Any) -> Any:
            return hidden

        def decode_verify_multi_unsupported(self) -> bool:
            return True

    def layer(said: bool, *present: str) -> Any:
        return type("Layer", (Decodes,), {**{name: _says(None) for name in present}, query: _says(said)})()

    assert _found(layer(not answer)) == []
    assert _found(layer(not answer, *methods)) == []  # it may answer otherwise in another configuration
    assert _found(layer(answer, *methods, "ssm_state_spec")) == []
    for missing in methods:
        finding = _only(layer(answer, *(name for name in methods if name != missing)))
        assert (finding.kind, finding.name) == (FindingKind.CONTRADICTION, query)
        assert f"no `{missing}`" in finding.message
        assert f"{query} = {answer} (declared)" in finding.message


def test_default_can_contradict_too() -> None:
    """A layer that says nothing about verifies promises them, and the finding says that it is the default."""

    class Layer:
        def decode(self, hidden: Any, _context: Any) -> Any:
            return hidden

    finding = _only(Layer())
    assert finding.name == "decode_verify_multi_unsupported"
    assert "by default" in finding.message


@pytest.mark.parametrize(
    ("methods", "told"),
    [
        (
            ("prefill_phase1", "prefill_gdn_full", "prefill_phase3"),
            "is_ssm_layer = False by default; answer True, or remove them",
        ),
        (
            ("alloc_state", "release_state"),
            "uses_ssm_pool = True by default; answer False, or remove them",
        ),
    ],
)
def test_methods_that_are_never_called_for_want_of_an_answer_are_a_contradiction(
    methods: tuple[str, ...], told: str
) -> None:
    """A layer that has all of them and forgot the answer is told which; one that has a part may mean another thing."""
    finding = _only(type("Layer", (Sound,), {name: _says(None) for name in methods})())
    listed = ", ".join(f"`{name}`" for name in methods)
    assert finding.kind is FindingKind.CONTRADICTION
    assert finding.message == f"has {listed}, which nothing calls while it answers {told}"
    assert _found(type("Layer", (Sound,), {name: _says(None) for name in methods[1:]})()) == []


@pytest.mark.parametrize("owns", [False, True])
def test_recurrent_layer_that_asks_for_no_state_is_a_contradiction(owns: bool) -> None:
    """It would be given none, unless it says that it owns its state."""

    class Recurrent(Sound):
        def is_ssm_layer(self) -> bool:
            return True

        def uses_ssm_pool(self) -> bool:
            return not owns

        def prefill_phase1(self, *_: Any) -> None: ...

        prefill_gdn_full = prefill_phase3 = alloc_state = release_state = prefill_phase1

    expected = [] if owns else [(FindingKind.CONTRADICTION, "ssm_state_spec")]
    assert _found(Recurrent()) == expected
    if not owns:
        assert "has no `ssm_state_spec`, so that it would be given none; write it, or" in _only(Recurrent()).message


def test_composite_is_not_told_to_answer_what_its_parts_answer_otherwise() -> None:
    """Of an answer that the parts gave, only a veto may be put in the composite itself."""

    class Recurrent(Sound):
        def is_ssm_layer(self) -> bool:
            return True

        def prefill_phase1(self, *_: Any) -> None: ...

        prefill_gdn_full = prefill_phase3 = prefill_phase1

    class Block(CompositeLayer):
        def __init__(self) -> None:
            self.mixer = Recurrent()

        def decode(self, hidden: Any, _context: Any) -> Any:
            return hidden

        @override
        def capability_parts(self) -> tuple[object, ...]:
            return (self.mixer,)

    told = {finding.name: finding.message for finding in audit_layer(Block()).findings}
    assert told["is_ssm_layer"].endswith("in phases; write what is missing")
    assert told["decode_verify_multi_unsupported"].endswith("write what is missing, or answer True in the class itself")


def test_layer_that_cannot_decode_is_a_contradiction() -> None:
    """Whoever answers or runs at all must decode."""

    class Layer:
        def decode_verify_multi_unsupported(self) -> bool:
            return True

    assert _found(Layer()) == [(FindingKind.CONTRADICTION, "decode")]


def test_every_layer_of_a_stack_must_decode() -> None:
    """In a stack, an object that takes no part in the contract is a finding."""
    with pytest.raises(LayerContractError, match=r"layer 1 .* has no `decode`"):
        RoutePlan([Sound(), object()])


def test_answer_that_changes_is_unstable_where_it_is_asked_once() -> None:
    """The second answer differs from the first; for `fp8_calibration_frozen` that is its use."""
    answers = iter([False, True] * 10)

    class Layer(Sound):
        def decode_graph_unsupported(self) -> bool:
            return next(answers)

    finding = _only(Layer())
    assert (finding.kind, finding.name) == (FindingKind.UNSTABLE, "decode_graph_unsupported")
    assert "False and then True" in finding.message

    class Calibrating(Sound):
        def fp8_calibration_frozen(self) -> bool:
            return next(answers)

    assert _found(Calibrating()) == []


class _Counter:
    def __init__(self) -> None:
        self.count = 0


def _count(self: Any) -> None:
    self.calls += 1


def _append(self: Any) -> None:
    self.log.append("asked")


def _remember(self: Any) -> None:
    self.known["asked"] = True


def _count_inside(self: Any) -> None:
    self.counter.count += 1


def _new(self: Any) -> None:
    self.buffer = [0]


@pytest.mark.parametrize(
    ("effect", "where"),
    [
        (_count, "self.calls"),
        (_append, "self.log[0]"),
        (_remember, "self.known['asked']"),
        (_count_inside, "self.counter.count"),
        (_new, "self.buffer"),
    ],
)
def test_side_effect_of_an_answer_is_found_where_it_happened(effect: Any, where: str) -> None:
    """Whatever asking changes in the layer is named with its path."""

    class Layer(Sound):
        def __init__(self) -> None:
            self.calls, self.log, self.known, self.counter = 0, [], {}, _Counter()

        def is_ssm_layer(self) -> bool:
            effect(self)
            return False

    finding = _only(Layer())
    assert (finding.kind, finding.name) == (FindingKind.SIDE_EFFECT, "is_ssm_layer")
    assert where in finding.message


def test_replaced_object_is_a_side_effect_also_where_the_old_one_is_gone() -> None:
    """An object put in the place of an equal one is a change."""

    class Layer(Sound):
        def __init__(self) -> None:
            self.held = object()

        def is_ssm_layer(self) -> bool:
            self.held = object()
            return False

    assert _found(Layer()) == [(FindingKind.SIDE_EFFECT, "is_ssm_layer")]


class Inner(Sound):
    """A layer with one veto."""

    def decode_graph_unsupported(self) -> bool:
        return True


class _Holder:
    def __init__(self, held: object) -> None:
        self.held = held


class _Slotted:
    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held


_WAYS: dict[str, Callable[[Any], object]] = {
    "attribute": lambda inner: inner,
    "list": lambda inner: [inner],
    "dictionary": lambda inner: {"first": (inner,)},
    "set": lambda inner: {inner},
    "another object": _Holder,
    "slots": _Slotted,
    "bound method": lambda inner: inner.decode,
    "partial": lambda inner: functools.partial(print, inner),
    "depth": lambda inner: _Holder([_Slotted({"x": _Holder(inner)})]),
}


class Wrapper(Sound):
    """A layer around something, with nothing to say."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner


@pytest.mark.parametrize("way", _WAYS)
def test_wrapper_that_hides_an_answer_is_found(way: str) -> None:
    """However the inner layer is held, its answer does not reach the engine, and that is said."""
    finding = _only(Wrapper(_WAYS[way](Inner())))
    assert (finding.kind, finding.name) == (FindingKind.HIDDEN, "decode_graph_unsupported")
    assert "answers decode_graph_unsupported = True" in finding.message
    assert "self.inner" in finding.message
    assert "CompositeLayer" in finding.message


def test_each_hidden_query_and_part_is_listed() -> None:
    """All that a wrapper hides is said at once."""
    finding_names = sorted(
        (finding.name, "self.inner[1]" in finding.message)
        for finding in audit_layer(Wrapper([Inner(), _answering("decode_rollback_unsupported", True, Inner)])).findings
    )
    assert finding_names == [
        ("decode_graph_unsupported", False),
        ("decode_graph_unsupported", True),
        ("decode_rollback_unsupported", True),
    ]


@EVERY_QUERY
def test_wrapper_that_gives_its_own_answer_hides_nothing(query: str) -> None:
    """An author's own answer stands, whatever the parts say."""
    row: Any = QUERIES
    inner = _answering(query, row[query].objection)
    assert (FindingKind.HIDDEN, query) in _found(Wrapper(inner))

    class Silent(Wrapper):
        alloc_state = release_state = prefill_phase1 = prefill_gdn_full = prefill_phase3 = _says(None)

    own = type("Own", (Silent,), {query: _says(row[query].default)})(inner)
    assert (FindingKind.HIDDEN, query) not in _found(own)


def test_proxy_that_forwards_hides_nothing_of_the_one_it_forwards_to() -> None:
    """Delegation by forwarding is right for one inner layer, and a second one behind it is hidden."""

    class Proxy:
        def __init__(self, *inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(self.inner[0], name)

    agreeing = _answering("decode_graph_unsupported", answer=False)
    assert _found(Proxy(Inner())) == []
    assert _found(Proxy(Inner(), agreeing)) == []
    hidden = audit_layer(Proxy(agreeing, Inner())).findings
    assert {(finding.kind, finding.name) for finding in hidden} == {(FindingKind.HIDDEN, "decode_graph_unsupported")}


def test_wrapper_inside_a_wrapper_is_looked_into() -> None:
    """What a part hides is found from outside, and the path is told."""

    class Outer(Wrapper):
        def decode_graph_unsupported(self) -> bool:
            return self.inner.decode_graph_unsupported()

    class Middle(Wrapper):
        def decode_graph_unsupported(self) -> bool:
            return True

    finding = _only(Outer(Middle(_answering("decode_rollback_unsupported", True, Inner))))
    assert finding.name == "decode_rollback_unsupported"
    assert "self.inner" in finding.message


def test_layers_that_know_each_other_in_a_stack_hide_nothing() -> None:
    """A reference to another layer of the same stack, or to the stack, is not a part."""
    first, second = Wrapper(None), _answering("decode_graph_unsupported", answer=True)
    stack = [first, second]
    first.inner = _Holder(stack)
    assert RoutePlan(stack).decode_graph_veto is True


def test_values_named_like_queries_are_no_answers() -> None:
    """A snapshot or a configuration that a layer keeps is no layer inside it."""

    class Configuration:
        is_ssm_layer = True
        decode_graph_unsupported = "yes"

    answers = audit_layer(Inner()).capabilities
    assert _found(Wrapper((answers, Configuration(), Configuration))) == []


def test_composite_that_leaves_out_a_part_hides_it() -> None:
    """A part with answers that is not among the named ones is a finding, with the remedy."""

    class Block(CompositeLayer, Sound):
        def __init__(self) -> None:
            self.mixer = Inner()
            self.embedding = _answering("decode_rollback_unsupported", answer=True)

        @override
        def capability_parts(self) -> tuple[object, ...]:
            return (self.mixer,)

    finding = _only(Block())
    assert finding.name == "decode_rollback_unsupported"
    assert "add it to `capability_parts`" in finding.message


def test_stack_is_refused_with_all_findings_of_all_layers() -> None:
    """Building a model fails once, with everything that is wrong, each with its layer and line."""

    class Misspelt(Sound):
        def is_ssm_layr(self) -> bool:
            return True

    layers = [Sound(), Misspelt(), Wrapper(Inner()), _answering("uses_ssm_pool", 0)]
    with pytest.raises(LayerContractError) as caught:
        RoutePlan(layers)
    assert [(finding.layer_index, finding.kind) for finding in caught.value.findings] == [
        (1, FindingKind.MISSPELT),
        (2, FindingKind.HIDDEN),
        (3, FindingKind.MALFORMED),
    ]
    text = str(caught.value)
    assert "3 findings" in text
    assert "test_audit.py:" in text
    assert "layer 2 (" in text


def test_exception_of_a_layer_comes_out_as_itself_when_a_model_is_built() -> None:
    """The layer's own error is not dressed up; the note names layer and query."""

    class Broken(Sound):
        def uses_ssm_pool(self) -> bool:
            raise AttributeError("lost")

    with pytest.raises(AttributeError, match="lost") as caught:
        RoutePlan([Sound(), Broken(), Wrapper(Inner())])
    assert any("Broken.uses_ssm_pool" in note for note in caught.value.__notes__)


def test_finding_as_json_is_plain_data() -> None:
    """A finding can be written as JSON with its place."""
    data = json.loads(json.dumps(_only(Wrapper(Inner())).as_json()))
    assert data["kind"] == "hidden capability"
    assert data["name"] == "decode_graph_unsupported"
    assert data["layer_index"] is None
    assert data["file"].endswith("test_audit.py")
    assert isinstance(data["line"], int)


def test_class_without_source_has_no_place() -> None:
    """A class made at run time is reported all the same."""
    made: Any = type("Made", (), {"__module__": "nowhere", "is_ssm_layr": True, "decode": Sound.decode})
    (finding,) = audit_class(made)
    assert finding.place is None
    assert finding.as_json()["file"] is None


def test_nothing_but_answers_is_evaluated_when_a_layer_is_audited_and_planned() -> None:
    """Unrelated properties and forwarding code run neither in the audit nor in the plan, on any Python."""

    class Layer(Sound):
        evaluated = 0

        @property
        def expensive(self) -> bool:
            type(self).evaluated += 1
            raise RuntimeError("an unrelated property was evaluated")

        @functools.cached_property
        def cached(self) -> bool:
            return self.expensive

        def decode_graph_unsupported(self) -> bool:
            return True

    layer = Layer()
    assert audit_layer(layer).findings == ()
    assert audit_class(Layer) == ()
    assert RoutePlan([layer, Wrapper(None)]).decode_graph_veto is True
    assert Layer.evaluated == 0


class _SilentError(Exception):
    """Cannot say what happened."""

    @override
    def __str__(self) -> str:
        raise ValueError("no text")


def _raises_silently(_self: object) -> bool:
    raise _SilentError


def test_error_without_a_text_is_a_finding_like_any_other() -> None:
    """What cannot be shown is said to be so."""
    layer = type("Layer", (Sound,), {"is_ssm_layer": _raises_silently})()
    assert _only(layer).message == "raised _SilentError when asked is_ssm_layer: its text cannot be shown"


def test_forwarding_that_raises_is_told_for_what_it_was_asked() -> None:
    """Whatever code of a layer raises in place of AttributeError takes no audit down; its part is passed over."""

    class Forwards(Sound):
        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

    findings = audit_layer(Forwards()).findings
    assert {(finding.kind, finding.name) for finding in findings} == {(FindingKind.RAISING, name) for name in QUERIES}
    wrapper: Any = Sound()
    wrapper.inner = Forwards()
    assert _found(wrapper) == []


@pytest.mark.parametrize("layers", [3, 40])
def test_layers_that_all_hold_one_another_are_each_entered_once(layers: int) -> None:
    """The audit of a layer takes time for what it holds, and not for the ways that lead there."""

    class Knows(Sound):
        entered = 0
        known: tuple[object, ...] = ()

        def decode_graph_unsupported(self) -> bool:
            Knows.entered += 1
            return True

    clique: list[Any] = [Knows() for _ in range(layers)]
    for layer in clique:
        layer.known = clique
    assert _found(clique[0]) == []
    assert Knows.entered <= 3 * layers


def test_part_that_many_ways_lead_to_is_entered_once() -> None:
    """Levels of layers of which each holds all of the next: three to the twelfth ways, and thirty-six layers."""

    class Level(Sound):
        entered = 0

        def __init__(self, below: list[object]) -> None:
            self.below = below

        def decode_graph_unsupported(self) -> bool:
            Level.entered += 1
            return True

    level: list[object] = []
    for _ in range(12):
        level = [Level(level) for _ in range(3)]
    assert _found(Level(level)) == []
    assert Level.entered < 36 * 5


def test_parts_that_are_named_but_not_folded_are_hidden() -> None:
    """A method `capability_parts` without `CompositeLayer` is asked by nobody."""

    class Names(Sound):
        def __init__(self) -> None:
            self.inner = _answering("decode_graph_unsupported", True)

        def capability_parts(self) -> tuple[object, ...]:
            return (self.inner,)

    finding = _only(Names())
    assert (finding.kind, finding.name) == (FindingKind.HIDDEN, "decode_graph_unsupported")
    assert "derive from `CompositeLayer`" in finding.message


def test_part_that_is_held_in_two_ways_is_hidden_by_both() -> None:
    """Two wrappers around one layer hide it each."""
    inner = _answering("decode_graph_unsupported", True)

    class Wraps(Sound):
        def __init__(self) -> None:
            self.inner = inner

        def is_ssm_layer(self) -> bool:
            return False

    class Holds(Sound):
        def __init__(self) -> None:
            self.first, self.second = Wraps(), Wraps()

        def is_ssm_layer(self) -> bool:
            return False

        def decode_graph_unsupported(self) -> bool:
            return True

    told = [finding.message.partition(";")[0] for finding in audit_layer(Holds()).findings]
    assert [message.partition(" (")[0] for message in told] == [
        f"holds self.{name}, which hides that self.inner" for name in ("first", "second")
    ]
