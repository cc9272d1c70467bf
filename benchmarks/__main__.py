# SPDX-License-Identifier: MIT OR Apache-2.0
"""`python -m benchmarks [CASE] [OPTIONS]`: run one case, or list them."""

from __future__ import annotations

import sys

from benchmarks import asking, demo
from benchmarks.registry import RedError, machine

CASES = {case.name: case for case in (demo.CASE, asking.CASE)}


def main(arguments: list[str]) -> int:
    """Run the named case, the first by default; status 1 where it is red."""
    name, *options = arguments or [demo.CASE.name]
    if name not in CASES:
        print(*(f"{case.name}: {case.about}" for case in CASES.values()), sep="\n")
        return 2
    print(*machine(), sep="\n")
    try:
        lines = CASES[name].run(options)
    except RedError as error:
        print(f"{name} is red, so nothing was measured: {error}")
        return 1
    print(*lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
