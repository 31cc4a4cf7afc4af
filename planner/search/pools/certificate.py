"""Whether the proof of a search on GPUs of several types holds: `planner.search.certificate`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from constraints.layout import broken_but_memory
from planner.cost import fields as f
from planner.predict.plan import Plan
from planner.search.costed import likely_limit_bytes
from planner.search.limit_results import Effort
from planner.search.outcome import recommended
from planner.search.pools.cost import PoolModel
from planner.search.pools.explorer import Parts, PoolExplorer
from planner.search.pools.jobs import pool_jobs
from planner.search.pools.search import pool_shapes
from planner.search.pools.terms import pool_terms
from planner.search.proofs import SAME, Verdict, find_row, missing_problems, same, status_problems
from planner.search.result import LimitBound, Proof, SearchResult


def verify_pool(result: SearchResult, proof: Proof) -> Verdict:
    """Check the plans and the proof of a search on GPUs of several types."""
    pool, jobs = pool_jobs(result.request)
    model = PoolModel(jobs)
    explorer = PoolExplorer(pool, model, pool_shapes(pool, model)[0], Effort(), None)
    explorer.search_within(
        [likely_limit_bytes(job, result.request.fit_probability) for job in jobs]
    )
    checks = PoolChecks(explorer, result, proof)
    problems = tuple(checks.problems())
    return Verdict(problems, len(proof.limits), len(explorer.orders), len(checks.on_trust))


@dataclass(frozen=True)
class PoolChecks:
    """Plans and bounds of a result.

    `on_trust`: rows of which a bound rests on CP-SAT; `bounds`: of a row in an order, within the
    last limit or a larger one.
    """

    explorer: PoolExplorer
    result: SearchResult
    proof: Proof
    on_trust: set[int] = field(default_factory=set)
    bounds: dict[tuple[int, Parts], float] = field(default_factory=dict)

    def problems(self) -> Iterator[str]:
        """What is wrong."""
        points: list[tuple[float, float]] = []
        for number, plan in enumerate(self.result.plans, start=1):
            yield from (f"plan {number}: {problem}" for problem in self._plan(plan, points))
        if self.result.recommended != recommended(self.result.plans):
            yield f"plan {self.result.recommended} is not the one to recommend"
        if self.result.complete:
            yield from missing_problems(points, self.proof, self.explorer.model.jobs[0].resolution)
        yield from self._solver_problems()
        yield from self._limit_problems()

    def _plan(self, plan: Plan, points: list[tuple[float, float]]) -> Iterator[str]:
        """What is wrong with a plan; its sample time and fill are added to `points`."""
        explorer = self.explorer
        row = find_row(explorer.columns, explorer.model.jobs[0], plan.degrees, plan.recompute)
        parts = None if row is None else self._parts(row, plan)
        if row is None or parts is None:
            yield "no legal configuration of the job"
            return
        layout = plan.layout
        _, ctx = pool_terms(explorer.model, explorer.costed, row, parts, explorer.limits)
        for rule in broken_but_memory(layout, ctx)[:1]:
            yield f"its layout breaks a rule: {rule}"
            return
        counts = explorer.kernel_layout(row, layout)
        step, _ = explorer.model.cost_layout(explorer.costed, row, counts, parts)
        point = explorer.cost(row, parts, layout)
        points.append((point.sample_s, point.peak))
        if not same(float(step[f.STEP_TIME]), plan.step_time_s):
            yield f"{step[f.STEP_TIME]:.6g} s a step, not {plan.step_time_s:.6g} s"
        if not same(float(step[f.STEP_PEAK_BYTES]), plan.peak_bytes):
            yield f"{step[f.STEP_PEAK_BYTES]:.0f} bytes at its peak, not {plan.peak_bytes:.0f}"
        if point.fill > 1.0 + SAME:
            yield "fits less surely than was asked"
        yield from status_problems(plan, point.peak, self.proof)

    def _parts(self, row: int, plan: Plan) -> Parts | None:
        """The order of the parts in which a plan's stages lie on its GPUs."""
        names = [job.cluster.gpu.name for job in self.explorer.model.jobs]
        orders = self.explorer.orders[row]
        return next(
            (one for one in orders if [names[part] for part in one] == [*plan.stage_gpus]), None
        )

    def _solver_problems(self) -> Iterator[str]:
        """CP-SAT's bounds that an even layout refutes."""
        for claim in self.proof.by_solver:
            explorer = self.explorer
            row = find_row(explorer.columns, explorer.model.jobs[0], claim.degrees, claim.recompute)
            if row is None or claim.parts not in explorer.orders[row]:
                yield f"CP-SAT bounded what is no configuration of the job: {claim.degrees}"
                continue
            even = explorer.cost(row, claim.parts, explorer.even(row))
            if even.peak <= claim.limit_bytes and even.sample_s < claim.sample_s * (1.0 - SAME):
                yield f"an even layout of {claim.degrees} is faster than CP-SAT's bound"
            explorer.prove(
                row, claim.parts, claim.limit_bytes / explorer.limit_bytes, claim.sample_s
            )

    def _limit_problems(self) -> Iterator[str]:
        """Configurations that no bound, nor CP-SAT, shows to take as long as a limit says."""
        for limit in sorted(self.proof.limits, key=lambda one: -one.limit_bytes):
            for row, orders in enumerate(self.explorer.orders):
                for parts in orders:
                    if not self._shown(row, parts, limit):
                        yield (
                            f"within {limit.limit_bytes:.0f} bytes nothing shows that a layout of "
                            f"configuration {row} is no faster than {limit.sample_s:.6g} s a "
                            "sequence"
                        )
                        return

    def _shown(self, row: int, parts: Parts, limit: LimitBound) -> bool:
        explorer, least = self.explorer, limit.sample_s * (1.0 - SAME)
        share = limit.limit_bytes / explorer.limit_bytes
        if self.bounds.get((row, parts), explorer.balanced[row]) >= least:
            return True
        self.bounds[row, parts] = explorer.bound(row, parts, share)
        if self.bounds[row, parts] >= least:
            return True
        self.on_trust.add(row)
        return explorer.known(row, parts, share * (1.0 - SAME)) >= least
