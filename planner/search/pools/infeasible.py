"""Why nothing fits GPUs of several types, and changes of the job with which something does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from planner._version import __version__
from planner.job.errors import UsageError
from planner.job.pool import parse_pool
from planner.job.quantities import share
from planner.job.request import Request
from planner.predict.plan import Plan
from planner.search.changes import (
    Asked,
    Change,
    Changes,
    Situation,
    dropped_choices,
    larger_offloads,
    shorter_sequences,
    smaller_optimizers,
)
from planner.search.infeasibility import (
    GIB,
    ConflictingRule,
    DoesNotFitError,
    Verdict,
    WhyNothingFits,
    silent,
    with_relaxations,
)
from planner.search.limit_results import Effort, LimitResult, Until
from planner.search.pools.explorer import PoolExplorer
from planner.search.relaxations import ChangeOutcome, Kinds, Tried, find_relaxations

# Work for one change: enough to find a plan, not to prove it the fastest.
_EFFORT = Effort(most_solves=10, most_work_s=1.2)
# Doublings of the GPUs that are tried.
_DOUBLINGS = 2

Search = Callable[[Request, Effort], Plan]


def pool_nothing_fits(
    request: Request,
    explorer: PoolExplorer,
    limit_results: list[LimitResult],
    search: Search,
    *,
    relaxed: bool,
    verdict: Verdict = silent,
) -> DoesNotFitError:
    """The error to raise when no plan fits a pool; `relaxed`: searches what would.

    `search`: the fastest plan of a request within an effort; raises if nothing fits.
    """
    jobs = explorer.model.jobs
    until = Until(explorer.effort.deadline)
    why = WhyNothingFits(
        planner_version=__version__,
        request=request,
        legal=len(explorer.orders),
        usable_bytes=min(job.cluster.gpu.hbm_usable_bytes for job in jobs),
        limit_bytes=min(job.hbm_limit_bytes for job in jobs),
        proven=not explorer.stopped and bool(np.isinf(limit_results[0].bound)),
        conflict=(_memory(explorer),),
        layouts=(),
        relaxations=(),
    )
    verdict(why)
    at, tried = Situation(request, jobs[0], 0), Tried([], [])
    if relaxed:
        with until.interruptible():
            check = partial(_verify, search)
            tried = find_relaxations(at, explorer.progress, until, _KINDS, check)
    return DoesNotFitError(with_relaxations(why, tried.found, tried.in_vain, until))


def _memory(explorer: PoolExplorer) -> ConflictingRule:
    """How far the lightest even layout overfills its fullest GPU."""
    row = explorer.lightest()
    shares_text = ", ".join(
        f"{limit / GIB:.1f} GiB on {job.cluster.gpu.name}"
        for job, limit in zip(explorer.model.jobs, explorer.limits, strict=True)
    )
    degrees = " ".join(
        f"{name}{int(explorer.columns[name][row])}" for name in ("tp", "pp", "cp", "dp")
    )
    mode = explorer.model.jobs[0].recompute[int(explorer.columns["recompute"][row])].name
    return ConflictingRule(
        name="stage-memory",
        text=(
            f"the lightest even layout, {degrees}, recompute {mode}, takes "
            f"{share(explorer.even_fill(row), 0)} of the room on its fullest GPU: "
            f"there are {shares_text}"
        ),
    )


def _verify(
    search: Search, at: Situation, change: Change, until: Until, _same_gpus: bool, safe_only: bool
) -> ChangeOutcome:
    """The fastest plan of a changed request; `safe_only`: one that fits as surely as was asked."""
    if not isinstance(change.make, Asked):
        raise TypeError(f"{change.text} is no change of a request")
    try:
        plan = search(change.make.request, until.effort(_EFFORT))
    except DoesNotFitError as error:
        return ChangeOutcome(None, error.why.proven)
    except (UsageError, HardwareError, ConstraintError):
        return ChangeOutcome(None)
    safe = plan.fit_probability >= at.request.fit_probability
    return ChangeOutcome(plan if safe or not safe_only else None)


def _dropped(at: Situation, _until: Until) -> Changes:
    for text, left in dropped_choices(at.request).items():
        yield Change(f"without {text}", Asked(left, {}))


def _more_gpus(at: Situation, _until: Until) -> Changes:
    """All parts doubled."""
    pool = parse_pool(at.request.gpus or "")
    for doubling in range(1, _DOUBLINGS + 1):
        counts = [part.num_gpus << doubling for part in pool.parts]
        gpus = "+".join(
            f"{count}x{text.rpartition('x')[2]}"
            for count, text in zip(counts, pool.texts, strict=True)
        )
        yield Change(f"--gpus {gpus}", at.asked(gpus=gpus))


_KINDS: Kinds = {
    "condition": _dropped,
    "optimizer": smaller_optimizers,
    "offload": larger_offloads,
    "sequence": shorter_sequences,
    "gpus": _more_gpus,
}
