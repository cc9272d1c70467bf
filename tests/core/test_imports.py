# SPDX-License-Identifier: MIT OR Apache-2.0
"""Importing the contract loads no heavy library, and this check can fail."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAVY = ("torch", "triton", "numpy", "transformers")
_CHECK = "import sys; loaded = {heavy!r} & sys.modules.keys(); sys.exit(f'loaded {{sorted(loaded)}}' if loaded else 0)"


def _loads_heavy_libraries(statement: str) -> str:
    """Return what a fresh interpreter says about heavy libraries after a statement; empty if none was loaded."""
    program = f"{statement}\n{_CHECK.format(heavy=set(_HEAVY))}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    return done.stderr.strip() if done.returncode else ""


@pytest.mark.parametrize(
    "module",
    [
        "metrale_caps",
        "metrale_caps.protocols",
        "metrale_caps.capabilities",
        "metrale_caps.errors",
        "metrale_caps.layer",
        "metrale_caps.audit",
        "metrale_caps.composite",
        "metrale_caps.declares",
        "metrale_caps.plugins",
        "metrale_caps.routing.plan",
        "metrale_caps.cli",
    ],
)
def test_importing_the_contract_loads_no_heavy_library(module: str) -> None:
    """A plugin author can declare and check without torch or triton."""
    assert not _loads_heavy_libraries(f"import {module}")


@pytest.mark.parametrize("used", ["audit_class", "load_plugins", "RoutePlan"])
def test_what_only_a_host_uses_is_loaded_when_it_is_used(used: str) -> None:
    """A layer package imports the contract without paying for the audit, the plugins and the plan."""
    program = (
        "import sys, metrale_caps\n"
        "before = {'metrale_caps.audit', 'metrale_caps.plugins', 'metrale_caps.routing'} & sys.modules.keys()\n"
        f"name = metrale_caps.{used}\n"
        f"sys.exit(f'loaded {{before}}' if before or vars(metrale_caps)['{used}'] is not name else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert done.returncode == 0, done.stderr


def test_this_check_can_fail(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A statement that loads a module of such a name is caught."""
    folder = tmp_path_factory.mktemp("fake")
    (folder / "triton.py").write_text("")
    said = _loads_heavy_libraries(f"import sys; sys.path.insert(0, {str(folder)!r}); import triton")
    assert "triton" in said
