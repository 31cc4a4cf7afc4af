"""Check and cost one given way to run reinforcement learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from constraints.axes import AXES
from planner.job.errors import UsageError, unknown_name
from planner.job.job import Job
from planner.job.rl.checks import demand_behind
from planner.job.rl.job import RlJob
from planner.job.rl.request import RlRequest
from planner.job.rl.spec import Placement
from planner.predict.configuration import Configuration
from planner.predict.evaluate import Proposal, usual_zero
from planner.predict.plan import Degrees
from planner.predict.rl.plan import EngineLayout, RlLayout
from planner.predict.rl.step import RlStep
from planner.search.rl.costs import Costs
from planner.search.rl.engines import EngineLimits, demand_engine, demand_formats
from planner.search.rl.explorer import RlExplorer
from planner.search.rl.sides import engine_gpu, ways_of
from planner.search.rl.trainers import critic_of, demand_group, with_any_batch

# Steps in which a sufficient share of memory is sought.
_SHARES = tuple(share / 20 for share in range(1, 20))


@dataclass(frozen=True)
class GivenLayout:
    """A layout that a user proposes.

    `trainer`: degrees by axis; None if it follows from the others. `layers`: recompute mode, layers
    of each block, recomputing layers, and standalone multi-token prediction, as in `Proposal`.
    """

    trainer: Mapping[str, int | None]
    engine: EngineLimits
    layers: tuple[Any, ...] = ("none",)
    trainer_leaves: bool = False


def evaluated_layout(
    request: RlRequest, given: GivenLayout, costs: Costs | None = None
) -> tuple[RlJob, RlStep]:
    """The job, and the step of a given layout. UsageError names what is impossible."""
    job = request.resolve()
    demand_formats(job)
    if len(job.staleness) > 1:
        raise UsageError(
            f"--staleness {request.staleness}: one layout is costed, so give a number of updates, "
            "for example --staleness 1; planner search tries several"
        )
    placement = job.placements[0]
    trainer_gpus, engine_gpus = _gpus(job, placement)
    demand_behind(replace(job, placements=(placement,)))
    trainer = _trainer(request, job, given, trainer_gpus)
    layout = RlLayout(
        placement,
        trainer,
        _engine(job, given.engine, placement, engine_gpus),
        min(job.staleness),
        critic_of(job, trainer),
        given.trainer_leaves and placement == "colocated",
        placement == "separate" and min(job.staleness) > 0 and job.partial_rollouts,
        given_way(job, placement, given.engine.way),
        engine_gpu(job),
    )
    asked = costs or Costs()
    step = asked.step(job, layout, asked.train(job, trainer, layout.critic))
    if not asked.generate(job, layout.engine, 0.0, layout.engine_gpu).fits:
        said = job.engine.kv_share is not None
        raise UsageError(no_room(job, layout.engine, asked, placement, given=said))
    return job, step


def _gpus(job: RlJob, placement: Placement) -> tuple[int, int]:
    """Numbers of GPUs that train and that sample."""
    total = job.trainer.cluster.num_gpus
    if placement == "colocated":
        return total, total
    if job.engine_cluster is not None:
        return total, job.engine_cluster.num_gpus
    if job.engine_gpus is None:
        raise UsageError(
            "--placement separate: say how many of the GPUs sample, for example --rollout-gpus "
            f"{max(1, total // 2)}"
        )
    return total - job.engine_gpus, job.engine_gpus


def _trainer(request: RlRequest, job: RlJob, given: GivenLayout, gpus: int) -> Configuration:
    """The trainer's configuration on this many GPUs. UsageError names every rule that it breaks."""
    part = with_any_batch(job.trainer.on_gpus(gpus))
    said = {name: value for name, value in given.trainer.items() if value is not None}
    tp, pp, cp = (said.get(name, 1) for name in ("tp", "pp", "cp"))
    dp = said.get("dp") or max(1, gpus // (tp * pp * cp))
    if tp * pp * cp * dp != gpus:
        raise UsageError(
            f"tp·pp·cp·dp = {tp}·{pp}·{cp}·{dp} is not the {gpus:,} GPUs that train; give other "
            "degrees, or other numbers of GPUs"
        )
    demand_group(job, dp, gpus)
    said["dp"] = dp
    said["etp"] = said.get("etp") or _expert_tensor(part, said)
    said["zero"] = said.get("zero", usual_zero(part, dp * cp, tp))
    said["grad_acc"] = _micro_batches(part, said, dp)
    chosen = Degrees(**{name: said.get(name, axis.least) for name, axis in AXES.items()})
    proposal = Proposal(request.trainer, chosen, *given.layers)
    return proposal.of(part)


def _expert_tensor(job: Job, said: Mapping[str, int]) -> int:
    experts = job.model.moe is not None
    return job.framework.usual_etp(experts=experts, tp=said.get("tp", 1), ep=said.get("ep", 1))


def _micro_batches(job: Job, said: Mapping[str, int], dp: int) -> int:
    """A number of micro-batches per mini-batch that the schedule accepts. For packed samples the
    real number follows from their tokens."""
    count = max(1, round(job.batch.sequences / (dp * said.get("mbs", 1))))
    pp = said.get("pp", 1)
    return -(-count // pp) * pp if said.get("vpp", 1) > 1 else count


def _engine(job: RlJob, said: EngineLimits, placement: Placement, gpus: int) -> EngineLayout:
    """The engines on this many GPUs. Raises UsageError."""
    tp, pp, dp = said.tp or 1, said.pp or 1, said.dp or 1
    size = tp * pp * dp
    if gpus % size:
        raise UsageError(
            f"engines of {size} GPUs (tp·pp·dp = {tp}·{pp}·{dp}) do not fill the {gpus:,} GPUs "
            f"that sample; give --rollout-tp {_divisor(gpus, tp)}"
        )
    share = job.engine.kv_share or getattr(job.framework, f"kv_share_{placement}")
    engines, given = gpus // size, job.engine.sequences
    usual = given in (None, job.framework.sequences)
    sequences = job.usual_sequences(placement, engines) if given is None or usual else given
    layout = EngineLayout(engines, tp, pp, said.ep or 1, dp, share, sequences)
    demand_engine(job, layout)
    return layout


def _divisor(number: int, given: int) -> int:
    return max(one for one in range(1, given + 1) if number % one == 0)


def given_way(job: RlJob, placement: Placement, way: str) -> str:
    """Check that the framework can send new weights this way in the placement. Raises
    UsageError."""
    known = ways_of(job, placement)
    if way and way not in known:
        hint = f"{job.framework.name} has {', '.join(known)} if the sides are {placement}"
        raise unknown_name("--rollout-way", way, known, hint)
    return way


def no_room(
    job: RlJob, engine: EngineLayout, costs: Costs, placement: Placement, *, given: bool
) -> str:
    """Message that an engine has no room for one sample, with the memory share or degree that would
    give it room. `given`: whether the user set the share."""
    whose = "" if given else f", the default of {job.framework.name} if the sides are {placement}"
    said = (
        f"--kv-share {engine.kv_share:g}{whose}: an engine at tp {engine.tp} has no room for one "
        f"sample of {job.rollout.longest:,} tokens in addition to its weights"
    )
    for share in (one for one in _SHARES if one > engine.kv_share):
        larger = replace(engine, kv_share=share)
        if costs.generate(job, larger, 0.0, engine_gpu(job)).fits:
            return f"{said}; give --kv-share {share:g} or more"
    return f"{said}, nor at a larger share; give --rollout-tp {2 * engine.tp}"


def demand_room(explorer: RlExplorer) -> None:
    """Raise UsageError if the given memory share leaves no engine room for one sample."""
    job = explorer.jobs[0]
    if job.engine.kv_share is None or not explorer.no_engine_fits:
        return
    options = explorer.options[0]
    widest = max(options.layouts, key=lambda layout: layout.tp * layout.pp)
    raise UsageError(no_room(job, widest, explorer.costs, options.group.placement, given=True))
