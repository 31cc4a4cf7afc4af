"""The tables of columns name every column of the measured runs that ship, and no other."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "planner" / "evidence" / "data"


@pytest.mark.parametrize(
    ("table", "folders"),
    [
        ("measured-run-columns", ("runs", "tuned_runs")),
        ("measured-rl-columns", ("rl_runs",)),
    ],
)
def test_every_column_of_measured_runs_is_documented(table: str, folders: tuple[str, ...]) -> None:
    path = ROOT / "docs" / "data" / f"{table}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        named = {name for row in csv.DictReader(file) for name in row["columns"].split()}
    used: set[str] = set()
    for run in (one for folder in folders for one in (RUNS / folder).glob("*.csv")):
        with run.open(encoding="utf-8", newline="") as file:
            used |= set(next(csv.reader(file)))
    assert named == used
