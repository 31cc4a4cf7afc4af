"""Which link binds: one account, that agrees with what faster links save."""

from __future__ import annotations

import pytest

from planner.compare.run import time_shares
from planner.job.job import Job
from planner.job.request import Request
from planner.launch.plans import one_plan
from planner.predict.link_account import LATENCIES, RATES_OUT, RATES_UP, link_account
from planner.predict.plan import Degrees, Plan
from planner.search.changes import hardware_changes
from planner.search.explanation import explain
from tests.configurations import evaluate_job

# Dense and mixtures of experts, on several fabrics, bound by different links and by none.
_CORE = "megatron-core"
JOBS = {
    "dense, pipeline": ("70b", "64xH100", _CORE, {"tp": 8, "pp": 4, "dp": 2, "grad_acc": 32}),
    "dense, ZeRO-3 over nodes": ("8b", "32xA100-80GB", "hf-fsdp2", {"dp": 32, "zero": 3}),
    "dense, EFA": ("8b", "32xaws-p5", _CORE, {"tp": 4, "dp": 8, "zero": 1}),
    "dense, PCIe": ("llama-3.2-1b", "8xRTX4090", _CORE, {"dp": 8, "zero": 1}),
    "dense, one node": ("8b", "8xH100", _CORE, {"tp": 8, "grad_acc": 8}),
    "context": ("8b", "16xH100", _CORE, {"tp": 2, "cp": 8, "grad_acc": 2}),
    "experts in a node": ("qwen3-30b-a3b", "32xH100", _CORE, {"ep": 8, "dp": 32, "zero": 1}),
    "experts, nodes": ("mixtral-8x7b", "64xH100", _CORE, {"tp": 2, "ep": 8, "dp": 32, "zero": 1}),
    "experts, MI300X": ("mixtral-8x7b", "16xMI300X", "primus", {"ep": 8, "dp": 16, "zero": 1}),
}  # fmt: skip


def _job(name: str) -> tuple[Job, Plan, Request]:
    model, gpus, framework, given = JOBS[name]
    degrees = Degrees(**given)
    request = Request(model=model, gpus=gpus, framework=framework, gbs=degrees.gbs, seq=4096)
    job = request.resolve()
    return job, evaluate_job(job, degrees), request


@pytest.mark.parametrize("name", JOBS)
def test_the_account_adds_up_and_agrees_with_faster_links(name: str) -> None:
    """What the account says of a link's bandwidth is what an infinitely fast one saves. Twice as
    fast saves all of it at most, and 40 % of it at least: the step is nearly convex in a byte's
    time. (Where exchanges get faster, what hid beside them may show: by less than 1 %.)"""
    job, plan, _ = _job(name)
    account = link_account(job, plan)
    assert sum(one.seconds for one in account) == pytest.approx(plan.step_time_s)
    assert sum(one.share for one in account) == pytest.approx(1.0)
    changes = {change.name: change for change in hardware_changes(job)}
    modes = plan.recompute
    for rates, change in ((RATES_OUT, "network"), (RATES_UP, "scale-up")):
        infinite = evaluate_job(job, plan.degrees, modes, factors=dict.fromkeys(rates, 1e12))
        whole = plan.step_time_s - infinite.step_time_s
        if change not in changes:
            continue
        assert set(changes[change].factors) == set(rates)
        twice = evaluate_job(job, plan.degrees, modes, factors=changes[change].factors)
        saved = plan.step_time_s - twice.step_time_s
        tolerance = 1e-3 * plan.step_time_s
        assert whole >= -0.01 * plan.step_time_s
        assert min(whole, 0.4 * whole) - tolerance <= saved <= max(whole, 0.0) + tolerance
    named = sum(one.seconds for one in account if one.part == "bandwidth")
    both = evaluate_job(
        job, plan.degrees, modes, factors=dict.fromkeys((*RATES_OUT, *RATES_UP), 1e12)
    )
    assert named == pytest.approx(plan.step_time_s - both.step_time_s, abs=1e-6 * plan.step_time_s)
    assert "latency" not in changes or set(changes["latency"].factors) == set(LATENCIES)


@pytest.mark.parametrize("name", ["dense, pipeline", "experts, nodes"])
def test_compare_and_explain_show_the_same_account(name: str) -> None:
    job, plan, request = _job(name)
    explanation = explain(one_plan(plan, request, job), 1, job)
    shares = time_shares(plan, job)
    assert [one.share for one in explanation.links] == [one.share for one in shares]
    assert sum(one.share for one in shares) == pytest.approx(1.0)
    links = {one.resource for one in explanation.links if one.part == "bandwidth"}
    assert links <= {one.resource for one in shares}


def test_groups_wait_for_the_links_that_they_meet() -> None:
    job, plan, _ = _job("dense, pipeline")
    waits = {
        one.resource: one.traffic for one in link_account(job, plan) if one.part == "bandwidth"
    }
    assert "TP" in waits["NVLink bandwidth"]
    assert "TP" not in waits["InfiniBand bandwidth"]


def test_one_gpu_waits_for_no_link() -> None:
    request = Request(model="llama-3.2-1b", gpus="1xH100", gbs=4, seq=2048)
    job = request.resolve()
    plan = evaluate_job(job, Degrees(grad_acc=4))
    assert all(one.part == "term" for one in link_account(job, plan))
