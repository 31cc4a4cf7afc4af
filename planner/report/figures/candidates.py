"""Every legal shape of a search in its even layout: the dots behind the front."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost import fields as f
from planner.job.errors import UsageError
from planner.job.pool import is_pool
from planner.job.quantities import GIB
from planner.predict.plan import Degrees
from planner.predict.plan_text import batch_text, degrees_text
from planner.search.costed import CostedJob, cost_job
from planner.search.result import SearchResult

# Cells over which dots are spread; the fastest shape of a cell is drawn.
_CELLS = 60
# Shapes beyond these shares of the best plan's speed and of the limit are off the picture.
_SLOWEST, _HEAVIEST = 0.3, 1.6


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shape that was considered: peak of a GPU, tokens/s of a GPU, degrees."""

    gib: float
    tokens_per_s: float
    text: str


def candidates(result: SearchResult) -> tuple[Candidate, ...]:
    """Shapes near the front, at most one for each of `_CELLS`² cells; none for GPUs of several
    types. UsageError if the job cannot be resolved any more."""
    if is_pool(result.request.gpus) or not result.plans:
        return ()
    costed = cost_job(result.request.resolve().decided()[0])
    fastest = max(plan.tokens_per_s_per_gpu for plan in result.plans)
    return _thinned(costed, fastest)


def _thinned(costed: CostedJob, fastest: float) -> tuple[Candidate, ...]:
    job, columns, steps = costed.job, costed.candidates.columns, costed.costed.steps
    speed = columns["gbs"] * job.seq / steps[:, f.STEP_TIME] / job.cluster.num_gpus
    size = steps[:, f.STEP_PEAK_BYTES] / GIB
    limit = job.hbm_limit_bytes / GIB
    near = np.flatnonzero((speed > _SLOWEST * fastest) & (size < _HEAVIEST * limit))
    order = near[np.argsort(-speed[near], kind="stable")]
    cells = np.stack((size[order] / limit, speed[order] / fastest), axis=1)
    _, first = np.unique((cells * _CELLS).astype(np.int64), axis=0, return_index=True)
    return tuple(
        Candidate(float(size[row]), float(speed[row]), _shape_text(costed, row))
        for row in order[np.sort(first)].tolist()
    )


def _shape_text(costed: CostedJob, row: int) -> str:
    columns = costed.candidates.columns
    degrees = Degrees(**{name: int(columns[name][row]) for name in Degrees.model_fields})
    mode = costed.job.recompute[int(columns["recompute"][row])].name
    return f"{degrees_text(degrees)}, {batch_text(degrees)}, {mode}"


def candidates_or_reason(result: SearchResult) -> tuple[tuple[Candidate, ...], str]:
    """The candidates, or none and why."""
    try:
        return candidates(result), ""
    except UsageError as error:
        return (), str(error)
