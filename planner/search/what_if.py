"""Solve a plan's job again with one change at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

from hardware.errors import HardwareError
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.offload import demand_all_leave
from planner.job.request import Request
from planner.predict.configuration import Configuration, rows_of
from planner.predict.cost_model import CostModel
from planner.predict.costed_plan import configured_plan
from planner.predict.plan import OPTIMAL_WITHIN, Interval, Plan
from planner.predict.shapes import legal_candidates
from planner.predict.uncertainty.likely import EVEN_CHANCE, likely_limit_bytes
from planner.search.changes import Change, Changes, dropped_choices, hardware_changes
from planner.search.limit_results import Effort, Progress, Until
from planner.search.result import BindingConstraint, WhatIf, WhatIfRow
from planner.search.shares import CostedShares
from planner.search.trial import Known, Trial, try_job

# The search after a change starts from known plans, so only a better one has to be found.
EFFORT = Effort(most_solves=16, most_work_s=1.0)
# A plan this much slower than the fastest was chosen for its memory.
CHOSEN_FOR_MEMORY = 0.015
# Fields that a row copies from its plan.
_OF_THE_PLAN = (
    "degrees", "recompute", "optimizer_offload", "activation_offload",
    "activation_offload_fraction", "peak_bytes",
)  # fmt: skip


def what_if(
    request: Request,
    job: Job,
    plan: Plan,
    progress: Progress | None = None,
    until: Until | None = None,
) -> WhatIf:
    """Marginal values around `plan`, a plan of `job` (on the GPUs in use).

    A job whose offload is open stays open, because more memory may need less of it. All numbers
    come from repeatable searches, unless `until` ends them; what it cuts off is `untried`. A plan
    that is slower than the fastest was chosen for its memory, so it is compared with plans no
    heavier than itself. UsageError for a plan that offloads a fraction of its activations.
    """
    demand_all_leave(plan.activation_offload_fraction)
    silent = progress or (lambda _what, _done, _total: None)
    return _Solver(request, job, plan, silent, until or Until()).solve()


class _Solver:
    """The plan in question, and the best plan without a change."""

    def __init__(
        self, request: Request, job: Job, plan: Plan, progress: Progress, until: Until
    ) -> None:
        self.until = until
        self.request, self.job, self.plan, self.progress = request, job, plan, progress
        safe = plan.fit_probability >= job.fit_probability
        self.probability = job.fit_probability if safe else min(EVEN_CHANCE, job.fit_probability)
        self.limit_bytes: float | None = None
        self.as_is = Change("now", lambda: job)
        self.now: Plan = plan
        best, gap = self.best_now()
        chosen = plan.status != "evaluated"
        if best and chosen and self.at_batch(best) < plan.step_time_s / (1 + CHOSEN_FOR_MEMORY):
            self.limit_bytes = plan.peak_bytes
            best, gap = self.best_now()
        fits = plan.peak_bytes <= self.limit_of(self.as_is)
        if best is None or (fits and plan.step_time_s <= self.at_batch(best)):
            best = plan
        self.now, self.now_gap = best, gap
        self.base_s = self.at_batch(best)

    def best_now(self) -> tuple[Plan | None, float]:
        """The best plan without a change, and the share by which a better one could be faster."""
        trial = self.trial(self.as_is)
        return (None, 0.0) if trial is None else (trial.plan(), trial.limit_result.gap)

    def solve(self) -> WhatIf:
        changes = list(self.changes())
        rows = []
        for index, change in enumerate(changes):
            if self.until.over(change.text):
                continue
            self.progress(f"what if: {change.text}", index, len(changes))
            row = self.row(change)
            if row.resolved or row.resolution <= OPTIMAL_WITHIN or not self.until.over(change.text):
                rows.append(row)
        rows.sort(key=lambda row: (row.effect is None, -abs(row.effect or 0.0)))
        return WhatIf(
            step_time_s=self.plan.step_time_s,
            best_s=self.base_s,
            best_degrees=self.now.degrees,
            best_is_this=_alike(self.now, self.plan),
            limit_bytes=self.limit_of(self.as_is),
            fit_probability=self.probability,
            chosen_for_memory=self.limit_bytes is not None,
            constraints=self.constraints(rows),
            rows=tuple(rows),
            untried=self.until.untried,
        )

    # --- the changes --------------------------------------------------------------------------

    def changes(self) -> Changes:
        yield from hardware_changes(self.job)
        cluster = self.job.cluster
        if cluster.connects(cluster.num_gpus + cluster.gpus_per_node):
            yield self.more_nodes()
        for text, request in dropped_choices(self.request).items():
            yield Change(f"without {text}", partial(self.placed, request), name=text)
        crosses = cluster.num_gpus > cluster.scale_up_domain_gpus == self.plan.degrees.tp
        if crosses and not self.job.allow_tp_across_domains:
            free = replace(self.job, allow_tp_across_domains=True)
            yield Change("tp beyond its NVLink domain", lambda: free, name="tp-in-domain")

    def placed(self, request: Request) -> Job:
        """The job of a request, on the GPUs in use."""
        job = request.resolve()
        return replace(job, cluster=job.cluster.with_gpus(self.job.cluster.num_gpus))

    def more_nodes(self) -> Change:
        """One more node, or the fewest further nodes with which a configuration uses all GPUs."""
        cluster = self.job.cluster
        step = cluster.gpus_per_node
        counts = range(cluster.num_gpus + step, 2 * cluster.num_gpus + 1, step)
        jobs = [replace(self.job, cluster=cluster.with_gpus(count)) for count in counts]
        job = next(filter(_uses_all, jobs), jobs[0])
        text = _nodes_text(job, self.job)
        return Change(text, lambda: job, "gpus", "nodes", keeps_plan=False)

    # --- one change ---------------------------------------------------------------------------

    def limit_of(self, change: Change) -> float:
        """Largest predicted peak in bytes that is allowed after a change."""
        limit = likely_limit_bytes(change.job, self.probability)
        if self.limit_bytes is None:
            return limit
        return min(limit, self.limit_bytes + change.more_bytes)

    def trial(self, change: Change) -> Trial | None:
        return try_job(
            lambda: change.job,
            (self.probability,),
            gpus=change.gpus,
            factors=change.factors,
            limit_bytes=self.limit_of(change),
            effort=self.until.effort(EFFORT),
            known=self.known if change.keeps_plan else None,
        )

    def known(self, shares: CostedShares) -> Iterator[Known]:
        """The plan in question and the best one now, each at its own choice of offload. Searches
        after a change start from them; see `search_costed`."""
        plans = {id(item): item for item in (self.plan, self.now)}.values()
        for (source, costed), plan in product(enumerate(shares.jobs), plans):
            if not _same_offload(costed.job, plan):
                continue
            if not set(plan.modes) <= {mode.name for mode in costed.job.recompute}:
                continue
            columns = costed.candidates.columns
            rows = rows_of(columns, costed.job, plan.degrees, plan.recompute)
            yield from ((source, row, plan.layout) for row in rows)

    def again(self, plan: Plan, change: Change) -> Plan:
        """A plan with its degrees and layout unchanged, costed after a change."""
        configuration = Configuration.of_plan(change.job, plan)
        model = CostModel(configuration.job, change.factors)
        return configured_plan(configuration, model, "evaluated")

    def at_batch(self, plan: Plan) -> float:
        """Step time in seconds of a plan at the batch of the plan in question."""
        return plan.step_time_s * self.plan.gbs_tokens / plan.gbs_tokens

    def row(self, change: Change) -> WhatIfRow:
        trial = self.trial(change)
        found = None if trial is None else trial.plan()
        kept = self.again(self.plan, change) if change.keeps_plan else None
        candidates = [item for item in (found,) if item is not None]
        if change.keeps_plan:
            stays = (kept, self.again(self.now, change))
            limit = self.limit_of(change)
            candidates += [stay for stay in stays if stay and stay.peak_bytes <= limit]
        row = WhatIfRow(kind=change.kind, name=change.name, change=change.text)
        if not candidates:
            return row.model_copy(update={"note": self.no_plan(trial)})
        best = min(
            candidates, key=lambda candidate: (self.at_batch(candidate), candidate.peak_bytes)
        )
        gap = 0.0 if trial is None or trial.limit_result.point is None else trial.limit_result.gap
        effect_s = self.at_batch(best) - self.base_s
        resolution = max(OPTIMAL_WITHIN, gap, self.now_gap)
        return row.model_copy(
            update={
                "step_time_s": self.at_batch(best),
                "step_time": _scaled(best.step_time, self.at_batch(best) / best.step_time_s),
                "effect_s": effect_s,
                "effect": effect_s / self.base_s,
                "resolution": resolution,
                "resolved": abs(effect_s) > resolution * self.base_s,
                "kept_effect": kept and kept.step_time_s / self.plan.step_time_s - 1.0,
                "gpus": best.degrees.gpus,
                "same_plan": _alike(best, self.plan),
            }
            | {name: getattr(best, name) for name in _OF_THE_PLAN}
        )

    def no_plan(self, trial: Trial | None) -> str:
        if trial is None:
            return "no configuration uses all of the GPUs at this batch"
        return "no plan fits" if trial.proven else "no plan was found"

    # --- what binds ---------------------------------------------------------------------------

    def constraints(self, rows: list[WhatIfRow]) -> tuple[BindingConstraint, ...]:
        """The value of lifting each constraint: the memory limit, the user's choices and tp's
        domain."""
        plan = self.plan
        held = {"stage": plan.heaviest_stage, "held_bytes": plan.peak_bytes}
        named = [("memory", row, held) for row in rows if row.name == "hbm"]
        named += [(row.name, row, {}) for row in rows if row.kind == "choice"]
        return tuple(
            BindingConstraint(name=name, row=row.name, binding=_shortens(row), **more)
            for name, row, more in named
        )


def _scaled(interval: Interval, factor: float) -> Interval:
    return interval.model_copy(
        update={"low": interval.low * factor, "high": interval.high * factor}
    )


def _uses_all(job: Job) -> bool:
    try:
        return legal_candidates(job.decided()[0]).job.cluster.num_gpus == job.cluster.num_gpus
    except (UsageError, HardwareError):
        return False


def _nodes_text(larger: Job, job: Job) -> str:
    step = job.cluster.gpus_per_node
    more = (larger.cluster.num_gpus - job.cluster.num_gpus) // step
    noun = "one more node" if more == 1 else f"{more} more nodes"
    return f"{noun} ({larger.cluster.num_gpus:,} GPUs)"


def _shortens(row: WhatIfRow) -> bool:
    return row.resolved and (row.effect_s or 0.0) < 0.0


def _same_offload(one: Job | Plan, plan: Plan) -> bool:
    """Whether the same things are on the host."""
    same = one.optimizer_offload == plan.optimizer_offload
    same = same and one.activation_offload == plan.activation_offload
    fraction = one.activation_offload_fraction if isinstance(one, Plan) else one.offload_fraction
    return same and fraction == plan.activation_offload_fraction


def _alike(one: Plan, other: Plan) -> bool:
    same = one.degrees == other.degrees and one.recompute == other.recompute
    same = same and _same_offload(one, other)
    return same and one.layout == other.layout
