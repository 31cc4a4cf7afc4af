"""`planner validate` on the published runs that ship and on a user's own file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from planner.cli.program import planner_command
from planner.evidence.runs.rows import PUBLISHED
from tests.cli.conftest import lines_are_short
from tests.evidence.runs.rows_for_tests import KORTHIKANTI_175B
from tests.report.reading import shown


def test_rows_that_nobody_filled_in_are_asked_for(tmp_path: Path) -> None:
    """A launch folder's measured.csv before the run: no table of nothing."""
    empty = write(tmp_path / "measured.csv", {"step_time_s": "", "peak_mem_gib": "", "oom": ""})
    code, output, errors = invoke("--data", empty)
    assert (code, output) == (3, "")
    assert "says what was measured: fill in step_time_s, peak_mem_gib or oom" in errors


# The same run with five micro-batches, as a group to pick from.
GROUP = [
    {"mbs": mbs, "step_time_s": s}
    for mbs, s in zip("12481", ("20", "21", "22", "23", "24"), strict=True)
]


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(
        planner_command, ["validate", "--quiet", *arguments]
    )
    return result.exit_code, result.stdout, result.stderr


def write(path: Path, *changes: Mapping[str, str]) -> str:
    """A CSV file of the Korthikanti row with these changes; its path."""
    rows = [KORTHIKANTI_175B | dict(change) for change in changes]
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_the_published_runs_are_predicted_within_what_was_reached(tmp_path: Path) -> None:
    """Every fourth of each file; all of them: `python -m tests.fit.accuracy`."""
    for file in PUBLISHED.glob("*.csv"):
        header, *rows = file.read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / file.name).write_text("".join((header, *rows[::4])), encoding="utf-8")
    code, output, _ = invoke("--json", "--data", str(tmp_path))
    assert code == 0
    document = json.loads(output)
    rows, summary = document["rows"], document["summary"]
    assert len(rows) > 1200
    assert sum(row["error"] is not None for row in rows) < 0.02 * len(rows)
    errors = [row["time_ape"] for row in rows if row["time_ape"] is not None]
    assert sorted(errors)[len(errors) // 2] < 0.07
    assert sum(errors) / len(errors) < 0.12
    assert summary["time"]["rows"] == len(errors)
    assert summary["time"]["mean"] == pytest.approx(sum(errors) / len(errors))
    within = [
        row["predicted_low_s"] <= float(row["step_time_s"]) <= row["predicted_high_s"]
        for row in rows
        if row["time_ape"] is not None
    ]
    assert summary["time"]["coverage"] == pytest.approx(sum(within) / len(within))


def test_families_are_chosen_and_lines_fit_a_page(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", *GROUP, {"tuning": "peft:adalora"}, {"recompute": ""})
    code, output, _ = invoke("--data", path, "--by", "framework,gpu")
    assert code == 0
    assert "Megatron-LM, A100-80GB" in output
    assert "Picks: measured throughput" in output
    assert "recompute or kernel" in output
    assert "Refused: 1 of 7 rows (14.29 %)." in output
    assert "adapters of another kind than LoRA and DoRA" in output
    assert lines_are_short(output)


def test_bars_are_judged_by_score_known_and_at_first_sight(tmp_path: Path) -> None:
    """The source is not among those that ship, so that nothing is left out."""
    stranger = {"source": "nobody", "first_sight_s": "40"}
    rows = [stranger | one for one in GROUP] + [{"source": "another", "step_time_s": "18"}]
    path = write(tmp_path / "mine.csv", *rows)
    code, output, _ = invoke("--data", path)
    assert code == 0
    assert lines_are_short(output)
    assert "Step time: 80 % intervals, by family of the intervals" in output
    assert "Step time, at first sight: error of the prediction" in output
    assert "source left out" not in output
    assert "Gneiting and Raftery 2007" in output
    summary = json.loads(invoke("--data", path, "--json")[1])["summary"]
    known, first = (summary["bars"][view]["time"][-1] for view in ("known", "first_sight"))
    assert (known["runs"], known["sources"], first["runs"], first["sources"]) == (6, 2, 5, 1)
    assert known["of_runs"]["score"] == pytest.approx(summary["time"]["score"])
    assert known["of_sources"]["width"] == pytest.approx(summary["mean_of_sources"]["time_width"])
    assert first["of_runs"]["coverage"] < known["of_runs"]["coverage"]
    assert first["of_runs"]["score"] > first["of_runs"]["width"]
    assert summary["first_sight"][0]["time"]["score"] == first["of_runs"]["score"]
    assert (summary["left_out"], summary["bars"]["left_out"]) == ([], {})


def test_rows_are_printed_as_data_and_drawn(tmp_path: Path) -> None:
    data, page = (
        write(tmp_path / "mine.csv", {}, {"vocab": "", "colour": "red"}),
        tmp_path / "p.html",
    )
    assert len(json.loads(invoke("--data", data, "--json")[1])["rows"]) == 2
    code, output, _ = invoke("--data", data, "--csv", "--plot", str(page))
    assert code == 0
    (first, second) = csv.DictReader(io.StringIO(output))
    assert (first["assumed"], second["assumed"]) == ("", "vocab 50,304")
    assert (second["colour"], second["error"]) == ("red", "")
    assert "mine.csv line 3" in page.read_text()
    code, _, errors = invoke("--data", data, "--plot", str(page))
    assert code == 2
    assert "--force overwrites it, or give another name to --plot" in errors
    assert invoke("--data", data, "--plot", str(page), "--force")[0] == 0


def test_a_wrong_number_refuses_its_row_only(tmp_path: Path) -> None:
    data = write(tmp_path / "mine.csv", {}, {"peak_mem_gib": "~60"}, {"step_time_s": "fast"})
    page = tmp_path / "page.html"
    code, output, _ = invoke("--data", data, "--plot", str(page))
    assert code == 0
    said = "mine.csv line 4, column step_time_s: 'fast' is not a number"
    assert said in " ".join(output.split())
    assert "Refused: 1 of 3 rows" in output
    assert "1 of 3" in shown(page.read_text())


def test_predicted_against_measured_is_drawn(tmp_path: Path) -> None:
    data, drawn = write(tmp_path / "mine.csv", {}), tmp_path / "runs.svg"
    assert invoke("--data", data, "--plot", str(drawn))[0] == 0
    assert "Step time, by framework" in drawn.read_text()


def test_wrong_input_names_the_cure(tmp_path: Path) -> None:
    data = write(tmp_path / "mine.csv", {})
    folder, empty = tmp_path / "folder", tmp_path / "empty.csv"
    folder.mkdir()
    empty.touch()
    page = tmp_path / "page.html"
    page.touch()
    wrong_number = write(tmp_path / "wrong.csv", {"step_time_s": "fast"})
    cases = [
        (("--by", "colour"), "choose from source"),
        (("--by", "modle"), "Did you mean 'model'"),
        (("--data", str(tmp_path / "missing.csv")), "does not exist"),
        (("--data", str(folder)), "no CSV file in this folder"),
        (("--data", str(empty)), "the file is empty"),
        (("--data", wrong_number), "wrong.csv line 2, column step_time_s: 'fast' is not a number"),
        (("--data", data, "--plot", str(tmp_path / "no" / "x.html")), "does not exist"),
        (("--data", data, "--plot", str(page)), "give another name to --plot"),
        (("--data", data, "--plot", data), "must end in .html, .svg, .png"),
        (("--data", data, "--json", "--csv"), "not both"),
    ]
    for arguments, said in cases:
        code, output, errors = invoke(*arguments)
        assert (code, output) == (2, ""), arguments
        assert said in errors


def test_figures_in_doubt_are_in_a_table_of_their_own(tmp_path: Path) -> None:
    doubted = {"doubt": "time: rounded", "step_time_s": "99"}
    _, output, _ = invoke("--data", write(tmp_path / "mine.csv", {}, {}, doubted))
    known, doubtful = (
        next(line for line in output.split(f"Step time{words}: error")[1].splitlines()[2:])
        for words in ("", ", in doubt")
    )
    assert (known.split()[1], doubtful.split()[1]) == ("2", "1")
    assert "column doubt" in output
    assert lines_are_short(output)


def test_runs_of_a_source_that_constants_were_fitted_on_are_predicted_without_it(
    tmp_path: Path,
) -> None:
    known = write(tmp_path / "known.csv", {}, {})
    assert "Step time, source left out" in invoke("--data", known)[1]
    _, output, _ = invoke("--data", known, "--json")
    assert [item["family"] for item in json.loads(output)["summary"]["left_out"]] == [
        "korthikanti2022"
    ]
    unknown = write(tmp_path / "unknown.csv", {"source": "mine"})
    assert "left out:" not in invoke("--data", unknown)[1]
