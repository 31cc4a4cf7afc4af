"""`--require`, `--forbid`, `--fix`, what is printed when nothing fits, and `--what-if`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from hardware.plain_text import unguarded_cell
from planner.search.infeasibility import WhyNothingFits
from planner.search.plan_file import read_plan_file
from planner.search.result import WhatIf
from tests.cli.conftest import SMALL, Run, lines_are_short, refused

ASKED = ("--require", "tp*pp <= 4", "--forbid", "zero == 1", "--fix", "mbs=2")
TIGHT = (
    "--model",
    "8b",
    "--gpus",
    "4xH100",
    "--gbs",
    "16",
    "--seq",
    "40960",
    "--fit-probability",
    "50%",
    "--recompute",
    "none",
)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan file of a search with conditions."""
    from tests.cli.conftest import run_cli

    path = tmp_path_factory.mktemp("asked") / "plans.json"
    shown = run_cli("search", *SMALL, *ASKED, "-o", str(path))
    assert shown.exit_code == 0, shown.stderr
    assert "conditions  require tp*pp <= 4; forbid zero == 1; fix mbs=2" in shown.stdout
    # The length of the path is the reader's affair (and grows with pytest's own count of runs).
    assert lines_are_short(shown.stdout.replace(str(path), "plans.json"))
    return path


def test_plans_obey_and_the_file_says_what_was_asked(asked: Path) -> None:
    result = read_plan_file(asked)
    assert result.request.require == ("tp*pp <= 4",)
    assert result.request.forbid == ("zero == 1",)
    assert result.request.fix == ("mbs=2",)
    assert result.plans
    for plan in result.plans:
        assert plan.degrees.tp * plan.degrees.pp <= 4
        assert plan.degrees.zero != 1
        assert plan.degrees.mbs == 2


def test_evaluate_checks_conditions(run: Run) -> None:
    given = ("--model", "llama-3.2-1b", "--gpus", "8xH100", "--gbs", "64", "--tp", "2")
    broken = run("evaluate", *given, "--require", "tp >= 4", "--forbid", "dp == 4")
    assert broken.exit_code == 2
    assert "you require tp >= 4" in broken.stderr
    assert "you forbid dp == 4" in broken.stderr
    assert run("evaluate", *given, "--require", "tp == 2").exit_code == 0


def test_neighbours_against_a_condition_are_costed_and_marked(run: Run, asked: Path) -> None:
    document = json.loads(run("explain", str(asked), "1", "--json").stdout)
    marked = [near for near in document["neighbours"] if "--fix mbs=2" in near["text"]]
    assert marked
    assert all(near["step_time_s"] for near in marked)
    text = " ".join(run("explain", str(asked), "1").stdout.split())
    assert "against your --fix mbs=2" in text


def test_nothing_fits_as_text_goes_to_stderr(run: Run) -> None:
    shown = run("search", *TIGHT)
    assert shown.exit_code == 1
    assert shown.stdout == ""
    assert "You gave --recompute none" in shown.stderr
    assert "Stage 0 needs " in shown.stderr
    assert "±" in shown.stderr
    assert lines_are_short(shown.stderr)


def test_nothing_fits_as_json_and_csv_with_status_1(run: Run) -> None:
    as_json = run("search", *TIGHT, "--json")
    assert as_json.exit_code == 1
    why = WhyNothingFits.model_validate_json(as_json.stdout)
    assert why.outcome == "nothing-fits"
    assert why.relaxations
    as_csv = run("search", *TIGHT, "--csv")
    assert as_csv.exit_code == 1
    rows = list(csv.DictReader(io.StringIO(as_csv.stdout)))
    changes = [unguarded_cell(row["change"]) for row in rows]
    assert changes == [relaxation.change for relaxation in why.relaxations]
    for row, item in zip(rows, why.relaxations, strict=True):
        assert (
            float(row["step_time_low_s"]) < item.plan.step_time_s < float(row["step_time_high_s"])
        )


def test_what_if_as_text_and_as_data(run: Run, asked: Path) -> None:
    text = run("explain", str(asked), "1", "--what-if", "--no-neighbours")
    assert text.exit_code == 0, text.stderr
    assert "What if: the best plan after a single change" in text.stdout
    assert "without --fix" in text.stdout
    assert lines_are_short(text.stdout)
    document = json.loads(run("explain", str(asked), "1", "--what-if", "--json").stdout)
    found = WhatIf.model_validate(document["what_if"])
    assert {constraint.name for constraint in found.constraints} >= {"memory", "--fix mbs=2"}


def test_an_unreadable_condition_in_a_plan_file_is_a_sentence(run: Run, asked: Path) -> None:
    document = json.loads(asked.read_text(encoding="utf-8"))
    document["request"]["require"] = ["tp <"]
    broken = asked.with_name("broken.json")
    broken.write_text(json.dumps(document), encoding="utf-8")
    refused(run("explain", str(broken), "1"), "something is missing at the end")
