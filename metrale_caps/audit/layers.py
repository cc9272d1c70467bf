# SPDX-License-Identifier: MIT OR Apache-2.0
"""Audits classes, layers and stacks of layers; all that is wrong is found at once."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, cast

from metrale_caps.audit.finding import Finding, FindingKind, text_of
from metrale_caps.audit.near_misses import intended_name, opposite_query
from metrale_caps.audit.object_graph import attributes_of, changed_paths, fingerprint, is_closed, walk
from metrale_caps.audit.source_place import place_of
from metrale_caps.capabilities import FOLDS_PARTS, PARTS, LayerCapabilities, Source, ask, type_name
from metrale_caps.declaration import OBLIGATIONS, declaration_faults, forward_faults
from metrale_caps.errors import CapabilityAnswerError
from metrale_caps.layer import FORWARD_STUBS, forward_method
from metrale_caps.lookup import MISSING, Absence, class_member, own_member
from metrale_caps.queries import QUERIES, Answer, QueryName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from metrale_caps.declaration import Obligation


_Answers: TypeAlias = dict[QueryName, tuple[Answer, Source]]
"""The answers that a layer gave, and where each came from; those that were none are missing."""


_TO_NAME = "add it to `capability_parts`"
_TO_ANSWER = "answer it, or derive from `CompositeLayer` and name the part in `capability_parts`"


@dataclass(frozen=True, slots=True)
class LayerAudit:
    """What the audit of one layer gave.

    Attributes:
        capabilities: the layer's answers, or None where one of them is none.
        findings: all faults found.
    """

    capabilities: LayerCapabilities | None
    findings: tuple[Finding, ...]


def audit_class(cls: type) -> tuple[Finding, ...]:
    """Return what can be found without an instance: misspelt names, malformed declarations and forward methods."""
    return (*_misspelt(cls, None), *_malformed_declarations(cls), *_malformed_forward_methods(cls))


def audit_layer(layer: object, *, in_stack: Iterable[object] = ()) -> LayerAudit:
    """Ask a layer twice and return its answers with everything that is wrong about it.

    Args:
        layer: the layer, an instance.
        in_stack: the layers of the stack it belongs to, which it may know without hiding them.
    """
    answers: _Answers = {}
    findings = [*_misspelt(type(layer), layer), *dict.fromkeys(_asked(layer, answers))]
    findings += _changed_answers(layer, answers)
    if takes_part(layer):
        findings += [*_malformed_forward_methods(type(layer)), *_cannot_decode(layer), *_contradictions(layer, answers)]
    findings += _hidden(layer, answers, {id(other) for other in in_stack} - {id(layer)}, set())
    complete = len(answers) == len(QUERIES)
    return LayerAudit(LayerCapabilities.from_answers(layer, answers) if complete else None, tuple(findings))


def audit_stack(layers: Sequence[object]) -> tuple[LayerAudit, ...]:
    """Audit the layers of a stack, each as part of it; every one of them must decode."""
    audits: list[LayerAudit] = []
    for index, layer in enumerate(layers):
        audit = audit_layer(layer, in_stack=layers)
        findings = [*audit.findings, *_cannot_decode(layer)]
        indexed = tuple(replace(finding, layer_index=index) for finding in dict.fromkeys(findings))
        audits.append(LayerAudit(audit.capabilities, indexed))
    return tuple(audits)


def takes_part(layer: object) -> bool:
    """Return whether an object answers or runs at all; whatever does neither owes the contract nothing."""
    return any(_has_member(layer, query) for query in QUERIES) or any(_has(layer, name) for name in FORWARD_STUBS)


def _has_member(layer: object, query: QueryName) -> bool:
    with contextlib.suppress(Exception):  # a descriptor that raises is one all the same
        return not isinstance(_member(layer, query), Absence)
    return True


def _has(layer: object, name: str) -> bool:
    """Return whether a layer has a forward method; code of its own that raises instead of forwarding gives none."""
    with contextlib.suppress(Exception):
        return forward_method(layer, name) is not None
    return False


def _finding(kind: FindingKind, cls: type, name: str, message: str, error: Exception | None = None) -> Finding:
    return Finding(
        kind=kind, layer_type=type_name(cls), name=name, message=message, place=place_of(cls, name), error=error
    )


def _misspelt(cls: type, layer: object) -> Iterator[Finding]:
    scopes: list[tuple[set[str], set[str]]] = [(set(vars(base)), set(vars(base))) for base in cls.__mro__[:-1]]
    if layer is not None:
        own = {name for name, _ in attributes_of(layer) if type(name) is str}
        scopes.append((own, own | set(vars(cls))))
    for names, beside in scopes:
        for name in sorted(names):
            intended, opposite = intended_name(name, beside), opposite_query(name)
            if opposite is not None:
                if class_member(cls, opposite, vars(QUERIES[opposite].protocol)[opposite]) is not MISSING:
                    continue  # which may well be answered with the other
                meant = f"the query is `{opposite}`, whose answer is the opposite"
            elif intended is not None:
                meant = f"did you mean the {'query' if intended in QUERIES else 'method'} `{intended}`?"
            else:
                continue
            yield _finding(FindingKind.MISSPELT, cls, name, f"has `{name}`, which nothing asks for; {meant}")


def _malformed_declarations(cls: type) -> Iterator[Finding]:
    for query, row in QUERIES.items():
        if class_member(cls, query, vars(row.protocol)[query]) is not MISSING:
            for fault in declaration_faults(cls, query):
                yield _finding(FindingKind.MALFORMED, cls, query, f"declares {query}, which {fault}")


def _malformed_forward_methods(cls: type) -> Iterator[Finding]:
    for name in FORWARD_STUBS:
        for fault in forward_faults(cls, name):
            yield _finding(FindingKind.MALFORMED, cls, name, f"has a `{name}` that {fault}")


def _member(layer: object, query: QueryName) -> object:
    return own_member(layer, query, vars(QUERIES[query].protocol)[query])


def _declares(layer: object, query: QueryName) -> bool:
    with contextlib.suppress(Exception):  # what a descriptor raises is told where the query is asked
        return callable(_member(layer, query))
    return False


def _asked(layer: object, answers: _Answers) -> Iterator[Finding]:
    """Ask each query once, keep the answers, and say what came besides."""
    cls = type(layer)
    before: dict[str, object] | None = None
    for query in QUERIES:
        declared = _declares(layer, query)
        if declared and before is None:
            before = fingerprint(layer)
        try:
            answers[query] = ask(layer, query)
        except Exception as error:  # noqa: BLE001 - whatever a layer raises is what is to be reported
            yield _failed(layer, query, error)
        if declared and before is not None:
            after = fingerprint(layer)
            if changed := changed_paths(before, after):
                message = f"changed {', '.join(changed)} when asked {query}; answering must have no side effects"
                yield _finding(FindingKind.SIDE_EFFECT, cls, query, message)
            before = after


def _failed(layer: object, query: QueryName, error: Exception) -> Finding:
    """Return the finding about an answer that was none, at the part of a composite where it came from."""
    at = _failing_part(layer, query, {id(layer)})
    cls, of = type(at), "" if at is layer else f"; it is a part of {type_name(type(layer))}"
    if isinstance(error, CapabilityAnswerError):
        name = error.query if error.query == PARTS else query
        return _finding(FindingKind.MALFORMED, cls, name, _without_type(error, cls) + of, error)
    raised = f"raised {type(error).__name__} when asked {query}: {text_of(error)}"
    return _finding(FindingKind.RAISING, cls, query, raised + of, error)


def _failing_part(layer: object, query: QueryName, known: set[int]) -> object:
    """Return the innermost part whose own answer fails, or the layer itself."""
    with contextlib.suppress(Exception):
        if FOLDS_PARTS not in getattr(_member(layer, query), "__dict__", ()):
            return layer
        for part in cast("Callable[[], Iterable[object]]", own_member(layer, PARTS, None))():
            if part is not None and id(part) not in known and not _answers_query(part, query):
                return _failing_part(part, query, known | {id(part)})
    return layer


def _answers_query(part: object, query: QueryName) -> bool:
    with contextlib.suppress(Exception):
        ask(part, query)
        return True
    return False


def _without_type(error: CapabilityAnswerError, cls: type) -> str:
    return f"declares {str(error).removeprefix(type_name(cls)).removeprefix('.')}"


def _changed_answers(layer: object, answers: _Answers) -> Iterator[Finding]:
    for query, (once, _) in answers.items():
        if QUERIES[query].changes:
            continue
        try:
            again = str(ask(layer, query)[0])
        except Exception as error:  # noqa: BLE001 - as above
            again = f"raised {type(error).__name__}: {text_of(error)}"
        if again != str(once):
            message = f"answered {query} = {once} and then {again}; it is asked once, when the model is built"
            yield _finding(FindingKind.UNSTABLE, type(layer), query, message)


def _contradictions(layer: object, answers: _Answers) -> Iterator[Finding]:
    for query, obligation in OBLIGATIONS.items():
        answer, source = answers.get(query, (None, Source.DECLARED))
        lacking = [name for name in obligation.methods if not _has(layer, name)]
        if lacking and answer is obligation.answer:
            yield _finding(FindingKind.CONTRADICTION, type(layer), query, _lacks(obligation, lacking, source))
        elif obligation.only_then and not lacking and source is Source.DEFAULT:
            # a declared answer may follow the layer's configuration, and a delegated one its parts
            message = (
                f"has {_listed(obligation.methods)}, which nothing calls while it answers {query} = {answer} by "
                f"default; answer {obligation.answer}, or remove them"
            )
            yield _finding(FindingKind.CONTRADICTION, type(layer), query, message)

    yield from _stateless(layer, answers)


def _stateless(layer: object, answers: _Answers) -> Iterator[Finding]:
    """Yield a finding for a recurrent layer that neither owns a state nor asks for one."""
    recurrent, pooled = (answers.get(query, (None, None))[0] for query in ("is_ssm_layer", "uses_ssm_pool"))
    whole = all(_has(layer, name) for name in OBLIGATIONS["is_ssm_layer"].methods)  # or more is missing, and was said
    if recurrent is True and pooled is True and whole and not _has(layer, "ssm_state_spec"):
        message = (
            "is recurrent (`is_ssm_layer`) and keeps its state in the pool (`uses_ssm_pool`), but has no "
            "`ssm_state_spec`, so that it would be given none; write it, or answer False to `uses_ssm_pool`"
        )
        yield _finding(FindingKind.CONTRADICTION, type(layer), "ssm_state_spec", message)


def _lacks(obligation: Obligation, lacking: Sequence[str], source: Source) -> str:
    answer, query = obligation.answer, obligation.query
    how = "by default" if source is Source.DEFAULT else f"({source.value})"
    if source is not Source.DELEGATED:
        other = f", or answer {not answer}"
    else:  # what stands behind the layer needs what it asks for; turning a route down is the layer's own to do
        other = f", or answer {not answer} in the class itself" if obligation.safe else ""
    return (
        f"answers {query} = {answer} {how} but has no {_listed(lacking)}: {obligation.because}; "
        f"write what is missing{other}"
    )


def _listed(methods: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in methods)


def _cannot_decode(layer: object) -> Iterator[Finding]:
    if not _has(layer, "decode"):
        yield _finding(
            FindingKind.CONTRADICTION, type(layer), "decode", "has no `decode`; every layer must decode one token"
        )


def _hidden(layer: object, answers: _Answers, closed: set[int], entered: set[int]) -> Iterator[Finding]:
    """Yield the answers of parts that do not reach the layer's own, for the layer and for its parts in turn.

    Each part is entered once, however many hold it; the parts of a layer that hold one another hide nothing.
    """
    named = _named_parts(layer)
    parts = list(_parts(layer, closed, named or set()))
    told = {id(part): _answers(part) for _, part in parts}
    for query, (answer, source) in answers.items():
        answering = [(path, part) for path, part in parts if _declares(part, query)]
        if source is Source.DECLARED or not answering:
            continue
        composite = named if source is Source.DELEGATED else None  # without a fold, names alone reach nobody
        if composite is not None:
            answering = [(path, part) for path, part in answering if id(part) not in composite]
        elif source is Source.DELEGATED and QUERIES[query].of_parts(_said(query, told.values())) is answer:
            continue
        way = _TO_ANSWER if composite is None else _TO_NAME
        for path, part in answering:
            (said,) = _said(query, [told[id(part)]])
            hidden = f"{path} ({type_name(type(part))}) answers {query} = {said}"
            yield _finding(FindingKind.HIDDEN, type(layer), query, f"hides that {hidden}; {way}")
    inner = closed | told.keys() | {id(layer)}
    for path, part in parts:
        if id(part) not in entered:
            entered.add(id(part))
            for finding in _hidden(part, told[id(part)], inner, entered):
                yield replace(finding, message=f"holds {path}, which {finding.message}")


def _answers(part: object) -> _Answers:
    """Return the answers that a part gives; one that is none is reported where the part is audited itself."""
    answers: _Answers = {}
    for query in QUERIES:
        with contextlib.suppress(Exception):
            answers[query] = ask(part, query)
    return answers


def _said(query: QueryName, told: Iterable[_Answers]) -> list[Answer]:
    return [answers.get(query, (None, None))[0] for answers in told]


def _parts(layer: object, closed: set[int], named: set[int]) -> Iterator[tuple[str, object]]:
    """Yield the nearest objects inside a layer that declare an answer, or that a composite names."""
    found = {*closed}
    known: dict[type, bool] = {}
    for path, value in walk(layer, found):
        if is_closed(value):
            continue
        declares = _may_declare(value, known) and any(_declares(value, query) for query in QUERIES)
        if declares or id(value) in named:
            found.add(id(value))
            yield path, value


def _may_declare(value: object, known: dict[type, bool]) -> bool:
    """Return False for most objects, at little cost: neither they nor their classes have any of the names."""
    cls = type(value)
    if cls not in known:
        known[cls] = any(not QUERIES.keys().isdisjoint(vars(base)) for base in cls.__mro__)
    return known[cls] or any(name in QUERIES for name, _ in attributes_of(value))


def _named_parts(layer: object) -> set[int] | None:
    """Return the identities of a composite's parts, or None for a layer that is none."""
    with contextlib.suppress(Exception):  # a composite that cannot name its parts has said so when it was asked
        parts = own_member(layer, PARTS, None)
        if isinstance(parts, Absence):
            return None
        return {id(part) for part in cast("Callable[[], Iterable[object]]", parts)()}
    return set()
