"""`planner search` with several clusters allowed: table, files, exit statuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from tests.cli.conftest import Run, lines_are_short

TINY = (
    "--model",
    "llama-3.2-1b",
    "--gbs",
    "64",
    "--tp",
    "1",
    "--cp",
    "1",
    "--zero",
    "1",
    "--mbs",
    "1",
)


def test_a_range_gives_one_front_that_explain_reads(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    result = run("search", *TINY, "--gpus", "4..16xH100", "-o", str(path))
    assert result.exit_code == 0, result.stderr
    assert lines_are_short(result.stdout.replace(str(path), "plans.json"))
    for words in (
        "16xH100",
        "4xH100",
        "front over",
        "proven optimal",
        "dollars a token",
        "on-demand",
    ):
        assert words in result.stdout
    number = len(json.loads(path.read_text())["points"])
    explained = run("explain", str(path), str(number), "--no-neighbours")
    assert explained.exit_code == 0, explained.stderr
    assert "4 GPUs" in explained.stdout
    again = run("search", *TINY, "--gpus", "4..16xH100", "-o", str(path))
    assert again.exit_code == 2 and "--force overwrites it" in again.stderr


def test_json_and_csv_hold_the_whole_front(run: Run) -> None:
    clusters = ("--gpus", "4xH100", "--gpus", "8xH100")
    front = json.loads(run("search", *TINY, *clusters, "--json").stdout)
    rows = list(csv.DictReader(io.StringIO(run("search", *TINY, *clusters, "--csv").stdout)))
    assert len(rows) == len(front["points"])
    assert {row["cluster"] for row in rows} == {"4xH100", "8xH100"}
    assert float(rows[0]["peak_bytes"]) == front["points"][0]["peak_bytes"]


def test_where_nothing_fits_every_cluster_says_why(run: Run) -> None:
    result = run("search", "--model", "405b", "--gbs", "64", "--gpus", "8..16xH100")
    assert result.exit_code == 1
    assert "nothing fits on any of the clusters" in result.stderr
    assert result.stdout.count("nothing fits: stage 0 needs") == 2


def test_wrong_input_is_exit_status_2(run: Run, tmp_path: Path) -> None:
    for words in (("9..15xH100",), ("8..16xH10",), ("8xH100", "--gpus", "8xH100")):
        assert run("search", *TINY, "--gpus", *words).exit_code == 2
    file = tmp_path / "own.toml"
    file.write_text("")
    result = run("search", *TINY, "--gpus", "8..16xH100", "--cluster", str(file))
    assert result.exit_code == 2 and "with several --gpus leave it out" in result.stderr
