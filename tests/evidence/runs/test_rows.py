"""Reading measured runs, and what is said of files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardware import HardwareError
from planner.evidence.runs.rows import REQUIRED_COLUMNS, demand_measurements, read_rows
from planner.job.errors import UsageError
from tests.evidence.runs.rows_for_tests import row

HEADER = ",".join(REQUIRED_COLUMNS)


def test_a_file_without_the_columns_says_which(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("model,seq\nx,1\n")
    with pytest.raises(UsageError, match=r"runs\.csv line 1: the header lacks layers"):
        list(read_rows(path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (f"{HEADER}\n".encode(), "a header, but no run below it"),
        (b"\xff\xfe\x00,\x80", "not a text file in UTF-8"),
    ],
)
def test_a_file_without_runs_says_so(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises((UsageError, HardwareError), match=said):
        list(read_rows(path))


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no CSV file in this folder"):
        list(read_rows(tmp_path))
    for name in ("b", "a"):
        (tmp_path / f"{name}.csv").write_text(f"{HEADER}\n1,2,3,4,H100,8,nanotron\n")
    assert [read_row.source for read_row in read_rows(tmp_path)] == ["a", "b"]


def test_lines_are_those_of_an_editor(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f'{HEADER}\n1,2,3,4,H100,8,"two\nlines"\n1,2,3,4,H100,8,x\n')
    assert [read_row.line for read_row in read_rows(path)] == [3, 4]


def test_a_cell_that_is_no_number_is_named() -> None:
    with pytest.raises(UsageError, match=r"line 2, column seq: 'long' is not a number"):
        row(seq="long").number("seq")
    with pytest.raises(UsageError, match=r"column seq: 'nan' is not a number"):
        row(seq="nan").number("seq")
    assert row(vocab="~250k").number("vocab") == 250_000


def test_a_measurement_must_be_positive() -> None:
    demand_measurements(row(step_time_s="", peak_mem_gib=""))
    with pytest.raises(UsageError, match=r"line 2, column step_time_s: -1 is not above 0"):
        demand_measurements(row(step_time_s="-1"))


@pytest.mark.parametrize(
    ("doubt", "figures"),
    [
        ("", set()),
        ("time: rounded to 1 s", {"time"}),
        ("time withdrawn: bimodal; use memory only", {"time"}),
        ("memory: a breakdown, probably estimated", {"memory"}),
        ("oom: one run of three", {"fit"}),
        ("mfu: counts recompute", set()),
        ("time, memory: no table says how many sequences", {"time", "memory"}),
        ("num_gpus: assumed", {"time", "memory", "fit"}),
        ("time: columns swapped; software: another branch", {"time", "memory", "fit"}),
    ],
)
def test_a_doubt_keeps_out_the_figures_that_it_touches(doubt: str, figures: set[str]) -> None:
    found = row(doubt=doubt, step_time_s="2", peak_mem_gib="3", oom="0")
    assert found.doubted == figures
    assert (found.measurement("step_time_s") is None) == ("time" in figures)
    assert (found.measurement("peak_mem_gib") is None) == ("memory" in figures)
    assert (found.ran_out is None) == ("fit" in figures)


def test_memory_of_a_run_that_ran_out_is_no_peak() -> None:
    """It is what the run held until then: a peak would be higher."""
    cells = {"step_time_s": "2", "peak_mem_gib": "3"}
    ran_out, ran = row(oom="1", **cells), row(oom="0", **cells)
    assert (ran_out.measurement("step_time_s"), ran_out.measurement("peak_mem_gib")) == (2.0, None)
    assert ran.measurement("peak_mem_gib") == 3.0


def test_doubted_figures_are_looked_at_alone() -> None:
    cells = {"step_time_s": "2", "peak_mem_gib": "3"}
    doubted = row(doubt="time: rounded", **cells).at_its_word
    assert (doubted.measurement("step_time_s"), doubted.measurement("peak_mem_gib")) == (2.0, None)
    assert row(doubt="time withdrawn: x", **cells).at_its_word.measurement("step_time_s") is None
