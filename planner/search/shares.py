"""Cost a job, and search it as one front, over every choice that it leaves open: the share of the
optimizer and the activations that are kept on the host, and techniques.

These choices do not affect shapes or layouts, only the cost and memory of an update or a layer, and
which recompute modes are compatible. So the job is costed once for each choice, and the explorers
proceed together: at each limit they share the best known plan, and the lowest of their bounds
counts. A plan is optimal only if no layout with any choice beats it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from constraints.numbers import Mask
from planner.cost import fields as f
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.predict.calibrated import Factors
from planner.predict.configuration import Configuration
from planner.predict.cost_model import CostedShapes, CostModel
from planner.predict.costed_plan import configured_plan
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.predict.shapes import Candidates, legal_candidates
from planner.predict.space import LegalityReport
from planner.predict.uncertainty.likely import likely_limit_bytes
from planner.search.explorer import Explorer
from planner.search.limit_results import (
    LIMIT_STEP,
    LIMIT_STEPS,
    SAY_EVERY_S,
    SLOWEST,
    Effort,
    LimitResult,
    Point,
    Progress,
    Stopped,
    looks,
)


@dataclass(frozen=True)
class CostedJob:
    """A job with every legal shape costed in its even layout. `seconds`: time of the kernel."""

    candidates: Candidates
    cost_model: CostModel
    costed: CostedShapes
    seconds: float

    @property
    def job(self) -> Job:
        """The job on the GPUs in use."""
        return self.candidates.job

    def keep(self, rows: Mask) -> CostedJob:
        """The job with only some of its shapes."""
        columns = {name: values[rows] for name, values in self.candidates.columns.items()}
        costed = replace(
            self.costed, steps=self.costed.steps[rows], shapes=self.costed.shapes[rows]
        )
        candidates = replace(self.candidates, columns=columns)
        return replace(self, candidates=candidates, costed=costed)

    def explorer(self, effort: Effort, probability: float | None = None) -> Explorer:
        """An explorer of this job's layouts among plans that fit with at least `probability`, by
        default as surely as the job asks."""
        least = self.job.fit_probability if probability is None else probability
        return Explorer(
            self.cost_model,
            self.costed,
            self.candidates.columns,
            likely_limit_bytes(self.job, least),
            effort,
        )


def cost_job(job: Job, factors: Factors | None = None) -> CostedJob:
    """Enumerate and cost the legal shapes of a job. `factors`: applied to the hardware's numbers.
    UsageError if there are none."""
    candidates = legal_candidates(job)
    job = candidates.job
    return cost_candidates(candidates, CostModel(job, factors))


def cost_candidates(candidates: Candidates, cost_model: CostModel) -> CostedJob:
    """Cost the shapes of a job."""
    # The first call in a process loads or compiles the kernels, which does not count as their
    # speed.
    cost_model.cost_shapes({name: values[:1] for name, values in candidates.columns.items()})
    started = time.perf_counter()
    costed = cost_model.cost_shapes(candidates.columns)
    return CostedJob(candidates, cost_model, costed, time.perf_counter() - started)


Enough = Callable[[Sequence[LimitResult]], bool]
# Returns None if the job is not to be costed.
Cost = Callable[[Job], CostedJob | None]


@dataclass(frozen=True)
class CostedShares:
    """A job costed at each choice of offload and techniques, smallest first; just once if nothing
    is open.

    `left_out`: choices at which no shape is legal on the same GPUs. `untried`: choices for which a
    deadline left no time.
    """

    jobs: tuple[CostedJob, ...]
    left_out: tuple[Job, ...] = ()
    untried: tuple[Job, ...] = ()

    @property
    def job(self) -> Job:
        """The job at the smallest choice, on the GPUs in use."""
        return self.jobs[0].job

    @property
    def seconds(self) -> float:
        """Time of the kernel."""
        return sum(job.seconds for job in self.jobs)

    def plan(self, point: Point, gap: float) -> Plan:
        """The plan of a point that a search found. `gap`: the share that a better plan may still
        save."""
        costed_job = self.jobs[point.source]
        columns = costed_job.candidates.columns
        return configured_plan(
            Configuration.of_row(costed_job.job, columns, point.row, point.layout),
            costed_job.cost_model,
            "optimal" if gap <= OPTIMAL_WITHIN else "feasible",
            gap,
            costed_job.costed.only(point.row),
        )

    @property
    def rule_counts(self) -> dict[str, int]:
        """Number of shapes that each rule removed, over all choices."""
        counts: dict[str, int] = {}
        for job in self.jobs:
            for name, count in job.candidates.report.removed.items():
                counts[name] = counts.get(name, 0) + count
        return counts

    def explorer(
        self,
        effort: Effort,
        progress: Progress | None = None,
        probability: float | None = None,
        limit_bytes: float | None = None,
    ) -> SharesExplorer:
        """An explorer of all layouts at all choices, among plans that fit with at least
        `probability` (default: as the job asks). `limit_bytes`: a tighter limit on the peak."""
        solves = effort.most_solves
        pooled = replace(effort, most_solves=None if solves is None else solves * len(self.jobs))
        explorers = [job.explorer(pooled, probability) for job in self.jobs]
        if limit_bytes is not None:
            for one_explorer in explorers:
                one_explorer.limit_bytes = min(one_explorer.limit_bytes, limit_bytes)
        return SharesExplorer(explorers, progress, complete=not self.untried)


def cost_shares(job: Job, cost: Cost = cost_job, deadline: float | None = None) -> CostedShares:
    """Cost a job at each choice that it leaves open. UsageError if no shape is legal at any.

    A shape that is legal with offload is legal without, so the smallest choice decides how many
    GPUs are used. At least one choice is costed, the others until `deadline` (`time.perf_counter`).
    """
    decided, costed, left_out = job.decided(), list[CostedJob](), list[Job]()
    for position, other in enumerate(decided):
        if costed and deadline is not None and time.perf_counter() >= deadline:
            return CostedShares(tuple(costed), tuple(left_out), tuple(decided[position:]))
        if (plain := _replaced(other, costed)) is not None:
            costed[plain : plain + 1] = _replace_waiting(costed[plain], other)
            continue
        found = _legal(other, cost) if position else cost(other)
        if found is None or (
            costed and found.job.cluster.num_gpus != costed[0].job.cluster.num_gpus
        ):
            left_out.append(other)
        else:
            costed.append(found)
    return CostedShares(tuple(costed), tuple(left_out))


def _replaced(job: Job, costed: Sequence[CostedJob]) -> int | None:
    """Index of the costed job that equals this one except for a technique that replaces plans that
    wait."""
    waiting = {one.name for one in job.framework.techniques if one.least_waiting}
    added = [name for name in job.techniques if name in waiting]
    rest = tuple(name for name in job.techniques if name not in added)
    same = (rest, job.optimizer_offload, job.activation_offload)
    for index, plain in enumerate(one.job for one in costed):
        at = (plain.techniques, plain.optimizer_offload, plain.activation_offload)
        if added and at == same:
            return index
    return None


def _replace_waiting(plain: CostedJob, job: Job) -> tuple[CostedJob, ...]:
    """The job without the configurations that wait for the CPU, and these with a technique that
    ends the waiting. They are then neither slower nor heavier, so each configuration is searched
    only once.

    The even layouts tell which ones wait.
    """
    least = max(one.least_waiting for one in job.framework.techniques if one.name in job.techniques)
    steps, columns = plain.costed.steps, plain.candidates.columns
    waits = steps[:, f.STEP_ISSUE] > least * steps[:, f.STEP_TIME]
    index = {mode.name: position for position, mode in enumerate(job.recompute)}
    to = np.array([index.get(mode.name, -1) for mode in plain.job.recompute])
    modes = to[columns["recompute"]]
    taken = waits & (modes >= 0)
    if not taken.any():
        return (plain,)
    rows = {name: values[taken] for name, values in (columns | {"recompute": modes}).items()}
    rest = plain.keep(~taken)
    report = LegalityReport(0, 0, {}) if rest.candidates.columns["tp"].size else None
    job = replace(job, cluster=plain.job.cluster)
    replacing = replace(
        plain.candidates,
        job=job,
        columns=rows,
        report=report or plain.candidates.report,
    )
    return (*((rest,) if report else ()), cost_candidates(replacing, plain.cost_model.of(job)))


def _legal(job: Job, cost: Cost) -> CostedJob | None:
    try:
        return cost(job)
    except UsageError:
        return None


class SharesExplorer:
    """Searches for the fastest plans within descending memory limits with one explorer per choice.
    Points name theirs in `source`.

    Unless `complete`, the time limit left choices without an explorer, and nothing is proven.
    """

    def __init__(
        self,
        explorers: Sequence[Explorer],
        progress: Progress | None = None,
        *,
        complete: bool = True,
    ) -> None:
        self.effort, self.spent = explorers[0].effort, explorers[0].spent
        self.progress = progress or (lambda _what, _done, _total: None)
        self._at = "looking for the fastest plan", 0, 1
        self._said_s = -np.inf
        self.explorers = tuple(explorers)
        self._best: Point | None = None
        best = min(explorer.best_even() for explorer in explorers)
        for index, explorer in enumerate(explorers):
            explorer.source, explorer.best_beside = index, best
            explorer.spent, explorer.working = self.spent, self.working
        self._least_bound = np.inf if complete else 0.0
        if not complete:
            self.spent.stopped = "time-limit"

    @property
    def stopped(self) -> Stopped:
        """The event that cut the search short, if any."""
        return self.spent.stopped

    def working(self) -> None:
        """Report progress from time to time."""
        if time.perf_counter() - self._said_s >= SAY_EVERY_S:
            self._say()

    def _say(self) -> None:
        self._said_s = time.perf_counter()
        what, done, total = self._at
        best = self._found()
        self.progress(f"{what}; {best}" if best else what, done, total)

    @property
    def limit_bytes(self) -> float:
        """Largest predicted peak that a plan may have, in bytes."""
        return self.explorers[0].limit_bytes

    @property
    def limits(self) -> list[float]:
        """Memory limits of the ladder, from the largest down, bytes."""
        return [float(limit) for limit in self.explorers[0].limits]

    def _found(self) -> str:
        """Tokens/s of the best plan so far at the current limit."""
        if self._best is None:
            return ""
        tokens_per_s = self.explorers[0].cost_model.job.sample_tokens / self._best.sample_s
        return f"{tokens_per_s:,.0f} tokens/s so far"

    def ladder(
        self, limit_bytes: float, fastest: float, enough: Enough = lambda _results: False
    ) -> list[LimitResult]:
        """The results from a limit down, until nothing fits, plans are far slower than `fastest`
        (seconds per sequence), or the results are `enough`."""
        indices = range(LIMIT_STEPS)
        self.descend([limit_bytes * LIMIT_STEP**index for index in indices])
        results: list[LimitResult] = []
        with self.spent.interruptible():
            for index in indices:
                self._at = "looking for lighter plans", index, len(indices)
                self._say()
                result = self.climb(index)
                if result.point is None or result.point.sample_s > SLOWEST * fastest:
                    return results or [result]
                fastest = min(fastest, result.point.sample_s)
                results.append(result)
                if enough(results):
                    break
        return results

    def within(
        self, limits: Sequence[float], target_sample_times: Sequence[float]
    ) -> list[LimitResult]:
        """The fastest plan within each of some descending limits, if it beats the target sample
        time."""
        self.descend(limits)
        with self.spent.interruptible():
            return list(map(self.climb, range(len(limits)), target_sample_times))

    def descend(self, limits: Sequence[float]) -> None:
        """Switch to other memory limits in bytes, descending, for all choices."""
        for explorer in self.explorers:
            explorer.descend(np.asarray(limits, dtype=np.float64))

    def climb(self, index: int, target_sample_s: float = np.inf) -> LimitResult:
        """The fastest plan at one limit over all choices, and a bound that none beats.

        Plans no faster than `target_sample_s` are not searched for, and nothing is proven about
        them.
        """
        limit = float(self.explorers[0].limits[index])
        known = [explorer.best_known(limit) for explorer in self.explorers]
        best = _fastest([point for point in known if point is not None])
        for look in looks(self.effort, self.spent):
            for number, explorer in enumerate(self.explorers):
                self._best = best
                self.working()
                part = look.part(self.spent, len(self.explorers) - number)
                point = explorer.look(index, part, _target(best, target_sample_s))
                best = _fastest([point for point in (best, point) if point is not None])
        target = _target(best, target_sample_s)
        bounds = [explorer.result(index, target).bound for explorer in self.explorers]
        return LimitResult(limit, best, min(self._least_bound, *bounds))

    def as_good(self, result: LimitResult) -> LimitResult:
        """The result with the lightest costed layout that is as good as its plan, so that no costed
        layout dominates it."""
        if result.point is None:
            return result
        points = [explorer.as_good(result.point) for explorer in self.explorers]
        return replace(result, point=min(points, key=lambda point: (point.peak, point.sample_s)))

    def solved_shapes(self) -> int:
        """Shapes given to CP-SAT."""
        return sum(len(explorer.solved_rows) for explorer in self.explorers)

    def unable_to_improve(self) -> int:
        """Number of shapes that were never solved because their bounds exclude an improvement."""
        return sum(explorer.unable_to_improve() for explorer in self.explorers)


def _target(best: Point | None, target_sample_s: float) -> float:
    return min(target_sample_s, np.inf if best is None else best.sample_s)


def _fastest(points: Sequence[Point]) -> Point | None:
    """The fastest point; among equals the lightest, then the one of the smallest choice."""
    return min(
        points,
        key=lambda point: (point.sample_s, point.peak, point.source, point.row),
        default=None,
    )
