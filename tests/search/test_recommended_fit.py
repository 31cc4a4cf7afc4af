"""What the search recommends does not sit on the edge of memory.

Half of the best plans of an analytical model that leaves out embeddings, logits, NCCL buffers
and the CUDA context lie within 1.6 GiB of an 80 GiB card (Calculon, Isaev et al., SC23, rerun):
they would run out. Here every recommended plan fits with a probability, and holds those terms.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from planner.cost.piece_memory import table_parameters
from planner.job.request import Request
from planner.predict.configuration import Configuration, decided_request
from planner.predict.cost_model import CostModel
from planner.predict.cost_tables import context_inputs
from planner.predict.costed_plan import configured_plan
from planner.predict.ops.context import OpContext
from planner.predict.plan import Plan
from planner.predict.saved import rank_key
from planner.search.search import find_plans

# Models from 1 to 175 B parameters on as few GPUs as hold them, of several frameworks.
JOBS = {
    "1b on 2 L40S": Request(model="llama-3.2-1b", gpus="2xL40S", gbs_tokens=250_000),
    "gpt2-xl on 4 L40S": Request(model="gpt2-xl", gpus="4xL40S", gbs_tokens=250_000),
    "8b on 8 L40S": Request(model="qwen3-8b", gpus="8xL40S", gbs_tokens=250_000),
    "8b on 8 H100": Request(model="8b", gpus="8xH100", gbs_tokens=1_000_000),
    "7b FSDP2 on 8 A100": Request(
        model="llama-7b",
        gpus="8xA100-80GB",
        gbs_tokens=500_000,
        framework="torchtitan",
        limits={"tp": (1, 2), "pp": (1,), "cp": (1,)},
    ),
    "mixtral on 32 H100": Request(
        model="mixtral-8x7b",
        gpus="32xH100",
        gbs_tokens=1_000_000,
        limits={"tp": (1, 2, 4), "mbs": (1,)},
    ),
    "175b on 128 A100": Request(
        model="gpt3-175b",
        gpus="128xA100-80GB",
        gbs_tokens=1_000_000,
        limits={"tp": (4, 8), "cp": (1,)},
    ),
}
each_job = pytest.mark.parametrize("name", JOBS)


@cache
def recommended(name: str) -> tuple[Plan, ...]:
    found = find_plans(JOBS[name])
    return tuple(found.plans[number - 1] for number in found.shown)


def with_vocabulary(name: str, plan: Plan, vocab: int) -> Plan:
    """The same configuration of a model with another vocabulary."""
    job = decided_request(JOBS[name], plan).resolve()
    model = job.model.model_copy(update={"vocab": vocab})
    configuration = Configuration.of_plan(replace(job, model=model), plan)
    return configured_plan(configuration, CostModel(configuration.job), "evaluated")


@each_job
def test_recommended_plans_are_likely_to_fit(name: str) -> None:
    plans = recommended(name)
    assert plans
    for plan in plans:
        assert plan.fit_probability >= 0.8
        assert plan.peak_bytes == max(stage.peak for stage in plan.stages) < plan.limit_bytes


@each_job
def test_recommended_plans_hold_context_and_buffers(name: str) -> None:
    """On every stage; what torch does not see is on top of what it allocates."""
    for plan in recommended(name):
        for stage in plan.stages:
            assert stage.context > 2**28
            assert stage.communication > 0
            assert stage.peak >= stage.allocated + stage.context + stage.communication


@each_job
def test_recommended_plans_hold_embeddings_and_logits(name: str) -> None:
    """Against the same plan with next to no vocabulary: the first stage holds the rows of the
    embedding, the last one at least 4 bytes a logit."""
    job = JOBS[name].resolve()
    context = OpContext(job.model, job.framework, job.seq)
    for plan in recommended(name):
        degrees = plan.degrees
        bare = 128 * degrees.tp
        table = degrees.tp * table_parameters(rank_key(tp=degrees.tp), context_inputs(context))
        rows = table / job.model.hidden - bare
        without = with_vocabulary(name, plan, bare)
        first, last = (plan.stages[end].peak - without.stages[end].peak for end in (0, -1))
        shards = degrees.dp * degrees.cp if degrees.zero == 3 else 1
        # FSDP2 keeps fp32 shards and gathers the embedding in 16 bits.
        embedding = 2 * rows * job.model.hidden / degrees.tp
        assert first >= embedding / shards
        logits = 4 * rows * degrees.mbs * job.seq / (degrees.tp * degrees.cp)
        # Not all of it: without a vocabulary another phase of the last stage is the heaviest.
        assert last >= max(0.3 * logits, embedding / shards)
