"""The table of how exact the memory model is against counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.job.errors import UsageError
from tests.truth.accuracy import (
    Errors,
    counted_accuracy,
    counted_tables,
    main,
    summarise,
)
from tests.truth.counts import COUNTS


def test_summary_of_known_errors() -> None:
    errors = summarise([(-0.01 * size, str(size)) for size in range(1, 41)])
    assert (errors.figures, errors.worst, errors.worst_row) == (40, -0.4, "40")
    assert errors.median == pytest.approx(0.205)
    assert errors.p95 == pytest.approx(0.38)
    assert summarise([]) == Errors()


def test_table_names_the_worst_row() -> None:
    text = counted_tables(
        {"x": Errors(3, 0.001, 0.02, -0.125, "model y"), "z": Errors(2)}, {"llama": Errors(1)}
    )
    assert "| x | 3 | 0.10 % | 2.0 % | -12.5 % | model y |" in text
    assert "| z | 2 | 0 | 0 | 0 |" in text and "| llama | 1 |" in text


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


def test_command_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_row(tmp_path, "activations.csv")
    main([str(tmp_path)])
    assert "| kept for backward: layer" in capsys.readouterr().out


def test_blank_cells_were_not_counted(tmp_path: Path) -> None:
    write_row(tmp_path, "activations.csv", per_layer="", layers="", mbs="")
    by_subject, by_family = counted_accuracy(tmp_path)
    (found,) = by_subject.values()
    assert by_family == {"gpt2": found}
    assert (found.figures, found.worst) == (1, pytest.approx(0.0, abs=1e-7))


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
