"""Copies of the vocabulary table that multi-token prediction and tied heads hold on a pipeline.

Megatron-Core builds an embedding on the stage with multi-token prediction (core 0.19.2,
models/gpt/gpt_model.py).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost import fields as f
from planner.job.job import Job
from planner.job.optimizers import load_optimizer
from planner.predict.configuration import even_layout
from planner.predict.cost_model import CostModel
from planner.predict.memory.account import StageAccount
from planner.predict.plan import Degrees
from tests.configurations import stage_accounts
from tests.cost.jobs import cost, make_job, with_table
from tests.predict.memory.cases import Case, demand_views

# 129,280 rows, a multiple of 128·tp up to tp 2, of 7,168 parameters: DeepSeek-V3.
TABLE = 129_280 * 7_168
PIPELINE = Degrees(tp=2, pp=4, ep=8, dp=8, zero=1, grad_acc=8)
NO_COPY = {"mtp_copies_embedding": False}


def deepseek(framework: str = "megatron-core", **changes: object) -> Job:
    """A job without recomputation; `changes` to the model."""
    job = make_job("deepseek-v3", "512xH100", framework)
    model = job.model.model_copy(update=changes)
    return replace(job, model=model, recompute=(job.framework.recompute_mode("none"),), seq=1024)


def accounts(job: Job, degrees: Degrees = PIPELINE) -> tuple[StageAccount, ...]:
    return stage_accounts(job, degrees, even_layout(job, degrees.pp, degrees.vpp))


def between_steps(stage_account: StageAccount) -> dict[str, float]:
    return dict(stage_account.later_steps[0].terms)


def added(one: Job, other: Job, degrees: Degrees = PIPELINE) -> list[dict[str, float]]:
    """What the stages of one job hold beyond those of another between steps."""
    return [
        {name: size - before[name] for name, size in after.items() if size != before[name]}
        for before, after in zip(
            map(between_steps, accounts(other, degrees)),
            map(between_steps, accounts(one, degrees)),
            strict=True,
        )
    ]


def test_the_last_stage_trains_a_copy() -> None:
    """bf16 weights, fp32 gradients, and 12 bytes over the 8 ranks of the distributed optimizer."""
    job = deepseek()
    *before, last = added(job, with_table(job, "parallelism", **NO_COPY))
    assert before == [{}, {}, {}]
    share = TABLE / 2
    assert last == pytest.approx(
        {
            "weights": 2 * share,
            "gradients": 4 * share,
            "master weights": 4 * share / 8,
            "optimizer state": 8 * share / 8,
        }
    )


def test_a_tied_copy_serves_both() -> None:
    """One table on the last stage, for the head's product and for the lookup."""
    job = deepseek(tied_embeddings=True)
    assert added(job, with_table(job, "parallelism", **NO_COPY)) == [{}] * 4


def test_one_stage_shares_the_table() -> None:
    job = deepseek()
    alone = Degrees(ep=8, dp=8, zero=1, grad_acc=8)
    assert added(job, with_table(job, "parallelism", **NO_COPY), alone) == [{}]


def test_two_copies_of_the_model_share_it_too() -> None:
    """DualPipe puts embedding and head on the same ranks: DeepSeek-V3, arXiv 2412.19437, 3.2.3."""
    job = replace(deepseek("hai-llm"), schedule="dualpipe")
    assert job.framework.parallelism.mtp_copies_embedding
    assert added(job, with_table(job, "parallelism", **NO_COPY)) == [{}] * 4


def test_frameworks_that_do_not() -> None:
    job = deepseek("deepspeed")
    assert not job.framework.parallelism.mtp_copies_embedding
    assert not deepseek("torchtitan").framework.parallelism.mtp_copies_embedding
    assert deepseek("primus").framework.parallelism.mtp_copies_embedding


def test_parameters_of_the_model_stay() -> None:
    """A copy is no parameter more: FLOP and count come from the op table."""
    job = deepseek()
    _, found = cost(CostModel(job), pp=4, tp=2, ep=8, dp=8, zero=1, grad_acc=8)
    _, bare = cost(
        CostModel(with_table(job, "parallelism", **NO_COPY)),
        pp=4,
        tp=2,
        ep=8,
        dp=8,
        zero=1,
        grad_acc=8,
    )
    assert found[f.STEP_COMPUTE] == bare[f.STEP_COMPUTE]
    assert found[f.STEP_OPTIMIZER] >= bare[f.STEP_OPTIMIZER]


def test_its_gradient_crosses_the_pipeline() -> None:
    """All fp32 gradients of the table's half leave by one NIC, at 50 GB/s at most."""
    job = deepseek()
    shape = {"pp": 4, "tp": 2, "ep": 8, "dp": 64, "zero": 1, "grad_acc": 8}
    _, found = cost(CostModel(job), **shape)
    _, bare = cost(CostModel(with_table(job, "parallelism", **NO_COPY)), **shape)
    least_s = 4 * TABLE / 2 / 50e9
    assert least_s < found[f.STEP_PP] - bare[f.STEP_PP] < 1.5 * least_s


CASES = [
    (modules, tied, pp, vpp, optimizer)
    for modules, tied in ((1, False), (2, False), (1, True), (2, True))
    for pp, vpp, optimizer in ((1, 1, "adamw"), (2, 1, "muon"), (4, 2, "lion"))
]


@pytest.mark.parametrize(("modules", "tied", "pp", "vpp", "optimizer"), CASES)
def test_views_show_it(modules: int, tied: bool, pp: int, vpp: int, optimizer: str) -> None:
    """With other optimizers, too, whose state is not the same for every parameter."""
    job = deepseek(mtp_layers=modules, tied_embeddings=tied)
    job = replace(job, optimizer=load_optimizer(optimizer))
    degrees = Degrees(pp=pp, vpp=vpp, ep=8, dp=8, zero=1, grad_acc=8)
    demand_views(Case(job, degrees, even_layout(job, pp, vpp)), str(degrees))


def test_tied_ends_pay_for_their_exchange_too() -> None:
    """GPT-2's table of 50,304 padded rows: one exchange a step, whatever the micro-batches."""
    job = make_job("gpt2", "16xH100")
    untied = replace(job, model=job.model.model_copy(update={"tied_embeddings": False}))
    more = [
        cost(CostModel(job), pp=2, dp=8, grad_acc=count)[1][f.STEP_PP]
        - cost(CostModel(untied), pp=2, dp=8, grad_acc=count)[1][f.STEP_PP]
        for count in (2, 8)
    ]
    assert more[0] == pytest.approx(more[1])
    assert more[0] > 4 * 50_304 * 768 / 50e9
