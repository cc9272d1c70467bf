# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every test run has in common; imports nothing heavy, since the core tests run where torch is not installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]

# last, so that test helpers are found as `tests.…` while an installed package comes before the one in the tree
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

# a shared machine stalls for longer than an example takes, so a time per example says nothing about the code
settings.register_profile("metrale", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("metrale")


os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched while tests run


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of this run's own, so that nothing of an earlier run is used."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


def pytest_sessionstart() -> None:
    """Refuse to test the source tree where the installed package was asked for."""
    if os.environ.get("METRALE_TEST_INSTALLED") != "1":
        return
    import metrale_caps

    location = Path(metrale_caps.__file__).resolve()
    if location.is_relative_to(ROOT / "metrale_caps"):
        pytest.exit(f"the tests were to run against the installed package, and {location} was imported", returncode=3)
