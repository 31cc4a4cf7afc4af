"""Copies of activations over the host link: what of them costs time."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from planner.cost import fields as f
from planner.cost.layer import exposed_copies
from planner.job.job import Job
from planner.job.offload import read_offload, usable_modes
from planner.job.request import Request
from planner.predict.cost_model import CostModel
from planner.predict.evaluate import evaluate
from planner.predict.links import link_inputs, network
from planner.predict.plan import Degrees, Plan
from tests.cost.jobs import cost, make_job

DEGREES = {"tp": 2, "etp": 2, "dp": 8, "zero": 1, "grad_acc": 4}


def job_with(modules: str, model: str = "mixtral-8x7b") -> Job:
    base = make_job(model, "16xH100")
    chosen = read_offload(modules, base.framework, base.model)
    modes = usable_modes(base.framework, chosen, base.recompute, "bf16")
    return replace(base, activation_offload=chosen, recompute=modes[:1])


@pytest.mark.parametrize(
    ("copied", "window", "late"),
    [(1e9, 1.0, 0.0), (1e9, 0.0, 1.0), (1e9, 0.25, 0.75), (0.0, 0.0, 0.0)],
)
def test_only_what_exceeds_the_compute_is_exposed(
    copied: float, window: float, late: float
) -> None:
    """1 GB at 1 GB/s beside `window` seconds; the bytes' share of the HBM's time comes on top."""
    model = CostModel(make_job())
    links = model.link_inputs._replace(host_bytes_per_s=1e9)
    stolen = copied / model.gpu_inputs.hbm_bytes_per_s
    found = exposed_copies(copied, window, model.gpu_inputs, network(links))
    assert found == pytest.approx(late + stolen)


def with_host_link(job: Job, rate: float) -> CostModel:
    usual = CostModel(job).link_inputs.host_bytes_per_s
    return CostModel(job, {"host_bytes_per_s": rate / usual})


def test_each_layer_copies_what_leaves_and_what_is_doubled() -> None:
    """The rate at which nothing hides is the one at which the copies take all of the time."""
    job = job_with("core_attn,attn_proj,expert_fc1,moe_act")
    slow = 1e3
    model = with_host_link(job, slow)
    costs = cost(model, **DEGREES)[0].piece_costs(0)[0]
    copied = costs[f.PIECE_OFFLOADED] + costs[f.PIECE_DUPLICATED]
    assert costs[f.PIECE_FORWARD_OFFLOAD] == pytest.approx(copied / slow, rel=1e-4)
    assert costs[f.PIECE_BACKWARD_OFFLOAD] == pytest.approx(copied / slow, rel=1e-4)


CHAIN = ("off", "core_attn", "core_attn,attn_proj", "core_attn,attn_proj,expert_fc1,moe_act")


def step_s(modules: str, rate: float | None) -> float:
    job = job_with(modules)
    model = CostModel(job) if rate is None else with_host_link(job, rate)
    return float(cost(model, **DEGREES)[1][f.STEP_TIME])


def test_time_grows_with_the_offload_and_falls_with_the_link() -> None:
    rates = (2e9, 2e10, 2e11, math.inf)
    table = [[step_s(modules, rate) for rate in rates] for modules in CHAIN]
    for row in table:
        assert row == sorted(row, reverse=True)
    for less, more in pairwise(table):
        assert all(one <= other for one, other in zip(less, more, strict=True))
    # A link without limit leaves the copies' share of the HBM and their launches.
    assert table[0][-1] < table[-1][-1] < 1.05 * table[0][-1]


def plan_with(modules: str) -> Plan:
    request = Request(model="mixtral-8x7b", gpus="16xH100", gbs=32, activation_offload=modules)
    degrees = Degrees(tp=2, etp=2, dp=8, zero=1, grad_acc=4)
    return evaluate(request, degrees)


def test_terms_add_up_and_name_the_copies() -> None:
    plan, plain = plan_with(CHAIN[-1]), plan_with("off")
    assert plan.time.total_s == pytest.approx(plan.step_time_s)
    assert plan.time.offload_s > 0.0
    assert plain.time.offload_s == 0.0
    note = next(text for text in plan.assumptions if text.startswith("offloaded activations"))
    rate = link_inputs(make_job(gpus="16xH100").cluster).host_bytes_per_s / 1e9
    assert f"{rate:.0f} GB/s a GPU" in note
    assert not any(text.startswith("offloaded activations") for text in plain.assumptions)
