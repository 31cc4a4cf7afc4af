"""`planner validate` on the published runs that ship and on a user's own file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from click.testing import CliRunner

from planner.cli.main import cli
from tests.measured.rows_for_tests import KORTHIKANTI_175B


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["validate", "--quiet", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_published_runs_are_predicted_within_what_was_reached() -> None:
    code, output, _ = invoke("--json")
    assert code == 0
    document = json.loads(output)
    rows = document["rows"]
    assert len(rows) >= 250
    errors = [row["time_ape"] for row in rows if row.get("time_ape") is not None]
    assert len(errors) > 0.98 * len(rows)
    assert sorted(errors)[len(errors) // 2] < 0.12
    assert sum(errors) / len(errors) < 0.14
    assert document["summary"]["time"]["rows"] == len(errors)
    within = [
        row["predicted_low_s"] <= float(row["step_time_s"]) <= row["predicted_high_s"]
        for row in rows
        if row.get("time_ape") is not None
    ]
    assert 0.70 < sum(within) / len(within) < 0.92


def test_families_are_chosen_and_lines_fit_a_page(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, [*KORTHIKANTI_175B])
        writer.writeheader()
        writer.writerow(KORTHIKANTI_175B)
        writer.writerow(KORTHIKANTI_175B | {"model": "7B LoRA"})
    code, output, _ = invoke("--data", str(path), "--by", "framework,gpu")
    assert code == 0
    assert "Megatron-LM, A100-80GB" in output
    assert "Refused: 1 of 2 rows." in output
    assert "LoRA fine-tuning is not modelled" in output
    assert max(map(len, output.splitlines())) <= 80


def test_wrong_input_names_the_cure(tmp_path: Path) -> None:
    code, _, errors = invoke("--by", "colour")
    assert code == 2
    assert "choose from source" in errors
    code, _, errors = invoke("--data", str(tmp_path / "missing.csv"))
    assert code == 2
    assert "cannot be read" in errors
