"""Marginal values: better hardware is never slower, and each row is what a search finds."""

from __future__ import annotations

import time

import pytest

from planner.job.request import Request
from planner.predict.cost_model import CostModel
from planner.predict.evaluate import Proposal
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.report.explain import tornado_table, what_if_blocks
from planner.search.changes import hardware_changes, more_hbm
from planner.search.explanation import explain, job_evaluator
from planner.search.limit_results import Until
from planner.search.neighbours import neighbours
from planner.search.result import SearchResult, WhatIf
from planner.search.search import find_plans
from planner.search.shares import cost_job
from planner.search.what_if import what_if

REQUEST = Request(
    model="8b",
    gpus="16xH100",
    gbs=64,
    require=("tp >= 4",),
    forbid=("zero == 1",),
    limits={"pp": (1, 2)},
)


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return find_plans(REQUEST)


@pytest.fixture(scope="module")
def fastest(found: SearchResult) -> WhatIf:
    return what_if(REQUEST, REQUEST.resolve(), found.plans[0])


@pytest.fixture(scope="module")
def lightest(found: SearchResult) -> WhatIf:
    return what_if(REQUEST, REQUEST.resolve(), found.plans[-1])


def test_every_question_of_the_issue_has_a_row(fastest: WhatIf) -> None:
    names = {row.name for row in fastest.rows}
    assert {"hbm", "network", "latency", "scale-up", "compute", "hbm-rate", "nodes"} <= names
    assert {'--require "tp >= 4"', '--forbid "zero == 1"', "--pp 1,2"} <= names


@pytest.mark.parametrize("which", ["fastest", "lightest"])
def test_better_hardware_and_fewer_conditions_are_never_slower(
    which: str, request: pytest.FixtureRequest
) -> None:
    answer: WhatIf = request.getfixturevalue(which)
    for row in answer.rows:
        if row.kind != "gpus":
            assert row.effect_s is not None
            assert row.effect_s <= 1e-9, row
            assert row.kept_effect is not None
            assert row.kept_effect <= 1e-9, row


def test_the_fastest_plan_is_its_own_baseline(found: SearchResult, fastest: WhatIf) -> None:
    assert fastest.best_is_this
    assert fastest.best_s == pytest.approx(found.plans[0].step_time_s)
    assert not fastest.chosen_for_memory


def test_a_light_plan_is_compared_with_plans_as_light(
    found: SearchResult, lightest: WhatIf
) -> None:
    plan = found.plans[-1]
    assert plan.step_time_s > 1.05 * found.plans[0].step_time_s
    assert lightest.chosen_for_memory
    assert lightest.limit_bytes == plan.peak_bytes
    for row in lightest.rows:
        extra = 8 * 2**30 if row.name == "hbm" else 0
        assert row.peak_bytes is not None
        assert row.peak_bytes <= plan.peak_bytes + extra


def test_rows_are_sorted_by_effect_and_small_ones_are_said_to_be_so(fastest: WhatIf) -> None:
    sizes = [abs(item.effect or 0.0) for item in fastest.rows]
    assert sizes == sorted(sizes, reverse=True)
    for entry in fastest.rows:
        assert entry.resolved == (abs(entry.effect or 0.0) > entry.resolution)
        assert entry.resolution >= OPTIMAL_WITHIN
    table = tornado_table(fastest, Plan.model_validate(found_plan(fastest)))
    for row, entry in zip(table.rows[1:], fastest.rows, strict=True):
        assert row[2].startswith("<") != entry.resolved


def found_plan(answer: WhatIf) -> dict[str, object]:
    """A plan with the step time that the answer is about."""
    from tests.cli.made_up import plan

    return plan(step_time_s=answer.step_time_s).model_dump()


def test_a_row_is_what_a_search_of_the_changed_request_finds(
    found: SearchResult, fastest: WhatIf
) -> None:
    row = next(item for item in fastest.rows if item.name == '--forbid "zero == 1"')
    freed = find_plans(REQUEST.model_copy(update={"forbid": ()}), top=1).plans[0]
    assert row.step_time_s == pytest.approx(freed.step_time_s, rel=0.0101)
    binding = {constraint.name: constraint.binding for constraint in fastest.constraints}
    faster = freed.step_time_s < found.plans[0].step_time_s * (1 - row.resolution)
    assert binding['--forbid "zero == 1"'] == faster


def test_one_more_node_uses_all_its_gpus(fastest: WhatIf) -> None:
    row = next(item for item in fastest.rows if item.kind == "gpus")
    assert row.gpus is not None
    assert row.gpus > 16
    assert row.gpus % 8 == 0
    assert f"({row.gpus:,} GPUs)" in row.change


def test_intervals_surround_the_times(fastest: WhatIf) -> None:
    for row in fastest.rows:
        assert row.step_time is not None
        assert row.step_time_s is not None
        assert row.step_time.low < row.step_time_s < row.step_time.high


def test_changes_change_only_what_they_say() -> None:
    job = REQUEST.resolve()
    larger = more_hbm(job, 8 * 2**30)
    assert larger.hbm_limit_bytes == job.hbm_limit_bytes + 8 * 2**30
    plain = CostModel(job, {})
    for hardware_change in hardware_changes(job):
        model = CostModel(hardware_change.job, hardware_change.factors)
        differ = [
            name
            for name in (*plain.gpu_inputs._fields, *plain.link_inputs._fields)
            if getattr(plain.gpu_inputs, name, getattr(plain.link_inputs, name, None))
            != getattr(model.gpu_inputs, name, getattr(model.link_inputs, name, None))
        ]
        assert bool(differ) == (hardware_change.name != "hbm"), hardware_change.name


def test_a_single_gpu_has_no_links_to_improve() -> None:
    job = Request(model="llama-3.2-1b", gpus="1xH100", gbs=8).resolve()
    assert {hardware_change.name for hardware_change in hardware_changes(job)} == {
        "hbm",
        "compute",
        "hbm-rate",
    }
    assert cost_job(job).costed.steps.shape[0] > 0


def test_report_shows_binding_constraints(fastest: WhatIf, found: SearchResult) -> None:
    facts, table, notes = what_if_blocks(fastest, found.plans[0])
    assert "memory" in str(facts)
    assert "now" in str(table)
    assert "80 % interval" in str(notes)


def test_the_time_limit_holds_for_neighbours_and_changes_together(found: SearchResult) -> None:
    plan, job = found.plans[0], REQUEST.resolve()
    until = Until(time.perf_counter() - 1.0)
    explained = explain(found, 1, job, job_evaluator(job, plan, until), until)
    assert explained.neighbours == ()
    near = neighbours(Proposal(REQUEST, plan.degrees), job, plan.gbs)
    assert len(until.untried) == len([*near])
    answer = what_if(REQUEST, job, plan, until=until)
    assert answer.rows == answer.constraints == ()
    assert "+8 GiB HBM" in answer.untried
