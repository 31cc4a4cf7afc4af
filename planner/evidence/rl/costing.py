"""Costs of measured runs by the planner's own model: of a step, or of the part that was run."""

from __future__ import annotations

from typing import Any

from planner.evidence.rl.costed import Costed
from planner.evidence.rl.mapping import RlMapped
from planner.predict.rl.generation import generate
from planner.predict.rl.moves import transfer, usual_way
from planner.predict.rl.plan import Phase, RlLayout, Training
from planner.predict.rl.step import beside_engine, compose
from planner.predict.rl.training import train


def cost_run(mapped: RlMapped) -> Costed:
    """What a run costs. UsageError or CannotTellError for what cannot be costed."""
    if mapped.row.is_transfer_alone:
        return _transfer_alone(mapped)
    training = train(mapped.job, mapped.layout.trainer, mapped.layout.critic)
    if mapped.row.is_trainer_alone:
        return _trainer_alone(mapped, training)
    layout = mapped.layout
    beside = sum(beside_engine(layout, training).values())
    generation = generate(mapped.job, layout.engine, beside, layout.engine_gpu)
    step = compose(mapped.job, layout, training, generation)
    usable = min(step.usable_bytes.values())
    return Costed(step.phases, step.step_s, step.fits, usable, _binding(step, layout))


def _binding(step: Any, layout: RlLayout) -> tuple[Phase, ...]:
    """The phases whose sum the step is: all of them, or those of the slower side."""
    if layout.placement == "colocated" or layout.staleness == 0:
        return tuple(step.phases)
    slower = max(("trainer", "engine"), key=step.seconds)
    return tuple(step.of(slower))


def _transfer_alone(mapped: RlMapped) -> Costed:
    job, layout = mapped.job, mapped.layout
    way = layout.way or usual_way(job, colocated=layout.placement == "colocated")
    moved = transfer(job, layout.engine, way, _shard_bytes(mapped))
    phase = Phase("transfer", "trainer", moved.seconds, moved.terms, {})
    return Costed((phase,), None, True, layout.trainer.job.cluster.gpu.hbm_usable_bytes)


def _shard_bytes(mapped: RlMapped) -> float:
    """Weights of the policy on one GPU of a trainer that shards or splits all of them."""
    from planner.predict.ops.table import parameter_count

    return 2.0 * parameter_count(mapped.job.policy).total / mapped.layout.trainer_gpus


def _trainer_alone(mapped: RlMapped, training: Training) -> Costed:
    """The update by itself, with the models beside it, on GPUs that nothing else is on."""
    phases = tuple(one for one in training.phases if one.name not in ("old_logprobs", "values"))
    usable = mapped.layout.trainer.job.cluster.gpu.hbm_usable_bytes
    fits = all(one.peak_bytes <= usable for one in phases)
    return Costed(phases, None, fits, usable, phases)
