# SPDX-License-Identifier: MIT OR Apache-2.0
"""Mutation testing of the contract: `python tests/mutants.py --work FOLDER [MODULE ...]`; run by `nox -s mutants`.

`mutmut` changes the functions of the modules that `[tool.mutmut]` names, one change at a time, and runs the core tests
that reach the change. A mutant that no test notices must stand in `mutants.toml` with the reason, and what stands
there must still survive, so that the list tells the truth.

It changes no property, no decorator and nothing outside functions, so those are not judged here.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
ACCEPTED = Path(__file__).with_name("mutants.toml")
COPIED = ("pyproject.toml", "metrale_caps", "tests/conftest.py", "tests/core", "tests/typing")
NOTICED = {"killed", "timeout"}
MOST_TIMEOUTS = 0.02
_NAME = re.compile(r"(?P<module>[\w.]+)\.x_?(?P<function>.+)__mutmut_\d+")
_CAST_TYPE = re.compile(r"""\bcast\((?:None|"[^"]*")(?=, )""")


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """A change of one function, told by its text so that edits elsewhere do not rename it.

    Attributes:
        file: the changed file, from the root of the repository.
        function: the function, with its class.
        was: the lines as they are, without indentation.
        becomes: the lines as they were changed to.
        diff: what `mutmut` shows.
    """

    file: str
    function: str
    was: str
    becomes: str
    diff: str = field(default="", compare=False)

    @property
    def is_the_same_program(self) -> bool:
        """Whether only the type in a `cast` was changed, which is for checkers and never looked at."""
        return _CAST_TYPE.sub("cast(_", self.was) == _CAST_TYPE.sub("cast(_", self.becomes)


def parse_mutant(name: str, diff: str) -> Mutant:
    """Return the mutant that `mutmut` calls `name`, from the difference it shows."""
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise ValueError(f"mutmut names no mutant like this: {name!r}")
    changed = [line for line in diff.splitlines() if line[:1] in {"-", "+"} and line[:3] not in {"---", "+++"}]
    was, becomes = ("\n".join(line[1:].strip() for line in changed if line[0] == sign) for sign in "-+")
    function = parts["function"].strip("ǁ").replace("ǁ", ".")
    return Mutant(parts["module"].replace(".", "/") + ".py", function, was, becomes, diff)


def read_accepted(text: str) -> dict[Mutant, str]:
    """Return the accepted survivors with their reasons.

    Raises:
        ValueError: an entry has no reason, or stands there twice.
    """
    accepted: dict[Mutant, str] = {}
    for entry in tomllib.loads(text).get("accepted", []):
        mutant = Mutant(entry["file"], entry["function"], entry["was"].strip(), entry["becomes"].strip())
        if not entry["why"].strip():
            raise ValueError(f"no reason is given for {mutant}")
        if mutant in accepted:
            raise ValueError(f"listed twice: {mutant}")
        accepted[mutant] = entry["why"]
    return accepted


def verdict(survivors: set[Mutant], accepted: dict[Mutant, str], files: set[str]) -> list[str]:
    """Return what is wrong: survivors that are not accepted, and accepted ones of these files that do not survive."""
    new = [mutant for mutant in sorted(survivors - accepted.keys()) if not mutant.is_the_same_program]
    gone = [mutant for mutant in sorted(accepted.keys() - survivors) if mutant.file in files]
    return [
        *(f"no test notices this change of {mutant.file}, {mutant.function}:\n{mutant.diff}" for mutant in new),
        *(
            f"{ACCEPTED.name} accepts a change of {mutant.file}, {mutant.function}, that is noticed or cannot be made "
            f"any more; take it off the list:\n-{mutant.was}\n+{mutant.becomes}\n"
            for mutant in gone
        ),
    ]


def _mutmut(work: Path, *arguments: str, quiet: bool = True) -> str:
    # as in continuous integration, hypothesis takes the same examples each time
    environment = {**os.environ, "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "mutmut", *arguments]
    done = subprocess.run(command, cwd=work, env=environment, text=True, check=False, capture_output=quiet)  # noqa: S603
    if done.returncode:
        sys.exit(f"mutmut {' '.join(arguments)} failed with status {done.returncode}\n{done.stdout or ''}")
    return done.stdout or ""


def _copy(work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    for name in COPIED:
        target = work / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)


def main() -> int:
    """Make the mutants, run the tests on each, and compare with the list; status 1 where they differ."""
    parser = argparse.ArgumentParser(prog="tests/mutants.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="folder to work in; it is emptied first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("modules", nargs="*", help="such as metrale_caps.audit; all that are configured by default")
    chosen = parser.parse_args()
    accepted = read_accepted(ACCEPTED.read_text(encoding="utf-8"))
    _copy(chosen.work)
    wanted = [f"{module}.x*" for module in chosen.modules]
    _mutmut(chosen.work, "run", "--max-children", str(chosen.jobs), *wanted, quiet=False)
    listed = _mutmut(chosen.work, "results", "--all", "true")
    statuses = dict(line.strip().rsplit(": ", 1) for line in listed.splitlines() if "__mutmut_" in line)
    modules = set(chosen.modules)
    statuses = {name: status for name, status in statuses.items() if not modules or _module(name) in modules}
    if not statuses:
        sys.exit("no mutants were made")
    if list(statuses.values()).count("timeout") > MOST_TIMEOUTS * len(statuses):
        # mutmut calls it a timeout too if pytest refuses to run what it was told to
        sys.exit("too many mutants timed out: the machine is overloaded, or names of tests differ from run to run")
    files = {f"{_module(name).replace('.', '/')}.py" for name in statuses}
    unnoticed = [name for name, status in statuses.items() if status not in NOTICED]
    survivors = {parse_mutant(name, _mutmut(chosen.work, "show", name)) for name in unnoticed}
    wrong = verdict(survivors, accepted, files)
    counts = ", ".join(f"{count} {status}" for status, count in Counter(statuses.values()).items())
    lines = [
        *wrong,
        *sorted(files),
        f"{len(statuses)} mutants: {counts}",
        f"{len(survivors & accepted.keys())} survivors are accepted; {len(wrong)} differences from {ACCEPTED.name}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if wrong else 0


def _module(name: str) -> str:
    parts = _NAME.fullmatch(name)
    return parts["module"] if parts else ""


if __name__ == "__main__":
    sys.exit(main())
