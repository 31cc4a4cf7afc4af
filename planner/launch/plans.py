"""The search as people ask for it: with what the launch writers say of its plans."""

from __future__ import annotations

from typing import Any

from planner._version import __version__
from planner.job.job import Job
from planner.job.request import Request
from planner.launch.registry import LAUNCH_NOTES
from planner.predict.plan import Plan
from planner.search import search
from planner.search.result import Counts, SearchResult


def find_plans(request: Request, **options: Any) -> SearchResult:
    """Pareto front of plans, tokens/s against peak memory of a GPU, with a note of which plans
    `planner launch` would refuse; options and errors: `planner.search.search.find_plans`."""
    return search.find_plans(request, launch=LAUNCH_NOTES, **options)


def one_plan(plan: Plan, request: Request, job: Job) -> SearchResult:
    """What a plan file holds of a plan that no search found; `job` is `request` resolved."""
    counts = Counts(
        considered=1, legal=1, fitting=int(plan.fits), solved=0, skipped=0,
        seconds=0.0, costing_seconds=0.0,
    )  # fmt: skip
    return SearchResult(
        planner_version=__version__,
        request=request,
        job=search.job_summary(job, request),
        counts=counts,
        plans=(plan,),
        proven=False,
    )
