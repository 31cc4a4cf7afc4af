"""The figures that the README shows: written, read again, and drawn."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from planner.job.errors import UsageError
from planner.job.written import toml_text
from tests.evidence.runs.rows_for_tests import KORTHIKANTI_175B, predicted
from tests.fit import accuracy


def test_figures_are_shares_and_unknown_ones_are_left_out() -> None:
    rows = [predicted(seconds, step_time_s="10") for seconds in (11.0, 12.0)]
    content = tomllib.loads(toml_text(accuracy.accuracy(rows)))
    assert content["time"]["mean"] == pytest.approx(0.15)
    assert content["source"][0]["family"] == "korthikanti2022"
    assert content["worst"][0]["predicted_s"] == 12.0
    assert content["worst"][0]["terms"] == "compute 100 %"
    assert "memory" not in content
    assert "rank_correlation" not in content["time"]
    assert content["command"].startswith("python -m tests.fit.accuracy")


def test_text_of_any_kind_survives_the_file() -> None:
    text = 'a "quoted" \\ path | [x]'
    written = toml_text({"one": 1, text: {"inner": text}, "list": [{"x": True}, {"x": 2.5}]})
    assert tomllib.loads(written) == {
        "one": 1,
        text: {"inner": text},
        "list": [{"x": True}, {"x": 2.5}],
    }


def test_the_command_writes_both_files(tmp_path: Path) -> None:
    data = tmp_path / "runs.csv"
    with data.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, [*KORTHIKANTI_175B])
        writer.writeheader()
        writer.writerow(KORTHIKANTI_175B)
    accuracy.main([str(data), "-o", str(tmp_path)])
    content = tomllib.loads((tmp_path / "accuracy.toml").read_text(encoding="utf-8"))
    assert (content["rows"], content["time"]["rows"]) == (1, 1)
    drawing = (tmp_path / "accuracy.svg").read_text(encoding="utf-8")
    assert "megatron-lm-2022 (1)" in drawing
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert "prefers-color-scheme: dark" in drawing and "white" not in drawing


@pytest.mark.parametrize("arguments", [["-o"], ["x.csv", "-o"], ["x.csv", "-o", "missing"]])
def test_wrong_use_says_how(arguments: list[str]) -> None:
    with pytest.raises(UsageError, match="give a folder that exists"):
        accuracy.main(arguments)


def test_bars_are_judged_in_three_views() -> None:
    rows = [predicted(seconds, step_time_s="10", first_sight_s="20") for seconds in (10.0, 11.0)]
    bars = tomllib.loads(toml_text(accuracy.accuracy(rows)))["bars"]
    for view in ("known", "left_out", "first_sight"):
        family, total = bars[view]["time"]
        assert family["family"] == "megatron-lm-2022, ampere, several domains, dense"
        assert (total["family"], total["runs"], total["sources"]) == ("all runs", 2, 1)
        assert total["of_runs"]["width"] > 0.0
        assert set(total["of_sources"]) == {"width", "coverage", "score"}
    first = bars["first_sight"]["time"][-1]["of_runs"]
    assert first["coverage"] == 0.0
    assert first["score"] > first["width"] + 1.0
    assert "memory" not in bars["known"]
