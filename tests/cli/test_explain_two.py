"""Two plans side by side: what differs, and that the sums are those of the plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.job.errors import UsageError
from planner.job.request import Request
from planner.report.beside import Beside, beside_report, compared
from planner.search.plan_file import to_json
from planner.search.result import SearchResult
from planner.search.rl.result import RlResult
from planner.search.search import find_plans
from tests.cli.conftest import Run, run_cli
from tests.cli.test_rl_evidence import SEARCH


@pytest.fixture(scope="module")
def result() -> SearchResult:
    return find_plans(Request(model="llama-3.2-1b", gpus="8xH100", gbs=64))


def test_differences_add_up_to_those_of_the_plans(result: SearchResult) -> None:
    last = len(result.plans)
    found = Beside(result, 1, last)
    one, another = found.plans
    more_s = another.step_time_s - one.step_time_s
    assert sum(pair.more for pair in found.time) == pytest.approx(more_s, rel=1e-6, abs=1e-9)
    more = another.peak_bytes - one.peak_bytes
    assert sum(pair.more for pair in found.memory) == pytest.approx(more, rel=1e-6, abs=1e4)
    headline, *_ = found.sentences
    assert f"Plan {last}, " in headline and "less" in headline
    names = {setting.words for setting in found.settings}
    assert names and all(setting.one != setting.another for setting in found.settings)


def test_the_other_way_round_has_the_other_sign(result: SearchResult) -> None:
    there, back = (Beside(result, *pair) for pair in ((1, 2), (2, 1)))
    assert [one.more for one in there.time] == pytest.approx([-one.more for one in back.time])


def test_a_plan_that_is_not_there_is_refused(result: SearchResult) -> None:
    with pytest.raises(UsageError, match="there is no plan 99"):
        beside_report(Beside(result, 1, 99))


def test_a_page_has_the_same_terms(result: SearchResult) -> None:
    first = compared(result.plans[0])
    assert sum(first["time"].values()) == pytest.approx(result.plans[0].step_time_s, rel=1e-3)


def test_on_the_command_line(result: SearchResult, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text(to_json(result), encoding="utf-8")
    text = run("explain", str(path), "1", "2").stdout
    assert "What differs" in text and max(map(len, text.splitlines())) <= 80
    record = json.loads(run("explain", str(path), "1", "2", "--json").stdout)
    assert record["plans"] == [1, 2] and record["ratio"]["low"] <= record["ratio"]["value"]
    refused = run("explain", str(path), "1", "2", "--what-if")
    assert refused.exit_code == 2 and "needs a single plan" in refused.stderr
    itself = run("explain", str(path), "2", "2")
    assert itself.exit_code == 2 and "cannot be compared with itself" in itself.stderr


@pytest.fixture(scope="module")
def rl_plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rl") / "plans.json"
    run_cli(*SEARCH, "-q", "-o", str(path))
    return path


def test_plans_of_reinforcement_learning(rl_plans: Path, run: Run) -> None:
    result = RlResult.model_validate_json(rl_plans.read_text(encoding="utf-8"))
    last = len(result.plans)
    one, another = result.plans[0], result.plans[-1]
    record = json.loads(run("explain", str(rl_plans), "1", str(last), "--json").stdout)
    assert record["step_time_s"] == [one.step_s, another.step_s]
    ratio = record["ratio"]
    assert ratio["low"] < ratio["value"] == pytest.approx(another.step_s / one.step_s)
    assert ratio["value"] < ratio["high"]
    sums = [sum(pair[side] for pair in record["time_s"]) for side in ("one", "another")]
    assert sums == pytest.approx([one.step_s, another.step_s])
    held = [sum(pair[side] for pair in record["memory_bytes"]) for side in ("one", "another")]
    assert held == pytest.approx(record["peak_bytes"])
    assert record["settings"]
    text = run("explain", str(rl_plans), "1", str(last)).stdout
    assert text.startswith(f"Plan {last} is ") and "Seconds of each phase" in text
    assert max(map(len, text.splitlines())) <= 80
    missing = run("explain", str(rl_plans), "1", str(last + 1))
    assert missing.exit_code == 2 and f"plans 1 to {last}" in missing.stderr
