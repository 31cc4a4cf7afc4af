"""The training objective of a measured run."""

from __future__ import annotations

from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow, named
from planner.job.errors import UsageError
from planner.job.frameworks.losses import demand_objective
from planner.job.frameworks.profile import FrameworkProfile
from planner.job.objective import Objective, read_objective
from planner.job.tuning import Tuning


def objective_of(row: MeasuredRow, tuning: Tuning, profile: FrameworkProfile) -> Objective:
    """The row's objective. UnpredictableRowError if it is not modelled, or if its framework is not
    known to support it."""
    kind = named("objective", row.fact("tuning")) or "lm"
    place = row.fact("reference").strip()
    text = f"{kind}:reference={place}" if place and kind != "lm" else kind
    try:
        objective = read_objective(text, adapters=tuning.has_adapters)
        demand_objective(profile, objective)
    except UsageError as error:
        raise UnpredictableRowError(str(error).partition(";")[0]) from None
    return objective
