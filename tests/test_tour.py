"""The tour through the code: every path it names exists, every registry entry has its line."""

from __future__ import annotations

import re
from pathlib import Path

import click

from planner.cli.program import planner_command

ROOT = Path(__file__).resolve().parents[1]
TOUR = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
_PATH = re.compile(r"`((?:planner|constraints|hardware|tests|docs|examples)/[\w./*-]+)`")
# `KINDS` of `planner/search/relaxations.py`; `NAMES` and `shape_values` of `…`.
_IN_FILE = re.compile(r"`([A-Za-z_]+(?:` and `[A-Za-z_]+)?)` of `([\w/]+\.py)`")
_PACKAGES = ("cli", "report", "launch", "evidence", "compare", "search", "predict", "job", "cost")


def test_every_path_exists() -> None:
    paths = _PATH.findall(TOUR)
    assert len(paths) > 60
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_line_touches_at_most_three_files() -> None:
    lines = [line for line in TOUR.splitlines() if line.startswith("| ") and "`" in line]
    assert len(lines) >= 30
    for line in lines:
        what, touched, held = (cell.strip() for cell in line.strip("|").split("|"))
        assert len(_PATH.findall(touched)) <= 3, what
        assert _PATH.findall(held), what


def test_every_room_is_drawn_and_has_a_line() -> None:
    folders = {
        path.name for path in (ROOT / "planner").iterdir() if (path / "__init__.py").exists()
    }
    assert folders == set(_PACKAGES)
    for package in _PACKAGES:
        assert re.search(rf"^    {package} ─", TOUR, re.MULTILINE), package
        assert f"`planner/{package}/" in TOUR, package


def test_registries_are_where_their_lines_say() -> None:
    """What a line calls by its name in code is in the file that the line names."""
    for line in TOUR.splitlines():
        if not line.startswith("| "):
            continue
        for names, path in _IN_FILE.findall(line):
            text = (ROOT / path).read_text(encoding="utf-8")
            for name in re.findall(r"\w+", names.replace("` and `", " ")):
                assert re.search(rf"^(?:def )?{name}\b", text, re.MULTILINE), (name, path)


def test_every_command_has_a_file_of_its_own() -> None:
    assert "one file a command in `planner/cli/`" in TOUR
    for name in planner_command.list_commands(click.Context(planner_command)):
        assert (ROOT / "planner" / "cli" / f"{name.replace('-', '_')}.py").exists(), name
