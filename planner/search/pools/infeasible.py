"""Why nothing fits GPUs of several types, and changes of the job with which something does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from constraints.errors import ConstraintError
from hardware import HardwareError
from planner._version import __version__
from planner.job.errors import NothingFitsError, UsageError
from planner.job.pool import parse_pool
from planner.job.request import Request
from planner.predict.plan import Plan
from planner.search.infeasibility import (
    GIB,
    ConflictingRule,
    DoesNotFitError,
    Relaxation,
    RelaxationKind,
    WhyNothingFits,
)
from planner.search.limit_results import Effort, LimitResult, Progress, Until
from planner.search.pools.explorer import PoolExplorer
from planner.search.pools.jobs import first_job
from planner.search.relaxations import (
    Asked,
    Change,
    Situation,
    dropped_choices,
    larger_offloads,
    shorter_sequences,
    smaller_optimizers,
)

# Work for one change: enough to find a plan, not to prove it the fastest.
_MOST_SOLVES, _MOST_EFFORT_S = 10, 0.5
# Doublings of the GPUs that are tried.
_DOUBLINGS = 2

Search = Callable[[Request, Effort], Plan]
Changes = Iterator[Change[Asked]]
_OF_THE_JOB: dict[RelaxationKind, Callable[[Situation, Until], Changes]] = {
    "optimizer": smaller_optimizers,
    "offload": larger_offloads,
    "sequence": shorter_sequences,
}


def pool_nothing_fits(
    request: Request,
    explorer: PoolExplorer,
    limit_results: list[LimitResult],
    search: Search,
    *,
    relaxed: bool,
) -> DoesNotFitError:
    """The error to raise when no plan fits a pool; `relaxed`: searches what would.

    `search`: the fastest plan of a request within an effort; raises if nothing fits.
    """
    jobs = explorer.model.jobs
    until = Until(None if np.isinf(explorer.deadline) else explorer.deadline)
    relaxations = _relaxations(request, until, explorer.progress, search) if relaxed else ()
    why = WhyNothingFits(
        planner_version=__version__,
        request=request,
        legal=len(explorer.orders),
        usable_bytes=min(job.cluster.gpu.hbm_usable_bytes for job in jobs),
        limit_bytes=min(job.hbm_limit_bytes for job in jobs),
        proven=not explorer.stopped and bool(np.isinf(limit_results[0].bound)),
        conflict=(_memory(explorer),),
        layouts=(),
        relaxations=relaxations,
        stopped=until.stopped,
        untried=until.untried,
    )
    return DoesNotFitError(why)


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
            f"{explorer.even_fill(row):.0%} of the room on its fullest GPU: there are {shares_text}"
        ),
    )


def _relaxations(
    request: Request, until: Until, progress: Progress, search: Search
) -> tuple[Relaxation, ...]:
    found = []
    with until.interruptible():
        for index, (kind, changes) in enumerate(_kinds(request, until)):
            progress(f"searching what would fit: {kind}", index, 5)
            found += _smallest(kind, changes, until, search, request.fit_probability)
    return tuple(sorted(found, key=lambda relaxation: relaxation.seconds_per_token))


def _smallest(
    kind: RelaxationKind, changes: Changes, until: Until, search: Search, asked: float
) -> list[Relaxation]:
    """The first change that fits safely, and a smaller one that at least probably fits; `asked`:
    the probability with which a plan is safe."""
    found: list[Relaxation] = []
    for change in changes:
        if until.over(kind):
            break
        effort = Effort(
            most_solves=_MOST_SOLVES,
            most_effort_s=_MOST_EFFORT_S,
            time_limit_s=until.seconds_left(),
        )
        try:
            plan = search(change.make.request, effort)
        except (NothingFitsError, UsageError, HardwareError, ConstraintError):
            continue
        safe = plan.fit_probability >= asked
        if safe or not found:
            found.append(Relaxation(kind=kind, change=change.text, smallest=False, plan=plan))
        if safe and kind != "condition":
            break
    return found


def _kinds(request: Request, until: Until) -> Iterator[tuple[RelaxationKind, Changes]]:
    at = Situation(request, first_job(request), 0)
    dropped = dropped_choices(request).items()
    yield "condition", (Change(f"without {text}", Asked(left, {})) for text, left in dropped)
    for kind, changes in _OF_THE_JOB.items():
        yield kind, changes(at, until)
    yield "gpus", _more_gpus(at)


def _more_gpus(at: Situation) -> Changes:
    """All parts doubled."""
    pool = parse_pool(at.request.gpus or "")
    for doubling in range(1, _DOUBLINGS + 1):
        counts = [part.num_gpus << doubling for part in pool.parts]
        gpus = "+".join(
            f"{count}x{text.rpartition('x')[2]}"
            for count, text in zip(counts, pool.texts, strict=True)
        )
        yield Change(f"--gpus {gpus}", at.asked(gpus=gpus))
