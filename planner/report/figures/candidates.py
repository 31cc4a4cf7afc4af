"""Every legal shape of a search in its even layout: the dots behind the front."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.cost import fields as f
from planner.job.errors import UsageError
from planner.job.pool import SeveralTypes
from planner.job.quantities import GIB
from planner.predict.configuration import row_degrees
from planner.predict.plan import Degrees
from planner.search.result import SearchResult
from planner.search.shares import CostedJob, cost_job

# Dots that a page carries at most; of more, the fastest of each of these cells each way is drawn.
MOST_DOTS = 8_000
_CELLS = 80
# Shapes beyond these shares of the best plan's speed and of the limit are off the picture.
_SLOWEST, _HEAVIEST = 0.3, 1.6

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shape that was considered: peak of a GPU, tokens/s of a GPU, degrees, recompute mode."""

    gib: float
    tokens_per_s: float
    degrees: Degrees
    recompute: str


@dataclass(frozen=True, slots=True)
class CandidateDots:
    """The dots; `legal`: shapes there are; `is_thinned`: whether dots stand for others close by."""

    dots: tuple[Candidate, ...] = ()
    legal: int = 0
    is_thinned: bool = False


def costed_or_reason(result: SearchResult) -> tuple[CostedJob | None, str]:
    """All legal shapes of a search, costed again; or none and why."""
    if isinstance(result.request.gpu_words, SeveralTypes):
        return None, "its GPUs are of several types"
    if not result.plans:
        return None, "there is no plan to compare them with"
    try:
        return cost_job(result.request.resolve().decided()[0]), ""
    except UsageError as error:
        return None, str(error)


def speeds(costed: CostedJob) -> Floats:
    """Tokens/s of a GPU of every legal shape."""
    job, columns = costed.job, costed.candidates.columns
    step_s = costed.costed.steps[:, f.STEP_TIME]
    found: Floats = columns["gbs"] * job.seq / step_s / job.cluster.num_gpus
    return found


def peaks_gib(costed: CostedJob) -> Floats:
    """Peak memory of a GPU of every legal shape, GiB."""
    found: Floats = costed.costed.steps[:, f.STEP_PEAK_BYTES] / GIB
    return found


def candidates(costed: CostedJob, result: SearchResult) -> CandidateDots:
    """Shapes near the front: all of them up to MOST_DOTS."""
    fastest = max(plan.tokens_per_s_per_gpu for plan in result.plans)
    limit = costed.job.hbm_limit_bytes / GIB
    speed, size = speeds(costed), peaks_gib(costed)
    near = np.flatnonzero((speed > _SLOWEST * fastest) & (size < _HEAVIEST * limit))
    drawn = near
    if len(near) > MOST_DOTS:
        order = near[np.argsort(-speed[near], kind="stable")]
        cells = np.stack((size[order] / limit, speed[order] / fastest), axis=1)
        _, first = np.unique((cells * _CELLS).astype(np.int64), axis=0, return_index=True)
        drawn = order[np.sort(first)]
    dots = tuple(
        Candidate(float(size[row]), float(speed[row]), *shape_of(costed, row))
        for row in drawn.tolist()
    )
    return CandidateDots(dots, len(speed), len(drawn) < len(near))


def shape_of(costed: CostedJob, row: int) -> tuple[Degrees, str]:
    """Degrees and recompute mode of a legal shape."""
    columns = costed.candidates.columns
    mode = costed.job.recompute[int(columns["recompute"][row])]
    return row_degrees(columns, row), mode.name
