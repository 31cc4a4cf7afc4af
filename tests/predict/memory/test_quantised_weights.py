"""Quantised copies of weights beside the 16-bit ones, as Transformer Engine keeps them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost import fields as f
from planner.job.job import Job
from planner.predict.configuration import even_layout
from planner.predict.plan import Degrees
from tests.configurations import stage_accounts
from tests.cost.jobs import make_job
from tests.predict.memory.cases import Case, compiled_stages, demand_views

# Matrices of a layer of Llama 3 8B: query and output, key and value, gate, up and down.
LAYER = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336


def job_in(precision: str, framework: str = "megatron-core", gpus: str = "8xB200") -> Job:
    base = make_job("llama-3-8b", gpus, framework)
    none = base.framework.recompute_mode("none")
    return replace(base, precision=precision, seq=4096, recompute=(none,))


def case_in(
    precision: str, degrees: Degrees, framework: str = "megatron-core", gpus: str = "8xB200"
) -> Case:
    job = job_in(precision, framework, gpus)
    return Case(job, degrees, even_layout(job, degrees.pp, 1, job.recompute[0]))


@pytest.mark.parametrize(
    ("precision", "gpus", "each"),
    [
        ("fp8", "8xH100", 2.0),
        # Its tensor cores take fp8 along either axis, blocks with scales of their own do not turn.
        ("fp8", "8xB200", 1.0),
        ("mxfp8", "8xB200", 2.0625),
        ("nvfp4", "8xB200", 1.125),
    ],
)
def test_linear_layers_keep_quantised_weights_beside_the_16_bit_ones(
    precision: str, gpus: str, each: float
) -> None:
    degrees = Degrees(tp=2, pp=2, dp=2, etp=2, zero=1, grad_acc=4)
    copies = [
        compiled_stages(case_in(one, degrees, gpus=gpus))[:, f.STAGE_WEIGHTS]
        for one in ("bf16", precision)
    ]
    # Head and embedding stay in 16 bits.
    assert copies[1] - copies[0] == pytest.approx(each * 16 * LAYER / 2)


def test_they_stay_through_the_update_and_are_shown() -> None:
    degrees = Degrees(dp=8, zero=1)
    plain, quantised = (case_in(precision, degrees) for precision in ("bf16", "fp8"))
    (usual,), (more,) = (stage_accounts(one.job, degrees, one.layout) for one in (plain, quantised))
    assert more.core.rest.resting.weights - usual.core.rest.resting.weights == 32 * LAYER
    demand_views(quantised, "fp8")


@pytest.mark.parametrize(
    ("gpus", "precision", "saved"),
    [("8xH100", "fp8", 0.0), ("8xB200", "fp8", 1.0), ("8xB200", "mxfp8", -0.0625)],
)
def test_weights_that_are_quantised_themselves_take_the_place_of_16_bits(
    gpus: str, precision: str, saved: float
) -> None:
    degrees = Degrees(dp=8, zero=1)
    case = case_in(precision, degrees, gpus=gpus)
    state = case.job.framework.state.model_copy(update={"quantised_weights": True})
    framework = case.job.framework.model_copy(update={"state": state})
    quantised = replace(case, job=replace(case.job, framework=framework))
    plain = case_in("bf16", degrees, gpus=gpus)
    weights = [compiled_stages(one)[0, f.STAGE_WEIGHTS] for one in (quantised, plain)]
    assert weights[1] - weights[0] == pytest.approx(saved * 32 * LAYER)
    demand_views(quantised, precision)
