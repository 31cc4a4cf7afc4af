"""Convert the results of a search to plans, and plans of a file back to layouts."""

from __future__ import annotations

from typing import Literal

from planner._version import __version__
from planner.job.rl.job import RlJob
from planner.job.rl.request import RlRequest
from planner.predict.configuration import Configuration
from planner.predict.cost_model import CostModel
from planner.predict.costed_plan import configured_plan
from planner.predict.memory.serving.formats import multiplies, weight_format
from planner.predict.ops.table import parameter_count
from planner.predict.rl.plan import RlLayout
from planner.predict.rl.step import RlStep
from planner.search.rl.result import RlCounts, RlPlan, RlResult, RlSummary
from planner.search.rl.sides import engine_gpu
from planner.search.rl.trainers import critic_of

Status = Literal["optimal", "feasible", "evaluated"]


def plan_of(job: RlJob, step: RlStep, status: Status, gap: float = 0.0) -> RlPlan:
    """The plan for a costed step."""
    layout, generation = step.layout, step.generation
    configuration = layout.trainer
    gpu = configuration.job.cluster.gpu.name
    return RlPlan(
        placement=layout.placement,
        staleness=layout.staleness,
        streams=layout.streams,
        trainer_leaves=layout.trainer_leaves,
        way=layout.way or step.transfer.way,
        token_limit=configuration.job.seq,
        trainer=configured_plan(configuration, CostModel(configuration.job), status, gap),
        engine=layout.engine,
        trainer_gpu=gpu,
        engine_gpu=layout.engine_gpu.name if layout.engine_gpu else gpu,
        step_s=step.step_s,
        low_s=step.low_s,
        high_s=step.high_s,
        samples=job.rollout.samples,
        tokens=job.rollout.tokens,
        gpus=layout.gpus,
        phases=step.phases,
        usable_bytes=dict(step.usable_bytes),
        fits=step.fits,
        fit_probability=step.fit_probability,
        **{
            name: getattr(generation, name)
            for name in ("steady_s", "tail_s", "running", "waves", "preempted", "room_tokens")
        },
        profile=generation.profile,
        status=status,
        gap=gap,
    )


def job_of(request: RlRequest, plan: RlPlan) -> RlJob:
    """The job of a plan, with its token limit if the search chose it."""
    if request.token_limit is None and request.batches_by_tokens:
        request = request.model_copy(update={"token_limit": plan.token_limit})
    return request.resolve()


def layout_of(request: RlRequest, plan: RlPlan) -> tuple[RlJob, RlLayout]:
    """The job and the layout of a plan from a file, for commands that cost or launch it again."""
    job = job_of(request, plan)
    configuration = Configuration.of_plan(job.trainer.on_gpus(plan.trainer_gpus), plan.trainer)
    return job, RlLayout(
        plan.placement,
        configuration,
        plan.engine,
        plan.staleness,
        critic_of(job, configuration),
        plan.trainer_leaves,
        plan.streams,
        plan.way,
        engine_gpu(job),
    )


def summary_of(job: RlJob) -> RlSummary:
    """The job in words."""
    rollout, trainer, own = job.rollout, job.trainer, job.engine_cluster
    turns = f", {rollout.turns} turns with {rollout.tool_s:g} s of a tool between"
    return RlSummary(
        model=job.policy.name,
        parameters=parameter_count(job.policy).total,
        algorithm=job.algorithm.name,
        framework=job.framework.name,
        trainer=trainer.framework.name,
        engine=_engine_text(job),
        cluster=trainer.cluster.describe(),
        engine_cluster=own.describe() if own else "",
        gpus=trainer.cluster.num_gpus + (own.num_gpus if own else 0),
        prompts=rollout.prompts,
        samples=rollout.samples,
        lengths=f"prompts {rollout.prompt.origin}; answers {rollout.response.origin}"
        + (turns if rollout.turns > 1 else ""),
        tokens=rollout.tokens,
        longest=rollout.longest,
        minibatches=job.minibatches,
        epochs=job.epochs,
        reference=job.reference,
        critic=job.critic.name if job.critic else "",
        reward=_reward_text(job),
    )


def _engine_text(job: RlJob) -> str:
    engine = job.engine
    weights = weight_format(engine.weights, "--rollout-precision")
    how = multiplies(weights, job.sampling_cluster.gpu)
    return f"{engine.name}, weights in {engine.weights}{how}, KV cache in {engine.kv}"


def _reward_text(job: RlJob) -> str:
    reward = job.reward
    if reward.model is not None:
        return reward.model.name
    return "a rule" if reward.kind == "rule" else f"{reward.seconds:g} s a step"


def one_plan(request: RlRequest, job: RlJob, step: RlStep) -> RlResult:
    """The content of a plan file for one given layout."""
    return RlResult(
        planner_version=__version__,
        request=request,
        job=summary_of(job),
        counts=RlCounts(groups=1, trainers=1, engines=1, costed=1, pairs=1, seconds=0.0),
        plans=(plan_of(job, step, "evaluated"),),
        proven=False,
        gap=0.0,
    )
