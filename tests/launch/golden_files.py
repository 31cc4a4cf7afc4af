"""Comparison with golden files: UPDATE_GOLDEN=1 pytest tests/launch writes them anew.

A file `x.py` is kept as `x.py.golden`, so that no tool takes it for code of the project.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def check_golden(case: str, files: Mapping[str, str]) -> None:
    """The files of a launch folder equal those kept under tests/launch/golden/`case`."""
    folder = FOLDER / case
    if os.environ.get("UPDATE_GOLDEN") == "1":
        _rewrite(folder, files)
    kept = {
        str(path.relative_to(folder)).removesuffix(".golden"): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.golden"))
    }
    assert kept == dict(files), f"{case}: UPDATE_GOLDEN=1 pytest tests/launch rewrites it"


def _rewrite(folder: Path, files: Mapping[str, str]) -> None:
    for path in folder.rglob("*.golden"):
        path.unlink()
    for name, text in files.items():
        path = folder / f"{name}.golden"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
