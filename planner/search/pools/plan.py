"""Plans for GPUs of several types: the same document, with the GPU of each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, hypot, log
from typing import TYPE_CHECKING

import numpy as np

from planner.cost import fields as f
from planner.cost.tables import Array
from planner.job.job import Job
from planner.predict.assumptions import plan_assumptions, unmeasured_notes
from planner.predict.configuration import Configuration
from planner.predict.costed_plan import CostedPlan, Outlook, assemble_plan, recomputed_share
from planner.predict.device import half_precision
from planner.predict.plan import Degrees, Interval, Plan
from planner.predict.uncertainty.intervals import (
    fit_probability,
    peak_interval,
    plan_conditions,
    step_time_interval,
)
from planner.search.pools.cost import CostedPool, PoolModel

if TYPE_CHECKING:
    from constraints.numbers import IntArray
    from planner.predict.cost_model import KernelLayout
    from planner.search.pools.explorer import PoolPoint

# Added to the step time's spread: no run on GPUs of several types has been measured. Assumed.
POOL_SPREAD = 0.10
_NOT_MEASURED = (
    "no run on GPUs of several types was measured: the interval is the widest of any of its "
    "GPUs', and wider"
)


def pool_plan(
    model: PoolModel,
    costed: CostedPool,
    columns: Mapping[str, IntArray],
    point: PoolPoint,
    counts: KernelLayout,
    gap: float,
    tie: float,
) -> Plan:
    """The plan of one layout, costed by the kernel. MFU is against all GPUs' peaks together."""
    row, job = point.row, model.jobs[0]
    jobs = [model.jobs[part] for part in point.parts]
    gpus = [one.cluster.gpu for one in jobs]
    configuration = Configuration.of_row(job, columns, row, point.layout)
    degrees = configuration.degrees
    step, stages = model.cost_layout(costed, row, counts, point.parts)
    heaviest = jobs[int(step[f.STEP_PEAK_STAGE])]
    probability = _all_fit(jobs, stages)
    interval = pool_interval(jobs, degrees, step)
    peaks = zip(stages[:, f.STAGE_PEAK], jobs, strict=True)
    return assemble_plan(
        CostedPlan(
            configuration, step, stages, costed.parts[0].exchange(row),
            recomputed_share(costed.parts[0].piece_costs(row), counts),
            "optimal" if gap <= tie else "feasible", gap,
        ),
        Outlook(
            step_time=interval,
            peak_interval=peak_interval(heaviest, float(step[f.STEP_PEAK_BYTES])),
            peak_flop_per_s=float(np.mean([gpu.peak(half_precision(gpu)) for gpu in gpus])),
            precision_flop_per_s=float(np.mean([gpu.peak(job.precision) for gpu in gpus])),
            usable_bytes=heaviest.cluster.gpu.hbm_usable_bytes,
            limit_bytes=heaviest.hbm_limit_bytes,
            fits=all(peak <= one.hbm_limit_bytes for peak, one in peaks),
            fit_probability=probability,
            assumptions=(
                *plan_assumptions(job, degrees), *unmeasured_notes(interval), _NOT_MEASURED
            ),
            stage_gpus=tuple(gpu.name for gpu in gpus),
        ),
    )  # fmt: skip


def _all_fit(jobs: Sequence[Job], stages: Array) -> float:
    """Probability that the stage with the least room fits."""
    return min(
        fit_probability(job, float(rows[f.STAGE_PEAK]), job.hbm_limit_bytes)
        for job, rows in zip(jobs, stages, strict=True)
    )


def pool_interval(jobs: Sequence[Job], degrees: Degrees, step: Array) -> Interval:
    """The widest interval of any stage's GPU, widened by `POOL_SPREAD`; `step`: STEP_* vector."""
    step_time_s = float(step[f.STEP_TIME])
    each = [
        step_time_interval(job, step_time_s, at=plan_conditions(job, degrees, step)) for job in jobs
    ]
    widest = max(each, key=lambda item: item.high / item.low)
    below = hypot(log(step_time_s / min(item.low for item in each)), POOL_SPREAD)
    above = hypot(log(max(item.high for item in each) / step_time_s), POOL_SPREAD)
    return Interval(
        low=step_time_s * exp(-below),
        high=step_time_s * exp(above),
        family=f"{widest.family}, widened: no mixed pool was measured",
        beyond=widest.beyond,
    )
