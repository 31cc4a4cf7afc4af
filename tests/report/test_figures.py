"""What figures show: the same numbers as the plan, groups as the ranks have them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from planner.cost.terms import MEMORY_GROUPS
from planner.job.request import Request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees, Plan
from planner.report.charts.front import front_plans
from planner.report.charts.memory import group_sizes
from planner.report.charts.plan import GROUP_KINDS, cluster_of, stage_bars, waterfall
from planner.report.charts.schedule import MOST_PASSES, Gantt, schedule_gantt
from planner.search.search import find_plans

PIPELINE = Degrees(tp=2, pp=4, dp=2, mbs=1, grad_acc=16)


def _plan(degrees: Degrees = PIPELINE, schedule: str | None = None, **changes: str) -> Plan:
    request = Request(
        model="llama-3-8b", gpus=f"{degrees.gpus}xH100", gbs=degrees.gbs, schedule=schedule
    )
    return evaluate(request.model_copy(update=changes), degrees)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Four stages, sixteen micro-batches."""
    return _plan()


def test_stacked_groups_end_at_the_peak(plan: Plan) -> None:
    for stage in plan.stages:
        interval = [
            stage_bar.end for stage_bar in stage_bars(plan) if stage_bar.label == str(stage.stage)
        ]
        assert interval[-1] * 2**30 == pytest.approx(stage.peak)


def test_unknown_terms_are_other_tensors() -> None:
    groups = group_sizes({"new": 5.0, "logits": 3.0}, 7.0)
    sizes = dict(zip(MEMORY_GROUPS, groups, strict=True))
    assert (sizes["other tensors"], sizes["logits and loss"]) == (5.0, 3.0)
    assert sizes["beside the tensors"] == 7.0


def test_the_waterfall_ends_with_the_step(plan: Plan) -> None:
    *terms, step = waterfall(plan)
    assert all(term.end == after.start for term, after in pairwise(terms))
    assert terms[-1].end == step.end == pytest.approx(plan.step_time_s)


def test_groups_are_those_of_the_ranks() -> None:
    """Members of a group differ in its degree alone: tp neighbours, dp tp·cp apart."""
    degrees = Degrees(tp=2, cp=2, dp=4, pp=2, ep=4, etp=1)
    cluster = cluster_of(degrees, 8)
    sizes = {"tp": 2, "cp": 2, "dp": 4, "ep": 4, "pp": 16}
    for index, kind in enumerate(GROUP_KINDS):
        members: dict[int, list[int]] = {}
        for gpu in cluster.gpus:
            members.setdefault(gpu.groups[index], []).append(gpu.rank)
        assert {len(member) for member in members.values()} == {sizes[kind]}, kind
        stride = {"tp": 1, "cp": 2, "dp": 4, "ep": 1, "pp": 1}[kind]
        for member in members.values():
            assert {b - a for a, b in pairwise(member)} == {stride}
    places = {(gpu.column, gpu.row) for gpu in cluster.gpus}
    assert len(places) == degrees.gpus


def test_a_large_cluster_is_drawn_in_part() -> None:
    cluster = cluster_of(Degrees(dp=4096), 8)
    assert (len(cluster.gpus), cluster.left_out) == (1024, 3072)
    assert cluster_of(Degrees(), 8).kinds == ("dp",)


def _busy_s(gantt: Gantt, stage: int) -> float:
    return sum(
        bar.end_s - bar.start_s
        for bar in gantt.bars
        if bar.stage == stage and bar.kind not in ("bubble", "optimizer")
    )


def test_every_stage_runs_every_micro_batch(plan: Plan) -> None:
    gantt = schedule_gantt(plan)
    assert gantt is not None and (gantt.microbatches, gantt.of) == (16, 16)
    for stage in plan.stages:
        passes_s = 16 * (stage.forward_s + stage.backward_s)
        tail_s = plan.time.dp_s
        assert _busy_s(gantt, stage.stage) == pytest.approx(passes_s + tail_s)
        played = [bar for bar in gantt.bars if bar.stage == stage.stage and bar.kind != "bubble"]
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in pairwise(played))


@pytest.mark.parametrize(
    ("schedule", "framework", "vpp"),
    [
        ("gpipe", "torchtitan", 1),
        ("zb-h1", "torchtitan", 2),
        ("zb-v", "torchtitan", 2),
        ("dualpipev", "torchtitan", 2),
    ],
)
def test_every_schedule_is_played(schedule: str, framework: str, vpp: int) -> None:
    degrees = PIPELINE.model_copy(update={"vpp": vpp, "tp": 1})
    plan = _plan(degrees, schedule, framework=framework)
    gantt = schedule_gantt(plan)
    assert plan.schedule == schedule
    assert gantt is not None
    assert {bar.stage for bar in gantt.bars} == {0, 1, 2, 3}


def test_long_steps_are_drawn_in_part_and_short_ones_not() -> None:
    long = _plan(PIPELINE.model_copy(update={"grad_acc": 4000}))
    gantt = schedule_gantt(long)
    assert gantt is not None and gantt.microbatches < gantt.of == 4000
    assert sum(bar.kind in ("forward", "backward") for bar in gantt.bars) <= MOST_PASSES
    assert schedule_gantt(_plan(Degrees(dp=2, grad_acc=4))) is None


def test_plans_have_their_numbers_and_few_have_labels() -> None:
    result = find_plans(Request(model="llama-3.2-1b", gpus="8xH100", gbs=64))
    (first, *others) = front_plans(result.plans, {1: "1 take"})
    assert first.label == "1 take" and not any(plan.label for plan in others)
    lightest, heaviest, slowest, fastest = first.ends
    assert lightest < first.gib < heaviest and slowest < first.tokens_per_s < fastest
    assert first.number == 1 and first.tokens_per_s == result.plans[0].tokens_per_s_per_gpu
