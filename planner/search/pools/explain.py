"""Why a plan on GPUs of several types is what it is: without neighbours, with its placement."""

from __future__ import annotations

from itertools import groupby

from planner.predict.assumed_hardware import hardware_assumptions
from planner.predict.plan import Plan
from planner.search.explanation import Explanation, StagePlace, explain
from planner.search.pools.jobs import pool_jobs
from planner.search.result import SearchResult


def explain_pool(result: SearchResult, number: int) -> Explanation:
    """`planner.search.explanation.explain` for plan `number` (from 1) of a search of several types
    of GPUs.

    UsageError if there is no such plan.
    """
    _, jobs = pool_jobs(result.request)
    explanation = explain(result, number, jobs[0])
    facts = dict.fromkeys(
        hardware_assumption for job in jobs for hardware_assumption in hardware_assumptions(job)
    )
    common = tuple(assumption for assumption in explanation.assumptions if assumption not in facts)
    return explanation.model_copy(
        update={"places": places(explanation.plan), "assumptions": (*common, *facts)}
    )


def places(plan: Plan) -> tuple[StagePlace, ...]:
    """Which stages and ranks live on which GPUs.

    The pipeline is the outermost of the ranks' axes in every framework here that has one, so a
    stage takes tp·cp·dp ranks in a row.
    """
    each = plan.degrees.gpus // plan.degrees.pp
    found = []
    for gpu, members in groupby(range(plan.degrees.pp), key=lambda index: plan.stage_gpus[index]):
        stages = tuple(members)
        ranks = (stages[0] * each, (stages[-1] + 1) * each - 1)
        layers = sum(plan.stages[stage].layers for stage in stages)
        found.append(StagePlace(gpu=gpu, stages=stages, ranks=ranks, layers=layers))
    return tuple(found)
