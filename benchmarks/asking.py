# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a question to a layer costs, what the decision of a step costs, and what importing the contract costs.

What is compared is timed in turn, in one process. The ways of asking are first compared by the very source that is
timed; where one gives another answer, nothing is printed.
"""

from __future__ import annotations

import argparse
import tracemalloc
from typing import TYPE_CHECKING, Any

from benchmarks import asked_layers as ways
from benchmarks.imports import import_times
from benchmarks.registry import Case, RedError
from benchmarks.timing import interleaved, target
from metrale_caps import LayerCapabilities, RoutePlan

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS = 128
QUERY = "is_ssm_layer"
SNAPSHOTS = "LayerCapabilities.of"
DECISION = (
    "graphs = {plan}.graphs_ready_after_fp8_kv_cal() and not {plan}.decode_graph_veto; perseq = {plan}.hc_perseq; "
    "separate = {plan}.hc_qsa_perseq; together = {plan}.can_batch_verify_dispatch"
)
POLL = "all(capability_of(layer, 'fp8_calibration_frozen') is not False for layer in {layers})"


def _run(options: list[str]) -> list[str]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks asking")
    parser.add_argument("--rounds", type=int, default=31, help="samples of each statement")
    parser.add_argument("--import-rounds", type=int, default=15, help="fresh interpreters for each import")
    chosen = parser.parse_args(options)
    names = ways.common_names()
    kinds = {"plain": ways.Forwards, "module": ways.large_module()}
    for kind, base in kinds.items():
        for declared, cls in ((True, ways.declaring(base)), (False, base)):
            name = _name(kind, declared=declared)
            names[f"all_{name}"] = [cls() for _ in range(LAYERS)]
            names[name] = cls()
            names[f"snapshot_of_{name}"] = LayerCapabilities.of(names[name])
            ways.check_ways(names, name, declared=declared)
    return [
        f"{chosen.rounds} rounds; median (minimum to maximum); a ratio is the median of the ratios within a round",
        f"module: an nn.Module of {ways.SUB_MODULES} sub-modules, {ways.PARAMETERS} parameters, {ways.BUFFERS} buffers",
        *_questions(names, chosen.rounds),
        *_stacks(names, max(5, chosen.rounds // 3)),
        *_steps(ways.large_module(), chosen.rounds),
        *import_times(chosen.import_rounds),
    ]


def _name(kind: str, *, declared: bool) -> str:
    return f"{kind}_{'present' if declared else 'absent'}"


def _questions(names: dict[str, object], rounds: int) -> list[str]:
    groups = [(kind, declared) for kind in ("plain", "module") for declared in (True, False)]
    statements = {
        f"{way} {_name(kind, declared=declared)}": source.format(layer=_name(kind, declared=declared), query=QUERY)
        for kind, declared in groups
        for way, source in ways.ways_of(declared=declared).items()
    }
    timings = interleaved(statements, names, rounds=rounds)
    lines = ["", f"one question ({QUERY}), ns"]
    for kind, declared in groups:
        name = _name(kind, declared=declared)
        lines.append(f"  {kind}, method {'present' if declared else 'absent'}")
        lines += [f"    {way:32s}{timings.spread(f'{way} {name}', 1e-9)}" for way in ways.ways_of(declared=declared)]
        if declared:
            ratio = timings.ratio(f"{ways.ASKED} {name}", f"{ways.DIRECT} {name}")
            lines.append(target("capability_of over the direct call", ratio, most=1.5))
    absent = {way: f"{way} module_absent" for way in ways.WAYS}
    read = timings.ratio(f"{ways.SNAPSHOT} plain_present", f"{ways.DIRECT} plain_present")
    return [
        *lines,
        target("capability_of of an absent method of a module, ns,", timings[absent[ways.ASKED]] * 1e9, most=210),
        target("getattr over that", timings.ratio(absent[ways.GETATTR], absent[ways.ASKED]), least=15),
        target("isinstance (typing) over that", timings.ratio(absent[ways.TYPING], absent[ways.ASKED]), least=100),
        target("reading a snapshot over a plain direct call", read, most=0.25),
    ]


def _stacks(names: dict[str, object], rounds: int) -> list[str]:
    groups = [(kind, declared) for kind in ("plain", "module") for declared in (True, False)]
    statements: dict[str, str] = {}
    for kind, declared in groups:
        name = _name(kind, declared=declared)
        asked = {way: ways.WAYS[way] for way in (ways.ASKED, ways.GETATTR, ways.EXTENSIONS, ways.TYPING)}
        if declared:
            asked = {ways.DIRECT: ways.WAYS[ways.DIRECT], **asked}
        statements |= {f"{way} {name}": ways.all_ten(source, f"all_{name}") for way, source in asked.items()}
        statements[f"{SNAPSHOTS} {name}"] = f"[LayerCapabilities.of(layer) for layer in all_{name}]"
    timings = interleaved(statements, names, rounds=rounds)
    lines = ["", f"all ten answers of {LAYERS} layers, ms"]
    for kind, declared in groups:
        name = _name(kind, declared=declared)
        lines.append(f"  {kind}, all ten methods {'present' if declared else 'absent'}")
        lines += [
            f"    {statement.removesuffix(name):32s}{timings.spread(statement, 1e-3)}"
            for statement in statements
            if statement.endswith(f" {name}")
        ]
        lines.append(target(f"{SNAPSHOTS}, ms,", timings[f"{SNAPSHOTS} {name}"] * 1e3, most=0.8))
        if not declared:
            ratio = timings.ratio(f"{SNAPSHOTS} {name}", f"{SNAPSHOTS} {_name(kind, declared=True)}")
            lines.append(target("absent over present", ratio, most=1.1))
    absent = f"{SNAPSHOTS} module_absent"
    return [
        *lines,
        target("getattr over that", timings.ratio(f"{ways.GETATTR} module_absent", absent), least=8),
        target("isinstance (typing) over that", timings.ratio(f"{ways.TYPING} module_absent", absent), least=40),
    ]


class _Calibrates:
    """Answers for its calibration."""

    frozen = True

    def fp8_calibration_frozen(self) -> bool | None:
        return self.frozen


def _steps(base: type, rounds: int) -> list[str]:
    calibrating: Any = type("Calibrating", (_Calibrates, base), {})
    names = ways.common_names()
    stacks = {count: [calibrating() for _ in range(count)] for count in (32, LAYERS, 512)}
    names |= {f"settled_{count}": RoutePlan(layers) for count, layers in stacks.items()}
    layers = [calibrating() for _ in range(LAYERS)]
    layers[LAYERS // 2].frozen = False
    names |= {"layers": layers, "open": RoutePlan(layers), "RoutePlan": RoutePlan}
    names |= {f"all_{declared}": [cls() for _ in range(LAYERS)] for declared, cls in _classes(base).items()}
    _check_steps(names, layers[LAYERS // 2])
    statements = {
        **{f"settled, {count} layers": DECISION.format(plan=f"settled_{count}") for count in stacks},
        f"one of {LAYERS} layers calibrates": DECISION.format(plan="open"),
        f"asking all {LAYERS} with capability_of": POLL.format(layers="layers"),
    }
    timings = interleaved(statements, names, rounds=rounds)
    plans = {f"{declared} methods": f"RoutePlan(all_{declared})" for declared in _classes(base)}
    building = interleaved(plans, names, rounds=5, at_most=5)
    settled, open_, polled = f"settled, {LAYERS} layers", *list(statements)[-2:]
    transient = {plan: _allocated(names, DECISION.format(plan=plan)) for plan in (f"settled_{LAYERS}", "open")}
    return [
        "",
        "the decision of a step, from a plan's attributes, ns",
        *(f"    {name:40s}{timings.spread(name, 1e-9)}" for name in statements),
        target("settled, ns,", timings[settled] * 1e9, most=150),
        target("512 layers over 32, settled,", timings.ratio("settled, 512 layers", "settled, 32 layers"), most=1.1),
        target("bytes allocated by a settled decision", transient[f"settled_{LAYERS}"], most=0),
        target("while one layer calibrates, ns,", timings[open_] * 1e9, most=500),
        f"    it allocates {transient['open']} bytes for a moment, the layer's bound method, and keeps none",
        f"    asking all layers costs {timings.ratio(polled, settled):.0f} times the settled decision",
        "",
        f"making the plan of {LAYERS} modules, with the audit, ms",
        *(f"    {name:40s}{building.spread(name, 1e-3)}" for name in plans),
    ]


def _classes(base: type) -> dict[str, type]:
    return {"present": ways.declaring(base), "absent": base}


def _check_steps(names: dict[str, object], middle: Any) -> None:
    """Compare what the timed statements find with what they should, before and after the calibration freezes."""
    checks = {POLL.format(layers="layers"): False, "open.graphs_ready_after_fp8_kv_cal()": False}
    checks |= {f"{name}.graphs_ready_after_fp8_kv_cal()": True for name in names if name.startswith("settled")}
    checks |= {f"{name}.decode_graph_veto": False for name in names if name.startswith("settled")}
    _check(names, checks)
    middle.frozen = True
    _check(names, {POLL.format(layers="layers"): True, "RoutePlan(layers).graphs_ready_after_fp8_kv_cal()": True})
    middle.frozen = False


def _check(names: dict[str, object], checks: dict[str, bool]) -> None:
    for expression, expected in checks.items():
        given: object = eval(expression, names)  # noqa: S307 - source of this file
        if given is not expected:
            raise RedError(f"{expression} is {given!r} rather than {expected}")


def _allocated(names: dict[str, object], statement: str) -> int:
    """Return the most bytes that a statement holds at once, after a first run; nothing of them may stay.

    Raises:
        RedError: something stays.
    """
    body: dict[str, Callable[[], None]] = {}
    exec(f"def decide():\n    {statement}", names, body)  # noqa: S102 - source of this file
    decide = body["decide"]
    decide()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        decide()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if after > before:
        raise RedError(f"a decision keeps {after - before} bytes")
    return peak - before


CASE = Case("asking", "what a question, a step's decision and the import of the contract cost", _run)
