"""Files of a folder, and the launch that is read from one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from planner.launch.check.assess import Assessment, assess
from planner.launch.read.found import Found, Hints
from planner.launch.read.launch import read_launch

ReadFolder = Callable[..., Found]


@pytest.fixture
def folder(tmp_path: Path) -> ReadFolder:
    """Write files by name and read the first, with hints."""

    def found(files: Mapping[str, str], **hints: object) -> Found:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return read_launch([tmp_path / next(iter(files))], Hints(**hints))  # type: ignore[arg-type]

    return found


def judged(found: Found, gpus: str = "8xH100") -> Assessment:
    """What there is to say of a launch on GPUs."""
    return assess(found, gpus)


def refusals(found: Found) -> str:
    """Why there is no prediction."""
    return " | ".join(problem.text for problem in judged(found).unpredictable)
