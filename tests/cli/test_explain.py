"""`planner explain`: certificates over a real plan, neighbours, and broken plan files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result

from constraints.rule import Layout
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.predict.evaluate import Proposal
from planner.predict.plan import Degrees, Plan, TimeTerms
from planner.report.explain import neighbour_sentence
from planner.search.explanation import (
    main_difference,
    memory_terms,
    neighbour_reports,
    stage_groups,
    time_terms,
)
from planner.search.neighbours import neighbours
from planner.search.plan_file import read_plan_file
from tests.cli.conftest import Run, lines_are_short
from tests.cli.made_up import GIB, plan, result, stage

MainJob = tuple[Result, Path]
REQUEST = result().request
JOB = REQUEST.resolve()


def test_report_of_a_real_plan(run: Run, main_job: MainJob) -> None:
    shown = run("explain", str(main_job[1]), "1")
    assert shown.exit_code == 0, shown.output
    for title in ("Memory of the heaviest stage", "Memory by pipeline", "Time of one", "Assumed"):
        assert title in shown.stdout
    assert "Neighbours" in shown.stdout
    assert lines_are_short(shown.stdout)


def test_terms_of_every_real_plan_add_up(main_job: MainJob) -> None:
    for item in read_plan_file(main_job[1]).plans:
        assert sum(term.amount for term in time_terms(item)) == pytest.approx(item.step_time_s)
        assert sum(term.share for term in time_terms(item)) == pytest.approx(1)
        for memory in item.stages:
            total = sum(term.amount for term in memory_terms(memory))
            assert total == pytest.approx(memory.peak, rel=1e-6)
        assert item.stages[item.heaviest_stage].peak == pytest.approx(item.peak_bytes)
        assert max(memory.peak for memory in item.stages) == pytest.approx(item.peak_bytes)


def test_json_has_the_same_terms(run: Run, main_job: MainJob) -> None:
    document = json.loads(run("explain", str(main_job[1]), "1", "--json").stdout)
    assert document["number"] == 1
    assert sum(term["share"] for term in document["time"]) == pytest.approx(1)
    assert document["neighbours"]


def test_no_real_neighbour_dominates_a_plan(run: Run, main_job: MainJob) -> None:
    """Beyond the gap that a plan admits, and the ties that the short front leaves out."""
    found = read_plan_file(main_job[1])
    for number, item in list(enumerate(found.plans, start=1))[::3]:
        document = json.loads(run("explain", str(main_job[1]), str(number), "--json").stdout)
        for near in document["neighbours"]:
            if near["outcome"] in ("faster", "slower", "equal"):
                lighter = near["peak_bytes"] < 0.93 * item.peak_bytes
                faster = near["faster_by"] > item.gap + 0.011
                assert not (lighter and faster), (number, near)


def test_equal_stages_share_a_row() -> None:
    stages = (stage(0, layers=19), stage(1), stage(2), stage(3, layers=21))
    groups = stage_groups(plan(stages=stages))
    assert [group.stages for group in groups] == [(0,), (1, 2), (3,)]


def _beside(chosen: Plan, job: Job = JOB) -> dict[str, Proposal]:
    """The neighbours of a plan, by what differs."""
    return dict(neighbours(Proposal(REQUEST, chosen.degrees, chosen.recompute), job, chosen.gbs))


def test_neighbours_use_the_same_gpus_and_nearly_the_batch() -> None:
    chosen = plan()
    found = _beside(chosen)
    assert {"tp 8 (dp 1)", "tp 2 (dp 4)", "pp 8 (dp 1)", "cp 1 (dp 4)", "mbs 2"} <= set(found)
    assert {"vpp 10", "vpp 4", "zero 0"} <= set(found)
    for near in found.values():
        assert near.degrees.gpus == chosen.degrees.gpus
        assert near.degrees.gbs == pytest.approx(chosen.gbs, rel=0.02)
        assert near.degrees != chosen.degrees or near.recompute != chosen.recompute


def test_dense_neighbours_have_no_expert_tensor_degree() -> None:
    chosen = plan(degrees=Degrees(dp=64, zero=1, grad_acc=8))
    assert _beside(chosen)["tp 2 (dp 32)"].degrees.etp == 1


def test_expert_neighbours_only_of_moe_models() -> None:
    assert not [change for change in _beside(plan()) if change.startswith("ep")]
    moe = result().request.model_copy(update={"model": "mixtral-8x7b"}).resolve()
    degrees = Degrees(tp=2, pp=2, ep=4, dp=16, zero=1, grad_acc=32)
    layout = Layout(2, 1, (16, 16))
    found = plan(degrees=degrees, layout=layout)
    assert {"ep 8", "ep 2"} <= set(_beside(found, moe))


def _costed(**changes: object) -> Plan:
    found = plan(**changes)
    return found.model_copy(update={"step_time_s": found.time.total_s})


def test_outcomes_and_reasons() -> None:
    found = plan()

    def evaluator(degrees: Degrees, recompute: str) -> Plan:
        if degrees.vpp > 5:
            raise UsageError("vpp = 10 splits no layer")
        if degrees.mbs == 2:
            return plan(degrees=degrees, peak_bytes=85 * GIB, fits=False)
        if degrees.tp == 8:
            slower = found.time.model_copy(update={"tp_s": found.time.tp_s + 5.9})
            return plan(degrees=degrees, time=slower, step_time_s=64.9, tokens_per_s=71_000 / 1.1)
        return plan(degrees=degrees, recompute=recompute)

    reports = {
        report.change: report for report in neighbour_reports(found, REQUEST, JOB, evaluator)
    }
    assert reports["vpp 10"].outcome == "not-legal"
    assert reports["vpp 10"].text == "vpp = 10 splits no layer"
    assert reports["mbs 2"].outcome == "does-not-fit"
    assert neighbour_sentence(reports["mbs 2"]) == "does not fit in 79.1 GiB, equally fast"
    slow = reports["tp 8 (dp 1)"]
    assert (slow.outcome, slow.reason) == ("slower", "tp_s")
    said = neighbour_sentence(slow)
    assert said.startswith("10.0 % slower (") and said.endswith(" %), TP traffic +5.90 s")
    assert neighbour_sentence(reports["zero 0"]) == "equally fast"
    uneven = slow.model_copy(update={"reason": "compute_s", "slowest_stage": 1.5})
    assert neighbour_sentence(uneven).endswith(
        "compute +5.90 s: its slowest stage takes 1.5 times the mean"
    )


def test_difference_is_taken_at_the_plans_batch() -> None:
    found = plan()
    half = TimeTerms(**{name: value / 2 for name, value in found.time.model_dump().items()})
    other = plan(time=half, gbs_tokens=found.gbs_tokens // 2)
    assert main_difference(found, other)[1] == pytest.approx(0)


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("nonsense", ("not valid JSON", "planner search")),
        ("[1]", ("not a plan file",)),
        ('{"version": 99}', ("version 99", "reads versions 1 to 7")),
        ('{"version": 1}', ("field", "planner search")),
        ("\xff", ("not valid JSON",)),
    ],
)
def test_broken_plan_files(run: Run, tmp_path: Path, content: str, texts: tuple[str, ...]) -> None:
    path = tmp_path / "plans.json"
    path.write_text(content, encoding="utf-8")
    shown = run("explain", str(path), "1")
    assert shown.exit_code == 2
    for text in texts:
        assert text in shown.stderr


def test_missing_file_and_missing_plan(run: Run, tmp_path: Path, main_job: MainJob) -> None:
    missing = run("explain", str(tmp_path / "none.json"), "1")
    assert (missing.exit_code, "does not exist" in missing.stderr) == (2, True)
    assert "0 is not in the range" in run("explain", str(main_job[1]), "0").stderr
    for number in ("99",):
        shown = run("explain", str(main_job[1]), number)
        assert shown.exit_code == 2
        assert f"there is no plan {number}; the file contains plans 1 to" in shown.stderr
