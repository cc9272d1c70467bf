# SPDX-License-Identifier: MIT OR Apache-2.0
"""`metrale-caps check`: the audit of layers, each finding with file and line; status 1 if there is one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metrale_caps.audit import audit_class, audit_layer, takes_part
from metrale_caps.cli.targets import find_targets, foreign_code
from metrale_caps.cli.terminal import print_json
from metrale_caps.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse

    from metrale_caps.audit import Finding
    from metrale_caps.cli.targets import Target


@dataclass(frozen=True, slots=True)
class _Checked:
    """One layer's audit.

    Attributes:
        label: what the layer is called.
        findings: all faults found.
        left_out: what could not be checked and why, or None.
    """

    label: str
    findings: tuple[Finding, ...]
    left_out: str | None


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "check",
        help="audits a layer or a plugin",
        description="Looks for misspelt, malformed, hidden, contradicting and unstable answers; status 1 on a finding.",
    )
    parser.add_argument("target", help="module:Class or module:function, a plugin or its layer, or a distribution")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    checked = [_check(target) for target in find_targets(arguments.target)]
    if arguments.json:
        print_json({"checked": [_as_json(one) for one in checked]})
    else:
        for one in checked:
            sys.stdout.write("\n".join(_lines(one)) + "\n")
    return 1 if any(one.findings for one in checked) else 0


def _check(target: Target) -> _Checked:
    with foreign_code(target.label, "checking it"):
        if target.makeable is None:
            return _check_instance(target)
        if target.layer_class is None:
            raise ConfigurationError(f"{target.label!r} {target.makeable}")
        left_out = f"only the class was read, since it {target.makeable}"
        return _Checked(target.label, audit_class(target.layer_class), left_out)


def _check_instance(target: Target) -> _Checked:
    layer = target.make()
    asked = audit_layer(layer)
    known = {(finding.kind, finding.name) for finding in asked.findings}
    declared = [finding for finding in audit_class(type(layer)) if (finding.kind, finding.name) not in known]
    nothing = None if takes_part(layer) else "it answers no query and has no forward method"
    return _Checked(target.label, (*asked.findings, *declared), nothing)


def _lines(checked: _Checked) -> list[str]:
    lines = [
        f"{f'{finding.place}: ' if finding.place else ''}{finding.kind.value}: {finding}"
        for finding in checked.findings
    ]
    count = len(lines) or "no"
    note = f" ({checked.left_out})" if checked.left_out else ""
    return [*lines, f"{checked.label}: {count} finding{'' if count == 1 else 's'}{note}"]


def _as_json(checked: _Checked) -> dict[str, Any]:
    return {
        "layer": checked.label,
        "findings": [finding.as_json() for finding in checked.findings],
        "left_out": checked.left_out,
    }
