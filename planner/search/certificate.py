"""Check the proof that a search wrote into its plan file, without running a solver.

    python -m planner.search.certificate plans.json

Every plan is costed again in its layout and checked against the rules. That nothing better exists
rests on bounds: within each memory limit of the proof, every configuration is bounded from below
again, by the cost core and by whole blocks of layers. The rest relies on CP-SAT; the proof must
state its bound for exactly that configuration and limit. Those bounds are compared with every known
layout, and counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from constraints.layout import broken_but_memory
from planner.cost import fields as f
from planner.job.amounts import Resolution
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.predict.configuration import place_of, row_degrees, rows_of
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.predict.techniques import used_techniques
from planner.predict.uncertainty.likely import likely_limit_bytes, weighed_bytes
from planner.search.bounded_shapes import TIGHTEST, BoundedShapes
from planner.search.launchable import SILENT, LaunchNotes
from planner.search.limit_results import TIE, Effort
from planner.search.outcome import recommended
from planner.search.plan_file import read_plan_file
from planner.search.result import LimitBound, Proof, SearchResult, SolverBound
from planner.search.search import launchable_shares
from planner.search.shares import CostedJob, CostedShares

# Differences below this are rounding: another order of sums, or a bisection.
SAME = 1e-7


@dataclass(frozen=True)
class Verdict:
    """`problems`: what is wrong; empty if the plans are as good as they claim.

    `limits`: memory limits at which `legal` configurations were bounded. `by_solver`:
    configurations with a bound that rests on CP-SAT alone.
    """

    problems: tuple[str, ...]
    limits: int = 0
    legal: int = 0
    by_solver: int = 0


def verify(result: SearchResult, launch: LaunchNotes = SILENT) -> Verdict:
    """Check a search's plans and proof. `launch`: what the launch writers said during the search.

    UsageError if the request itself is refused.
    """
    if result.proof is None:
        return Verdict(("the file contains no proof",))
    shares = launchable_shares(result.request.resolve(), launch)
    plans = PlanChecks(shares, result, result.proof)
    limits = LimitChecks(shares, result.proof)
    points = [(_sample_s(plan), weighed_bytes(shares.job, plan)) for plan in result.plans]
    apart = shares.job.resolution
    missing = _missing_problems(points, result.proof, apart) if result.complete else ()
    problems = [*plans.problems(), *missing, *limits.problems()]
    legal = sum(len(job.candidates.columns["tp"]) for job in shares.jobs)
    return Verdict(tuple(problems), len(result.proof.limits), legal, len(limits.on_trust))


@dataclass(frozen=True)
class PlanChecks:
    """Checks a result's plans against the rules and the cost core."""

    shares: CostedShares
    result: SearchResult
    proof: Proof

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the plans."""
        for number, plan in enumerate(self.result.plans, start=1):
            yield from (f"plan {number}: {problem}" for problem in self._plan(plan))
        if self.result.recommended != recommended(self.result.plans):
            yield f"plan {self.result.recommended} is not the one to recommend"

    def _plan(self, plan: Plan) -> Iterator[str]:
        for costed_job in self.shares.jobs:
            if not _chosen(costed_job.job, plan):
                continue
            columns, job = costed_job.candidates.columns, costed_job.job
            place = place_of(job, plan.degrees.pp, plan.stage_gpus)
            if rows := rows_of(columns, job, plan.degrees, plan.recompute, place):
                yield from self._costed(costed_job, rows[0], plan)
                yield from _status_problems(plan, weighed_bytes(job, plan), self.proof)
                return
        yield "no legal configuration of the job"

    def _costed(self, costed_job: CostedJob, row: int, plan: Plan) -> Iterator[str]:
        explorer = costed_job.explorer(Effort())
        layout = plan.layout
        ctx = explorer.linear(row, explorer.limit_bytes)[1]
        for rule in broken_but_memory(layout, ctx)[:1]:
            yield f"its layout breaks a rule: {rule}"
            return
        point, step = explorer.cost(row, layout), explorer.step_and_stages(row, layout)[0]
        peak = float(step[f.STEP_PEAK_BYTES])
        if not _same(point.sample_s, _sample_s(plan)):
            yield f"{point.sample_s * plan.gbs:.6g} s a step, not {plan.step_time_s:.6g} s"
        if not _same(peak, plan.peak_bytes):
            yield f"{peak:.0f} bytes at its peak, not {plan.peak_bytes:.0f}"
        limit = likely_limit_bytes(costed_job.job, self.result.request.fit_probability)
        if point.peak > limit * (1.0 + SAME):
            yield "it fits less surely than requested"


def _chosen(job: Job, plan: Plan) -> bool:
    """Whether a job matches a plan's choices: what is offloaded, and the techniques in use at these
    degrees."""
    return (
        job.optimizer_offload == plan.optimizer_offload
        and job.activation_offload == plan.activation_offload
        and used_techniques(job, plan.degrees) == plan.techniques
    )


def _sample_s(plan: Plan) -> float:
    return plan.step_time_s / plan.gbs


def _status_problems(plan: Plan, peak: float, proof: Proof) -> Iterator[str]:
    """A plan may be slower than the proven bound for plans no heavier than `peak` by its gap at
    most."""
    allowed = OPTIMAL_WITHIN if plan.status == "optimal" else plan.gap
    least = _sample_s(plan) * (1.0 - allowed) * (1.0 - SAME)
    if not any(one.limit_bytes >= peak and one.sample_s >= least for one in proof.limits):
        yield f"no limit of the proof shows that it is {plan.status}"


def _missing_problems(
    points: Sequence[tuple[float, float]], proof: Proof, resolution: Resolution
) -> Iterator[str]:
    """Gaps in a complete front of (seconds per sequence, bytes) where another plan could exist."""
    for (_, heavy), (slow, peak) in pairwise(sorted(points)):
        least = slow / (1.0 + resolution.time + OPTIMAL_WITHIN)
        light = (heavy - resolution.memory_bytes) * (1.0 - SAME)
        if not any(one.limit_bytes >= light and one.sample_s >= least for one in proof.limits):
            yield (
                f"between {heavy:.0f} and {peak:.0f} bytes a plan may be missing from the complete "
                "front"
            )


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= SAME * abs(other)


class LimitChecks:
    """Compares the bounds of a proof with fresh bounds of every configuration."""

    def __init__(self, shares: CostedShares, proof: Proof) -> None:
        self.shares, self.proof = shares, proof
        # Configurations with a bound that rests on CP-SAT: (choice, row).
        self.on_trust: set[tuple[int, int]] = set()
        self._claims: dict[tuple[int, int], list[SolverBound]] = {}

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the bounds."""
        yield from self._take_claims()
        limits = sorted(self.proof.limits, key=lambda one: -one.limit_bytes)
        for choice, costed_job in enumerate(self.shares.jobs):
            bounds = UnsolvedBounds(costed_job, limits)
            for index, limit in enumerate(limits):
                for row in bounds.below(index, limit.sample_s):
                    if not self._claimed(choice, row, limit):
                        name = row_degrees(costed_job.candidates.columns, row)
                        yield (
                            f"within {limit.limit_bytes:.0f} bytes nothing shows that no layout "
                            f"of {name} is faster than {limit.sample_s:.6g} s a sequence"
                        )
                        return
                    self.on_trust.add((choice, row))

    def _take_claims(self) -> Iterator[str]:
        """Store CP-SAT's bounds by configuration; yield those that an even layout contradicts."""
        for claim in self.proof.by_solver:
            known = 0 <= claim.choice < len(self.shares.jobs)
            costed_job = self.shares.jobs[claim.choice if known else 0]
            columns, job = costed_job.candidates.columns, costed_job.job
            places = job.pool.places if job.pool else ((),)
            place = places.index(claim.parts) if claim.parts in places else -1
            rows = rows_of(columns, job, claim.degrees, claim.recompute, place)
            if not (rows and known):
                yield (
                    f"a bound of CP-SAT is for {claim.degrees}, which is not a configuration of "
                    "the job"
                )
                continue
            even = costed_job.explorer(Effort()).even_point(rows[0])
            if even.peak <= claim.limit_bytes and even.sample_s < claim.sample_s * (1.0 - SAME):
                yield f"an even layout of {claim.degrees} is faster than CP-SAT's bound"
            self._claims.setdefault((claim.choice, rows[0]), []).append(claim)

    def _claimed(self, choice: int, row: int, limit: LimitBound) -> bool:
        return any(
            claim.limit_bytes >= limit.limit_bytes * (1.0 - SAME)
            and claim.sample_s >= limit.sample_s * (1.0 - SAME)
            for claim in self._claims.get((choice, row), ())
        )


class UnsolvedBounds(BoundedShapes):
    """Bounds of one job's configurations within descending limits."""

    def __init__(self, costed_job: CostedJob, limits: Sequence[LimitBound]) -> None:
        largest = likely_limit_bytes(costed_job.job, costed_job.job.fit_probability)
        super().__init__(
            costed_job.cost_model, costed_job.costed, costed_job.candidates.columns, largest, TIE
        )
        self.limits = np.array([limit.limit_bytes for limit in limits], dtype=np.float64)

    def below(self, index: int, sample_s: float) -> list[int]:
        """Configurations that no bound excludes from having a layout faster than `sample_s`."""
        least = sample_s * (1.0 - SAME)
        self._bound(np.flatnonzero(self.bounds[:, index] < least), index)
        open_positions = np.flatnonzero(self.bounds[:, index] < least).tolist()
        return [
            int(self.rows[position])
            for position in open_positions
            if not self._shown(position, index, sample_s, least)
        ]

    def _shown(self, position: int, index: int, sample_s: float, least: float) -> bool:
        if self.only_even[self.rows[position]]:
            return False
        return any(self._tighten(position, index, sample_s) >= least for _ in range(TIGHTEST))


def main() -> None:
    """Verify a plan file. Exit status 1 if the proof does not hold."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m planner.search.certificate plans.json")
    try:
        verdict = verify(read_plan_file(Path(sys.argv[1])))
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
    for problem in verdict.problems:
        sys.stdout.write(f"{problem}\n")
    if verdict.problems:
        raise SystemExit(1)
    sys.stdout.write(
        f"The proof holds: the plans cost what they say, and within {verdict.limits} memory "
        f"limits none of {verdict.legal:,} configurations can be faster than it says; for "
        f"{verdict.by_solver} of them this rests on CP-SAT, for the others on bounds.\n"
    )


if __name__ == "__main__":
    main()
