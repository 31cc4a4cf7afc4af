"""Costs of measured runs by the planner's own model: of a step, or of the part of it that was
run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from planner.evidence.rl.mapping import RlMapped
from planner.job.rl.job import RlJob
from planner.predict.ops.table import parameter_count
from planner.predict.rl.errors import with_bar
from planner.predict.rl.moves import transfer, usual_way
from planner.predict.rl.plan import Phase, PhaseName, RlLayout, Side, Training
from planner.predict.rl.step import RlStep, rl_step
from planner.predict.rl.training import train

_SIDES: tuple[Side, Side] = ("trainer", "engine")


@dataclass(frozen=True, slots=True)
class Costed:
    """The predicted costs of a run. `phases`: those of trainer and engine, in order. `step_s`:
    seconds of a step; None if only a part of a step was run. `fits`: whether it fits in memory.
    `usable_bytes`: of one GPU. `binding`: the phases whose times add up to the step."""

    phases: tuple[Phase, ...]
    step_s: float | None
    fits: bool
    usable_bytes: float
    binding: tuple[Phase, ...] = ()

    def seconds(self, names: Iterable[PhaseName]) -> float:
        """Seconds of phases together. The transfer of weights, which both sides list, counts
        once."""
        wanted = set(names)
        by_name: dict[tuple[str, int], Phase] = {}
        for at, phase in enumerate(self.phases):
            key = (phase.name, 0 if phase.name == "transfer" else at)
            by_name.setdefault(key, phase)
        return math.fsum(one.seconds for one in by_name.values() if one.name in wanted)


def cost_run(mapped: RlMapped) -> Costed:
    """The costs of a run. UsageError or CannotTellError if they cannot be computed."""
    if mapped.row.is_transfer_alone:
        return _transfer_alone(mapped)
    if mapped.row.is_trainer_alone:
        training = train(mapped.job, mapped.layout.trainer, mapped.layout.critic)
        return _trainer_alone(mapped, training)
    return cost_layout(mapped.job, mapped.layout)


def cost_layout(job: RlJob, layout: RlLayout) -> Costed:
    """The costs of a step of a job in a layout."""
    return costed_step(rl_step(job, layout))


def costed_step(step: RlStep) -> Costed:
    """The costs of a predicted step."""
    usable = min(step.usable_bytes.values())
    return Costed(step.phases, step.step_s, step.fits, usable, _binding(step, step.layout))


def _binding(step: RlStep, layout: RlLayout) -> tuple[Phase, ...]:
    """The phases that add up to the step: all of them, or those of the slower side."""
    if layout.placement == "colocated" or layout.staleness == 0:
        return tuple(step.phases)
    slower = max(_SIDES, key=step.seconds)
    return tuple(step.of(slower))


def _transfer_alone(mapped: RlMapped) -> Costed:
    job, layout = mapped.job, mapped.layout
    way = layout.way or usual_way(job, colocated=layout.placement == "colocated")
    # The trainer shards or splits all of the policy's weights.
    shard_bytes = 2.0 * parameter_count(job.policy).total / layout.trainer_gpus
    moved = transfer(job, layout.engine, way, shard_bytes)
    phase = with_bar(Phase("transfer", "trainer", moved.seconds, moved.terms, {}), job)
    return Costed((phase,), None, True, layout.trainer.job.cluster.gpu.hbm_usable_bytes)


def _trainer_alone(mapped: RlMapped, training: Training) -> Costed:
    """The costs of the trainer's update without any sampling: only the trainer's memory is on its
    GPUs. Passes for old log-probabilities and values are left out."""
    phases = tuple(
        with_bar(one, mapped.job)
        for one in training.phases
        if one.name not in ("old_logprobs", "values")
    )
    usable = mapped.layout.trainer.job.cluster.gpu.hbm_usable_bytes
    fits = all(one.peak_bytes <= usable for one in phases)
    return Costed(phases, None, fits, usable, phases)
