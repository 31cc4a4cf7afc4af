"""`planner search` on real catalogues: text, JSON, CSV, options."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

from click.testing import Result

from planner.cli.option_types import names
from planner.cli.search import SORTS
from planner.predict.plan_text import step_time_text
from planner.report.verdict import Verdict
from planner.search.outcome import SORT_KEYS
from planner.search.plan_file import read_plan_file
from planner.search.result import SearchResult
from tests.cli.conftest import SMALL, Run, lines_are_short

MainJob = tuple[Result, Path]


def test_main_job_reads_well_in_a_pipe(main_job: MainJob) -> None:
    result, path = main_job
    text = result.stdout.replace(str(path), "plans.json")
    assert result.exit_code == 0, result.stderr
    assert "…" not in text
    assert "\x1b" not in text
    assert lines_are_short(text)
    assert all(line == line.rstrip() for line in text.splitlines())


def test_main_job_says_what_it_took(main_job: MainJob) -> None:
    text = " ".join(main_job[0].stdout.split())
    for words in (
        "70b is llama-3-70b",
        "70.55 B parameters",
        "8 nodes of 8×H100-SXM5-80GB, NVLink 450 GB/s",
        "sequences of 8,192",
        "configurations;",
        "must fit with a probability of 80 % or more",
        "No plan that differs by more than 0.1 % of the step time",
        "Use plan",
        "legal",
        "against 989 TFLOP/s dense",
        "80 % interval (",
        "planner explain",
    ):
        assert words in text


def test_a_front_at_another_resolution(run: Run) -> None:
    """All of it is printed, files say at which; what is out of range is refused."""
    arguments = ("search", *SMALL)
    plain, coarse = run(*arguments, "--all"), run(*arguments, "--resolution", "5%,4GiB")
    words = " ".join(coarse.stdout.split())
    assert "more than 5.0 % of the step time and 4.0 GiB is missing" in words
    assert len(coarse.stdout.splitlines()) <= len(plain.stdout.splitlines())
    shown = json.loads(run(*arguments, "--resolution", "4GiB", "--json").stdout)
    assert shown["request"]["resolution"] == "4GiB"
    for text, said in (("11%", "the precision of proofs"), ("1%,2%", "one share and one size")):
        refused = run(*arguments, "--resolution", text)
        assert refused.exit_code == 2
        assert said in " ".join(refused.stderr.split())


def test_verbose_tells_rules_and_assumptions(run: Run) -> None:
    arguments = ("search", "--model", "llama-3.2-1b", "--gpus", "4xH100", "--gbs", "16")
    plain, verbose = run(*arguments).stdout, run(*arguments, "-v").stdout
    told = (
        "Left out, by rule",
        "Assumed for plan",
        "How it was proven",
        "candidates/s",
        "by bounds",
    )
    for words in told:
        assert words in verbose and words not in plain


def test_main_job_wrote_what_it_shows(main_job: MainJob) -> None:
    shown, path = main_job
    result = read_plan_file(path)
    assert result.request.gbs_tokens == 4_000_000
    assert result.recommended in result.shown
    near = Verdict(result).near
    for number in result.shown[:8]:
        plan = result.plans[number - 1]
        if number not in near:
            assert re.search(rf"\n *→?{number} ", shown.stdout)
            assert step_time_text(plan) in shown.stdout
    folded = [number for number in result.shown[:8] if number in near]
    assert f"\n≈{len(folded)} " in shown.stdout
    first = result.plans[0]
    assert first.degrees.gpus == 64
    assert abs(first.time.total_s - first.step_time_s) < 1e-6 * first.step_time_s


def test_json_is_one_clean_document(run: Run) -> None:
    result = run("search", *SMALL, "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert SearchResult.model_validate(document).plans
    assert document["request"]["gbs"] == 64


def test_json_and_file_are_the_same(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    result = run("search", *SMALL, "--json", "-o", str(path))
    assert result.stdout == path.read_text(encoding="utf-8")


def test_csv_has_one_row_a_plan_in_si_units(run: Run) -> None:
    document = json.loads(run("search", *SMALL, "--json").stdout)
    rows = list(csv.DictReader(io.StringIO(run("search", *SMALL, "--csv").stdout)))
    assert [row["plan"] for row in rows] == [str(n + 1) for n in range(len(document["plans"]))]
    for row, plan in zip(rows, document["plans"], strict=True):
        assert float(row["step_time_s"]) == plan["step_time_s"]
        assert float(row["peak_bytes"]) == plan["peak_bytes"]
        assert int(row["tp"]) == plan["degrees"]["tp"]


def test_limits_hold(run: Run) -> None:
    result = run("search", *SMALL, "--tp", "2..4", "--pp", "1", "--zero", "1", "--json")
    plans = json.loads(result.stdout)["plans"]
    assert {plan["degrees"]["tp"] for plan in plans} <= {2, 4}
    assert {plan["degrees"]["pp"] for plan in plans} == {1}
    assert {plan["degrees"]["zero"] for plan in plans} == {1}


def test_top_and_sort(run: Run) -> None:
    result = run("search", *SMALL, "--top", "2", "--sort", "peak", "--json")
    peaks = [plan["peak_bytes"] for plan in json.loads(result.stdout)["plans"]]
    assert len(peaks) <= 2
    assert peaks == sorted(peaks)


def test_sorts_are_fields_that_the_search_knows() -> None:
    assert set(SORTS.values()) <= set(SORT_KEYS)


def test_recompute_is_limited_to_what_is_named(run: Run) -> None:
    result = run("search", *SMALL, "--recompute", "full", "--json")
    assert {plan["recompute"] for plan in json.loads(result.stdout)["plans"]} == {"full"}
    assert names("none, full,") == ("none", "full")


def test_quiet_says_nothing_on_stderr(run: Run) -> None:
    assert run("search", *SMALL, "--quiet").stderr == ""


def test_a_batch_past_the_critical_one_is_said_in_one_sentence(run: Run) -> None:
    """Surely past at the best number of tokens for the size: 16 M tokens for 1.2 B parameters."""
    job = ("search", "--model", "llama-3.2-1b", "--gpus", "8xH100", "--recompute", "none", "-q")
    said = "exceeds the critical batch for trainings on fewer than about 5.0"
    assert said in " ".join(run(*job, "--gbs-tokens", "16M").stdout.split())
    assert "critical" not in run(*job, "--gbs-tokens", "512K").stdout


def test_a_ramp_is_shown_with_its_steps_and_days(run: Run) -> None:
    job = ("search", "--model", "llama-3.2-1b", "--gpus", "8xH100", "--recompute", "none", "-q")
    text = " ".join(run(*job, "--batch-ramp", "8..16/1B").stdout.split())
    assert "8 sequences until 1.00 B tokens (" in text and "then 16 (" in text
    assert "ramp takes" in text and "at the last batch its tokens would take" in text
    wrong = run(*job, "--batch-ramp", "8..16/1B", "--gbs", "32")
    assert wrong.exit_code == 2 and "ends with 16 sequences, but --gbs 32" in wrong.stderr
