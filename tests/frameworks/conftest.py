"""The frameworks' own parsers, run on what the launch writers write: `pytest -n 0 -m frameworks`.

These tests are left out unless asked for by their marker; asked for, a package that is missing
fails them. `sh tests/frameworks/install.sh` installs all of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

INSTALL = "sh tests/frameworks/install.sh"


@pytest.fixture(scope="session")
def needs() -> Callable[[str], ModuleType]:
    """Imports a package of a framework; a failure, not a skip, if it is not there."""

    def load(name: str) -> ModuleType:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            pytest.fail(f"{error}; install the frameworks with: {INSTALL}")

    return load


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """Writes the files of a launch folder and gives the folder."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write
