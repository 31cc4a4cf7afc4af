"""What proofs of searches on GPUs of one type and of several are judged by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from constraints.numbers import IntArray
from planner.job.job import Job, Resolution
from planner.predict.plan import OPTIMAL_WITHIN, Degrees, Plan
from planner.search.result import Proof

# Figures that differ by less are the same: of another order of sums, or of a bisection.
SAME = 1e-7


@dataclass(frozen=True)
class Verdict:
    """`problems`: what does not hold; none: the plans are as good as they say.

    `limits`: memory limits at which `legal` configurations were bounded; `by_solver`:
    configurations of which some bound rests on CP-SAT alone.
    """

    problems: tuple[str, ...]
    limits: int = 0
    legal: int = 0
    by_solver: int = 0


def sample_s(plan: Plan) -> float:
    """Seconds of step time per sequence."""
    return plan.step_time_s / plan.gbs


def find_row(
    columns: Mapping[str, IntArray], job: Job, degrees: Degrees, recompute: str, place: int
) -> int | None:
    """The configuration of these degrees and this recompute mode, its stages on this row of the
    places of a pool; None if it is not legal."""
    modes = [mode.name for mode in job.recompute]
    if recompute not in modes:
        return None
    found = columns["recompute"] == modes.index(recompute)
    if "place" in columns:
        found = found & (columns["place"] == place)
    for name in Degrees.model_fields:
        found = found & (columns[name] == getattr(degrees, name))
    rows = np.flatnonzero(found)
    return int(rows[0]) if len(rows) else None


def status_problems(plan: Plan, peak: float, proof: Proof) -> Iterator[str]:
    """A plan may miss by its gap what some limit proves of all plans as light as `peak`."""
    allowed = OPTIMAL_WITHIN if plan.status == "optimal" else plan.gap
    least = sample_s(plan) * (1.0 - allowed) * (1.0 - SAME)
    if not any(one.limit_bytes >= peak and one.sample_s >= least for one in proof.limits):
        yield f"no limit of the proof shows it {plan.status}"


def missing_problems(
    points: Sequence[tuple[float, float]], proof: Proof, resolution: Resolution
) -> Iterator[str]:
    """Gaps of a complete front of (seconds a sequence, bytes), in which a plan could lie."""
    for (_, heavy), (slow, peak) in pairwise(sorted(points)):
        least = slow / (1.0 + resolution.time + OPTIMAL_WITHIN)
        light = (heavy - resolution.memory_bytes) * (1.0 - SAME)
        if not any(one.limit_bytes >= light and one.sample_s >= least for one in proof.limits):
            yield (
                f"between {heavy:.0f} and {peak:.0f} bytes a plan may be missing from the complete "
                "front"
            )


def same(one: float, other: float) -> bool:
    """Whether two figures are."""
    return abs(one - other) <= SAME * abs(other)
