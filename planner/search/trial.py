"""One changed job, searched for its fastest plan: what every relaxation and what-if rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from constraints.numbers import IntArray
from constraints.rule import Layout
from hardware.errors import HardwareError
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.tables import Array, FrameworkInputs
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.specs import ModelSpec
from planner.predict.cost_model import Columns, CostModel
from planner.predict.ops import parameter_count
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.predict.shapes import Candidates, legal_candidates
from planner.search.costed import CostedJob, likely_limit_bytes
from planner.search.limit_results import Effort, LimitResult
from planner.search.shares import CostedShares, SharesExplorer, cost_shares

# Work for one changed job.
TRIAL_EFFORT = Effort(most_solves=16)

# Factors on numbers of the cost core, by the name of the number.
Factors = Mapping[str, float]


class TrialModel(CostModel):
    """The cost model with some numbers of GPU, links and framework multiplied."""

    def __init__(self, job: Job, factors: Factors) -> None:
        super().__init__(job)
        self._factors = factors

    def of(self, job: Job) -> TrialModel:
        """The model of another job with the same factors."""
        return TrialModel(job, self._factors)

    @cached_property
    def gpu_inputs(self) -> GpuInputs:
        """Numbers of the GPU, multiplied."""
        plain = super().gpu_inputs
        return plain._replace(**self._multiplied(plain._asdict()))

    @cached_property
    def link_inputs(self) -> LinkInputs:
        """Numbers of the links, multiplied."""
        plain = super().link_inputs
        return plain._replace(**self._multiplied(plain._asdict()))

    @cached_property
    def framework_inputs(self) -> FrameworkInputs:
        """Numbers of the framework, multiplied."""
        plain = super().framework_inputs
        return plain._replace(**self._multiplied(plain._asdict()))

    def _multiplied(self, values: Mapping[str, float]) -> dict[str, Any]:
        return {name: values[name] * by for name, by in self._factors.items() if name in values}


def cost_altered(job: Job, factors: Factors) -> CostedJob:
    """`cost_job` with factors on the hardware's numbers, without shapes that cannot fit if others
    may.

    UsageError if no shape is legal.
    """
    candidates = legal_candidates(job)
    model = TrialModel(candidates.job, factors)
    candidates = light_candidates(model, candidates) or candidates
    return CostedJob(candidates, model, model.cost_shapes(candidates.columns), 0.0)


def cost_light(
    job: Job, num_gpus: int | None = None, probability: float | None = None
) -> CostedJob | None:
    """`cost_job` without the shapes that cannot fit; None if that leaves none.

    `num_gpus`: None too if no legal shape uses so many. `probability`: with which a plan must fit
    at least; without it the limit is the memory there is. UsageError if no shape is legal.
    """
    candidates = legal_candidates(job)
    if num_gpus is not None and candidates.job.cluster.num_gpus != num_gpus:
        return None
    model = CostModel(candidates.job)
    light = light_candidates(model, candidates, probability)
    if light is None:
        return None
    return CostedJob(light, model, model.cost_shapes(light.columns), 0.0)


def light_shares(job: Job, num_gpus: int, probability: float | None = None) -> CostedShares | None:
    """`cost_light` at each choice that a job leaves open; None if none may fit.

    UsageError if no shape is legal.
    """
    found = cost_shares(job, lambda one: cost_light(one, num_gpus, probability))
    return found if found.jobs else None


def light_candidates(
    model: CostModel, candidates: Candidates, probability: float | None = None
) -> Candidates | None:
    """The shapes whose weights and optimizer state alone leave them a chance to fit."""
    limit = candidates.job.hbm_limit_bytes
    if probability is not None and limit > 0.0:
        limit = likely_limit_bytes(candidates.job, probability)
    light = least_state_bytes(model, candidates.columns) <= limit
    if not light.any():
        return None
    columns = {name: values[light] for name, values in candidates.columns.items()}
    return replace(candidates, columns=columns)


def least_state_bytes(model: CostModel, columns: Columns) -> Array:
    """Less than the heaviest stage of each shape holds in any layout, bytes.

    Weights, gradients and optimizer state, each sharded as far as its ZeRO stage can (Rajbhandari
    et al. 2020, section 5), and the context; nothing else. The
    heaviest stage holds at least the mean, and at least the experts of its share of the MoE
    layers, rounded up: layers are not divided.
    """
    count, framework_inputs = parameter_count(model.job.model), model.framework_inputs
    dense = count.total - float(count.experts)
    grid, gpus = columns["ep"] * columns["etp"], model.job.cluster.num_gpus
    state = framework_inputs.master_bytes + framework_inputs.optimizer_bytes
    kept = np.where(
        columns["zero"] < 2, framework_inputs.weight_bytes + framework_inputs.gradient_bytes, 0.0
    )

    def held(dense: Array | float, experts: Array) -> Array:
        rank = dense / columns["tp"] + experts / grid
        shard = (dense + experts) * columns["pp"] / gpus
        shard = np.where(columns["zero"] == 0, rank, shard)
        return np.asarray(kept * rank + state * shard)

    mean = held(dense / columns["pp"], count.experts / columns["pp"])
    live = np.maximum(mean, held(0.0, _most_experts(model.job.model, columns["pp"])))
    return np.asarray(live + framework_inputs.context_bytes)


def _most_experts(model: ModelSpec, pp: IntArray) -> Array:
    """Expert parameters that some stage holds at least: of whole layers."""
    layers = sum(kind.ffn == "moe" for kind in model.kind_sequence)
    each = parameter_count(model).experts / max(1, layers + model.mtp_layers)
    return np.asarray(each * np.ceil(layers / pp))


@dataclass(frozen=True)
class Trial:
    """The search of one job at its memory limit. `limit_result.point` is None if nothing fits."""

    shares: CostedShares
    explorer: SharesExplorer
    limit_result: LimitResult

    @property
    def used_gpus(self) -> int:
        """GPUs of the plan; fewer than were given where no configuration uses all."""
        return self.shares.job.cluster.num_gpus

    @property
    def proven(self) -> bool:
        """Whether the outcome is proven, be it a plan or that there is none."""
        if self.limit_result.point is None:
            return bool(np.isinf(self.limit_result.bound))
        return self.limit_result.gap <= OPTIMAL_WITHIN

    def plan(self) -> Plan | None:
        """The fastest plan found."""
        point = self.limit_result.point
        return None if point is None else self.shares.plan(point, self.limit_result.gap)


def search_costed(
    shares: CostedShares,
    *,
    probability: float | None = None,
    limit_bytes: float | None = None,
    effort: Effort = TRIAL_EFFORT,
    known: Sequence[tuple[int, int, Layout]] = (),
) -> Trial:
    """The fastest plan of a job that fits with at least `probability` (as the job asks), over its
    costed shares.

    `limit_bytes`: a tighter limit on the predicted peak. `known`: (index into `shares.jobs`, row,
    layout) to beat.
    """
    explorer = shares.explorer(effort, None, probability, limit_bytes)
    for one_explorer in explorer.explorers:
        # Only the first rung is climbed: no bounds are needed below it.
        one_explorer.limits = one_explorer.limits[:1]
    for source, row, layout in known:
        one_explorer = explorer.explorers[source]
        one_explorer.solved.append(one_explorer.cost(row, layout))
    return Trial(shares, explorer, explorer.climb(0))


def try_job(job: Job, probability: float | None = None) -> Trial | None:
    """Search a changed job; None if nothing is legal there."""
    try:
        return search_costed(cost_shares(job), probability=probability)
    except (UsageError, HardwareError):
        return None
