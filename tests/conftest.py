"""Settings of all tests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import settings

# The first call of a kernel compiles or loads it: no example has a time of its own. The same
# examples every time, so that a change is never blamed for a case it did not touch;
# `pytest --hypothesis-profile random` looks for new ones.
settings.register_profile("random", deadline=None)
settings.register_profile("planner", deadline=None, derandomize=True)
settings.load_profile("planner")

# A shell starts background jobs with Ctrl-C ignored, and tests of it need it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders whose every test carries the marker of that name are not even imported where it is
    deselected, as it is by default: their libraries are extras, and importing takes seconds."""
    deselected = f"not {collection_path.name}" in config.getoption("markexpr")
    return True if deselected and collection_path.parent == Path(__file__).parent else None
