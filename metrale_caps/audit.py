# SPDX-License-Identifier: MIT OR Apache-2.0
"""Findings about layers and their classes: all at once, each with the place to mend.

A finding is a fault that no call would show: a method that is never asked because of its name, answers that a wrapper
hides, answers that contradict what the layer can do. A stack of layers is audited when its route plan is made, and is
refused with all findings; `metrale-caps check` audits one class or plugin.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from metrale_caps.capabilities import PARTS, LayerCapabilities, Source, capability_of, type_name
from metrale_caps.declaration import OBLIGATIONS, declaration_faults
from metrale_caps.errors import CapabilityAnswerError
from metrale_caps.layer import FORWARD_STUBS, forward_method
from metrale_caps.lookup import MISSING, Absence, class_member, own_member
from metrale_caps.near_misses import intended_name
from metrale_caps.object_graph import attributes_of, changed_paths, fingerprint, walk
from metrale_caps.queries import QUERIES, Answer, QueryName
from metrale_caps.source_place import Place, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


class FindingKind(Enum):
    """What kind of fault a finding is."""

    MISSPELT = "misspelt"
    """A public attribute is a slip away from a name of the contract, under which nothing will look."""
    MALFORMED = "malformed"
    """What stands under a query's name is no answer."""
    RAISING = "raising"
    """Asking raised an exception of the layer's own."""
    HIDDEN = "hidden capability"
    """A part of the layer answers a query, and the layer itself does not."""
    CONTRADICTION = "contradiction"
    """An answer obliges the layer to have a method that it lacks."""
    UNSTABLE = "unstable"
    """The answer to a query that is asked once was another the second time."""
    SIDE_EFFECT = "side effect"
    """Asking changed the layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault.

    Attributes:
        kind: what kind of fault it is.
        layer_type: qualified name of the layer's class.
        name: the query or method that it is about.
        message: what was found and what to do, without the layer.
        place: where to mend it, or None where the source is not to be had.
        layer_index: position in the stack, or None for a layer on its own.
        error: the exception behind it, or None.
    """

    kind: FindingKind
    layer_type: str
    name: str
    message: str
    place: Place | None = None
    layer_index: int | None = None
    error: Exception | None = field(default=None, compare=False)

    @override
    def __str__(self) -> str:
        who = self.layer_type if self.layer_index is None else f"layer {self.layer_index} ({self.layer_type})"
        return f"{who} {self.message}"

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return {
            "kind": self.kind.value,
            "layer_type": self.layer_type,
            "layer_index": self.layer_index,
            "name": self.name,
            "message": self.message,
            "file": self.place.file if self.place else None,
            "line": self.place.line if self.place else None,
        }


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
    """Return what can be found without an instance: misspelt names and malformed declarations."""
    return (*_misspelt(cls, None), *_malformed_declarations(cls))


def audit_layer(layer: object, *, in_stack: Iterable[object] = ()) -> LayerAudit:
    """Ask a layer twice and return its answers with everything that is wrong about it.

    Args:
        layer: the layer, an instance.
        in_stack: the layers of the stack it belongs to, which it may know without hiding them.
    """
    cls = type(layer)
    first: dict[QueryName, Answer] = {}
    findings = [*_misspelt(cls, layer), *_asked(layer, first)]
    capabilities = None
    if not any(finding.kind in {FindingKind.MALFORMED, FindingKind.RAISING} for finding in findings):
        capabilities = LayerCapabilities.of(layer)
        findings += _changed_answers(layer, first, capabilities)
        findings += _contradictions(layer, capabilities)
        findings += _hidden(layer, capabilities, {id(other) for other in in_stack} - {id(layer)})
    return LayerAudit(capabilities, tuple(findings))


def audit_stack(layers: Sequence[object]) -> tuple[LayerAudit, ...]:
    """Audit the layers of a stack, each as part of it; every one of them must decode."""
    audits: list[LayerAudit] = []
    for index, layer in enumerate(layers):
        audit = audit_layer(layer, in_stack=layers)
        findings = [*audit.findings, *_cannot_decode(layer)]
        indexed = tuple(replace(finding, layer_index=index) for finding in dict.fromkeys(findings))
        audits.append(LayerAudit(audit.capabilities, indexed))
    return tuple(audits)


def _finding(kind: FindingKind, cls: type, name: str, message: str, error: Exception | None = None) -> Finding:
    return Finding(
        kind=kind, layer_type=type_name(cls), name=name, message=message, place=place_of(cls, name), error=error
    )


def _misspelt(cls: type, layer: object) -> Iterator[Finding]:
    scopes: list[tuple[set[str], set[str]]] = [(set(vars(base)), set(vars(base))) for base in cls.__mro__[:-1]]
    if layer is not None:
        own = {name for name, _ in attributes_of(layer)}
        scopes.append((own, own | set(vars(cls))))
    for names, beside in scopes:
        for name in sorted(names):
            intended = intended_name(name, beside)
            if intended is not None:
                known = "query" if intended in QUERIES else "method"
                message = f"has `{name}`, which nothing asks for; did you mean the {known} `{intended}`?"
                yield _finding(FindingKind.MISSPELT, cls, name, message)


def _malformed_declarations(cls: type) -> Iterator[Finding]:
    for query, row in QUERIES.items():
        if class_member(cls, query, vars(row.protocol)[query]) is not MISSING:
            for fault in declaration_faults(cls, query):
                yield _finding(FindingKind.MALFORMED, cls, query, f"declares {query}, which {fault}")


def _declares(layer: object, query: QueryName) -> bool:
    return callable(own_member(layer, query, vars(QUERIES[query].protocol)[query]))


def _asked(layer: object, answers: dict[QueryName, Answer]) -> Iterator[Finding]:
    """Ask each query once, keep the answers, and say what came besides."""
    cls = type(layer)
    ask = cast("Callable[[object, QueryName], Answer]", capability_of)
    for query in QUERIES:
        before = fingerprint(layer) if _declares(layer, query) else None
        try:
            answers[query] = ask(layer, query)
        except CapabilityAnswerError as error:
            yield _finding(FindingKind.MALFORMED, cls, query, _without_type(error, cls), error)
        except Exception as error:  # noqa: BLE001 - whatever a layer raises is what is to be reported
            raised = f"raised {type(error).__name__} when asked {query}: {error}"
            yield _finding(FindingKind.RAISING, cls, query, raised, error)
        if before is not None and (changed := changed_paths(before, fingerprint(layer))):
            message = f"changed {', '.join(changed)} when asked {query}; answering must have no side effects"
            yield _finding(FindingKind.SIDE_EFFECT, cls, query, message)


def _without_type(error: CapabilityAnswerError, cls: type) -> str:
    return f"declares {str(error).removeprefix(type_name(cls)).removeprefix('.')}"


def _changed_answers(layer: object, first: Mapping[QueryName, Answer], second: LayerCapabilities) -> Iterator[Finding]:
    for query, row in QUERIES.items():
        once, again = first[query], second.answer(query)
        if once is not again and not row.changes:
            message = f"answered {query} = {once} and then {again}; it is asked once, when the model is built"
            yield _finding(FindingKind.UNSTABLE, type(layer), query, message)


def _contradictions(layer: object, answers: LayerCapabilities) -> Iterator[Finding]:
    if not _is_layer(layer, answers):
        return
    yield from _cannot_decode(layer)
    for query, obligation in OBLIGATIONS.items():
        lacking = [name for name in obligation.methods if forward_method(layer, name) is None]
        if lacking and answers.answer(query) is obligation.answer:
            methods = ", ".join(f"`{name}`" for name in lacking)
            how = "by default" if answers.sources[query] is Source.DEFAULT else f"({answers.sources[query].value})"
            message = (
                f"answers {query} = {obligation.answer} {how} but has no {methods}: {obligation.because}; write what "
                f"is missing, or answer {not obligation.answer}"
            )
            yield _finding(FindingKind.CONTRADICTION, type(layer), query, message)


def _is_layer(layer: object, answers: LayerCapabilities) -> bool:
    """Return whether an object takes part in the contract at all; other modules owe it nothing."""
    declared = any(source is not Source.DEFAULT for source in answers.sources.values())
    return declared or any(forward_method(layer, name) for name in FORWARD_STUBS)


def _cannot_decode(layer: object) -> Iterator[Finding]:
    if forward_method(layer, "decode") is None:
        yield _finding(
            FindingKind.CONTRADICTION, type(layer), "decode", "has no `decode`; every layer must decode one token"
        )


def _hidden(layer: object, answers: LayerCapabilities, closed: set[int]) -> Iterator[Finding]:
    """Yield the answers of parts that do not reach the layer's own, for the layer and for its parts in turn."""
    parts = list(_parts(layer, closed))
    named = _named_parts(layer)
    for query, row in QUERIES.items():
        source = answers.sources[query]
        answering = [(path, part) for path, part in parts if _declares(part, query)]
        if source is Source.DECLARED or not answering:
            continue
        if source is Source.DELEGATED and named is None:
            told = [_answer_or_none(part, query) for _, part in parts]
            answering = [] if row.of_parts(told) is answers.answer(query) else answering
        elif named is not None:
            answering = [(path, part) for path, part in answering if id(part) not in named]
        for path, part in answering:
            yield _hidden_finding(layer, query, path, part, composite=named is not None)
    for path, part in parts:
        for finding in _hidden_by_part(part, closed | {id(layer)}):
            yield replace(finding, message=f"holds {path}, which {finding.message}")


def _hidden_by_part(part: object, closed: set[int]) -> Iterator[Finding]:
    try:
        answers = LayerCapabilities.of(part)
    except Exception:  # noqa: BLE001 - reported for the layer that has the part as its own
        return
    yield from _hidden(part, answers, closed | {id(part)})


def _parts(layer: object, closed: set[int]) -> Iterator[tuple[str, object]]:
    """Yield the nearest objects inside a layer that declare an answer."""
    found = {*closed}
    for path, value in walk(layer, found):
        if not isinstance(value, type) and any(_declares(value, query) for query in QUERIES):
            found.add(id(value))
            yield path, value


def _named_parts(layer: object) -> set[int] | None:
    """Return the identities of a composite's parts, or None for a layer that is none."""
    parts = own_member(layer, PARTS, None)
    if isinstance(parts, Absence):
        return None
    return {id(part) for part in cast("Callable[[], Iterable[object]]", parts)()}


def _answer_or_none(part: object, query: QueryName) -> Answer:
    try:
        return cast("Callable[[object, QueryName], Answer]", capability_of)(part, query)
    except Exception:  # noqa: BLE001 - a part that cannot be asked tells nothing
        return None


def _hidden_finding(layer: object, query: QueryName, path: str, part: object, *, composite: bool) -> Finding:
    answer = _answer_or_none(part, query)
    way = (
        "add it to `capability_parts`"
        if composite
        else "answer it, or derive from `CompositeLayer` and name the part in `capability_parts`"
    )
    message = f"hides that {path} ({type_name(type(part))}) answers {query} = {answer}; {way}"
    return _finding(FindingKind.HIDDEN, type(layer), query, message)
