"""The published figures of how exact the memory model is: true where they can be made again."""

from __future__ import annotations

import math
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from planner.evidence.fit.accuracy_tables import (
    Accuracy,
    Counted,
    Errors,
    Measured,
    from_toml,
    load,
    markdown,
)
from planner.evidence.fit.memory_accuracy import (
    counted_accuracy,
    main,
    measured_accuracy,
    summarise,
)
from planner.evidence.runs.rows import PUBLISHED, read_rows
from planner.job.errors import UsageError
from planner.job.written import toml_text
from tests.truth.counts import COUNTS, FOLDER

AGAIN = (
    "if the model changed on purpose: python -m planner.evidence.fit.memory_accuracy --toml "
    "> planner/evidence/data/memory_accuracy.toml, and "
    "python examples/refresh_readme.py"
)


def assert_same(shipped: Errors, again: Errors, subject: str) -> None:
    assert shipped.figures == again.figures, f"{subject}: {AGAIN}"
    for name in ("median", "p95", "worst"):
        before, now = getattr(shipped, name), getattr(again, name)
        assert math.isclose(before, now, rel_tol=1e-3, abs_tol=1e-9), f"{subject} {name}: {AGAIN}"


def test_counted_figures_are_those_of_the_model() -> None:
    shipped = {item.subject: item.errors for item in load().counted}
    again = {item.subject: item.errors for item in counted_accuracy(FOLDER)}
    assert shipped.keys() == again.keys(), AGAIN
    for subject, errors in again.items():
        assert_same(shipped[subject], errors, subject)


def test_measured_figures_are_those_of_the_model() -> None:
    shipped = {item.source: item for item in load().measured}
    again = {item.source: item for item in measured_accuracy(read_rows(PUBLISHED))}
    assert shipped.keys() == again.keys(), AGAIN
    for source, entry in again.items():
        assert_same(shipped[source].errors, entry.errors, source)
        for name in ("ran", "called_too_large", "ran_out", "called_fitting"):
            assert getattr(shipped[source], name) == getattr(entry, name), f"{source}: {AGAIN}"


def test_what_was_counted_is_met() -> None:
    """The project's targets on counts: parameters equal, saved bytes within 1 %, peaks 3 %."""
    errors = {item.subject: item.errors for item in load().counted}
    for subject, error in errors.items():
        limit = 0.0 if "parameters" in subject else 0.01 if "kept" in subject else 0.03
        if "phases" not in subject:
            assert abs(error.worst) <= limit, subject
        assert error.p95 <= max(limit, 1e-2)


def test_summary_of_known_errors() -> None:
    errors = summarise([(-0.01 * size, str(size)) for size in range(1, 41)])
    assert (errors.figures, errors.worst, errors.worst_row) == (40, -0.4, "40")
    assert errors.median == pytest.approx(0.205)
    assert errors.p95 == pytest.approx(0.38)
    assert summarise([]) == Errors()


def test_file_holds_the_figures() -> None:
    errors = Errors(3, 0.0, 1.25e-8, -0.125, 'a "quoted" row, s2048')
    accuracy = Accuracy(
        "2026-01-02",
        "command",
        (Counted("subject", errors),),
        (Measured("source", errors, 4, 1, 2, 0), Measured("fit only", Errors(), 9, 0, 0, 0)),
    )
    assert from_toml(toml_text(asdict(accuracy))) == accuracy


def test_tables_name_the_worst_row_and_count_the_fit() -> None:
    errors = Errors(3, 0.001, 0.02, -0.125, "model x")
    quiet = Measured("quiet", Errors(), 9, 0, 0, 0)
    accuracy = Accuracy("d", "c", (), (quiet, Measured("loud", errors, 14, 1, 2, 2), quiet))
    text = markdown(accuracy)
    assert "| loud | 1 of 14 | 2 of 2 | 3 | 0.10 % | 2.0 % | -12.5 % | model x |" in text
    assert "| 2 other sources | 0 of 18 | - | - |" in text
    assert "quiet" not in text


def test_folder_without_counts_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"holds none of params\.csv"):
        counted_accuracy(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path)])
    assert "holds none of params.csv" in capsys.readouterr().err


def write_row(folder: Path, file: str, **changes: str) -> None:
    """One row of the counts of a file, with other cells."""
    row = COUNTS[file][0] | changes
    text = ",".join(row) + "\n" + ",".join(row.values()) + "\n"
    (folder / file).write_text(text, encoding="utf-8")


def test_command_prints_tables_and_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_row(tmp_path, "activations.csv")
    measured = tmp_path / "measured"
    measured.mkdir()
    shutil.copy(PUBLISHED / "torchtune_memory.csv", measured)
    arguments = [str(tmp_path), str(measured)]
    main(arguments)
    tables = capsys.readouterr().out
    assert "| kept for backward: layer" in tables and "torchtune-memory" in tables
    main(["--toml", *arguments])
    assert len(from_toml(capsys.readouterr().out).counted) == 1


def test_blank_cells_were_not_counted(tmp_path: Path) -> None:
    write_row(tmp_path, "activations.csv", per_layer="", layers="", mbs="")
    (found,) = counted_accuracy(tmp_path)
    assert (found.errors.figures, found.errors.worst) == (1, pytest.approx(0.0, abs=1e-7))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"seq": ""}, "seq is ''; expected a number"), ({"model": "lama"}, "unknown model 'lama'")],
)
def test_bad_cells_are_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    sentence: str,
) -> None:
    write_row(tmp_path, "activations.csv", **changes)
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path)])
    assert sentence in capsys.readouterr().err
