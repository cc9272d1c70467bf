# SPDX-License-Identifier: MIT OR Apache-2.0
"""Times statements against each other: in one process, in turn, so that what slows the machine slows them all."""

from __future__ import annotations

import time
import timeit
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds that each contender took, one value for each round."""

    rounds: Mapping[str, Sequence[float]]

    def __getitem__(self, name: str) -> float:
        return median(self.rounds[name])

    def ratio(self, name: str, reference: str) -> float:
        """Return the median over the rounds of one contender's time over another's in the same round."""
        return median(mine / other for mine, other in zip(self.rounds[name], self.rounds[reference], strict=True))

    def spread(self, name: str, unit: float) -> str:
        """Return median, minimum and maximum of a contender in units of so many seconds."""
        values = [value / unit for value in self.rounds[name]]
        return f"{rounded(median(values)):>9} ({rounded(min(values))} to {rounded(max(values))})"


def interleaved(
    statements: Mapping[str, str],
    names: dict[str, object],
    *,
    rounds: int,
    sample: float = 1e-3,
    at_most: float = 20.0,
) -> Timings:
    """Time statements in turn, each round starting at another one.

    Args:
        statements: Python source by the contender's name.
        names: what the source may name.
        rounds: how often each is sampled.
        sample: seconds that one sample is to take, by repeating the statement.
        at_most: seconds after which no further round begins.
    """
    timers = {name: timeit.Timer(statement, globals=names) for name, statement in statements.items()}
    repeats = {name: _repeats(timer, sample) for name, timer in timers.items()}
    order = list(timers)
    taken: dict[str, list[float]] = {name: [] for name in order}
    started = time.perf_counter()
    for first in range(rounds):
        for name in order[first % len(order) :] + order[: first % len(order)]:
            taken[name].append(timers[name].timeit(repeats[name]) / repeats[name])
        if time.perf_counter() - started > at_most:
            break
    return Timings(taken)


def _repeats(timer: timeit.Timer, sample: float) -> int:
    repeats = 1
    while True:
        seconds = timer.timeit(repeats)
        if seconds >= sample / 2:
            return max(1, round(repeats * sample / seconds))
        repeats *= 4


def rounded(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def target(what: str, value: float, *, most: float | None = None, least: float | None = None) -> str:
    """Return one line: what was aimed at, what was measured, and whether that is met."""
    met = (most is None or value <= most) and (least is None or value >= least)
    bound = f"at most {most:g}" if least is None else f"at least {least:g}"
    return f"    target: {what} {bound}: {rounded(value)}, {'met' if met else 'MISSED'}"
