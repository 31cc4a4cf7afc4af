"""The CPU's part of a step: issuing kernels, on a faster or slower core, and reading data."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from planner.cost import fields as f
from planner.cost.layer import issue_seconds
from planner.cost.tables import Array
from planner.job.frameworks.switches import with_techniques
from planner.job.job import Job
from planner.predict.assumptions import waiting_notes
from planner.predict.cost_model import CostModel
from planner.predict.plan import Degrees
from planner.predict.uncertainty.intervals import plan_conditions
from tests.cost.jobs import cost, make_job, with_table
from tests.search.brute import framework_inputs

DEGREES = {"dp": 8, "zero": 1, "mbs": 1, "grad_acc": 4}


def small() -> Job:
    """A model whose kernels are done before the CPU has issued the next."""
    job = make_job("gpt2-small", "8xH100")
    return replace(job, seq=256)


def on_host(job: Job, speed: float) -> Job:
    return replace(job, cluster=job.cluster.model_copy(update={"host_speed": speed}))


def step(job: Job, **degrees: int) -> Array:
    return cost(CostModel(job), **(DEGREES | degrees))[1]


@pytest.mark.parametrize(
    ("tp", "pipelined", "seconds"), [(1, 1, 30.0), (8, 0, 35.04), (8, 1, 83.04), (16, 1, 436.8)]
)
def test_what_the_cpu_issues(tp: int, pipelined: int, seconds: float) -> None:
    """Ten kernels at 3 s and 2.4 % for each further rank; in a pipeline each of two exchanges 3 s
    a rank, and 10 s for each step that leaves a domain of 8."""
    framework = framework_inputs(issue_s=3.0, pipeline_exchange_s=3.0, outer_tensor_step_s=10.0)
    key = SimpleNamespace(tp=float(tp), pipelined=float(pipelined))
    network = [SimpleNamespace(scale_up_domain=8.0)]
    assert issue_seconds(30.0, 2.0, key, framework, network) == pytest.approx(seconds)


def test_a_launch_bound_step_is_the_hosts() -> None:
    slow, fast = (step(on_host(small(), speed))[f.STEP_TIME] for speed in (1.0, 2.0))
    assert slow == pytest.approx(2.0 * fast, rel=0.05)


def test_a_graph_is_replayed_by_one_call_each_way() -> None:
    job = small()
    graphs = replace(job, framework=with_techniques(job.framework, ("cuda-graphs",)))
    model = CostModel(on_host(graphs, 1e-3))
    layer = cost(model, **DEGREES)[0].piece_costs(0)[0]
    call_s = model.framework_inputs.issue_s
    assert layer[f.PIECE_FORWARD] == pytest.approx(call_s)
    assert layer[f.PIECE_BACKWARD] == pytest.approx(call_s)


def test_a_large_model_does_not_depend_on_the_host() -> None:
    job = make_job("llama-3-8b", "8xH100")
    slow, fast = (step(on_host(job, speed), tp=2, dp=4) for speed in (1.0, 2.0))
    assert slow[f.STEP_ISSUE] < 0.01 * slow[f.STEP_TIME]
    assert slow[f.STEP_TIME] == pytest.approx(fast[f.STEP_TIME], rel=0.01)


def test_waiting_is_what_cuda_graphs_take_away() -> None:
    job = small()
    issued = step(job)
    graphs = step(replace(job, framework=with_techniques(job.framework, ("cuda-graphs",))))
    assert graphs[f.STEP_ISSUE] < 0.1 * issued[f.STEP_ISSUE]
    # On one stage the micro-batches follow each other: what is waited less is what is saved.
    saved = issued[f.STEP_COMPUTE] - graphs[f.STEP_COMPUTE]
    assert issued[f.STEP_ISSUE] - graphs[f.STEP_ISSUE] == pytest.approx(saved, rel=1e-9)
    assert 0.5 * issued[f.STEP_TIME] < issued[f.STEP_ISSUE] < issued[f.STEP_TIME]


def test_hooks_that_fetch_weights_cost_the_host_under_zero_3_alone() -> None:
    """Of a step that waits for the CPU: each row of products, both passes, each micro-batch (one
    of the head's is longer than its hooks)."""
    job = replace(make_job("llama-3.2-1b", "8xA100", "deepspeed"), seq=64)
    without = with_table(job, "kernels", fetch_s=0.0)
    for zero, products in ((2, 0), (3, 2 * 5 * 16 + 1)):
        waits = [step(item, zero=zero)[f.STEP_ISSUE] for item in (without, job)]
        hooks = 4 * products * job.framework.kernels.fetch_s / job.cluster.host_speed
        assert waits[1] - waits[0] == pytest.approx(hooks, rel=0.01, abs=1e-9)


def test_sequential_experts_are_issued_one_by_one() -> None:
    """Six kernels of the grouped products, forward and backward, for each further expert."""
    job = replace(make_job("qwen3-30b-a3b", "8xH100"), seq=64)
    one_by_one = with_table(job, "kernels", sequential_experts=True)
    waits = {ep: [step(item, ep=ep)[f.STEP_ISSUE] for item in (job, one_by_one)] for ep in (4, 8)}
    more = {ep: after - before for ep, (before, after) in waits.items()}
    assert more[8] > 0.0
    # 32 experts a rank in place of 16: 31 and 15 further ones.
    assert more[4] == pytest.approx(more[8] * 31.0 / 15.0, rel=0.02)


def test_a_step_takes_at_least_as_long_as_its_data() -> None:
    job = small()
    usual = step(job)
    # Four sequences a rank and step.
    share = usual[f.STEP_TIME] / 4.0
    quick, slow = (step(with_table(job, "outside", sample_load_s=by * share)) for by in (0.9, 3.0))
    assert quick[f.STEP_TIME] == usual[f.STEP_TIME]
    assert slow[f.STEP_TIME] == pytest.approx(3.0 * usual[f.STEP_TIME], rel=1e-6)
    assert slow[f.STEP_HOST] - usual[f.STEP_HOST] == pytest.approx(
        2.0 * usual[f.STEP_TIME], rel=1e-6
    )


def test_a_plan_that_waits_for_the_cpu_says_so() -> None:
    degrees = Degrees(
        tp=1, pp=1, vpp=1, cp=1, ep=1, etp=1, dp=8, zero=1, mbs=1, grad_acc=4, shard=0
    )
    job = small()
    at = plan_conditions(job, degrees, step(job))
    (note,) = waiting_notes(job, at)
    assert f"{100.0 * at.waiting:.0f} % of the step" in note
    assert "--with cuda-graphs" in note
    assert waiting_notes(job, at._replace(waiting=0.05)) == ()
