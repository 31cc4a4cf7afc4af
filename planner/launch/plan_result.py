"""The plan file of a launch: the one plan, as it is launched."""

from __future__ import annotations

from dataclasses import replace

from planner._version import __version__
from planner.launch.contract import Launch
from planner.search.result import Counts, SearchResult
from planner.search.search import job_summary


def plan_result(launch: Launch) -> SearchResult:
    """A plan file's content that `planner explain`, `check` and `validate` read."""
    job = launch.job
    if job.cluster.num_gpus != launch.plan.degrees.gpus:
        job = replace(job, cluster=job.cluster.with_gpus(launch.plan.degrees.gpus))
    counts = Counts(
        considered=1, legal=1, fitting=int(launch.plan.fits), solved=0, skipped=0,
        seconds=0.0, costing_seconds=0.0,
    )  # fmt: skip
    return SearchResult(
        planner_version=__version__,
        request=launch.request,
        job=job_summary(job, launch.request),
        counts=counts,
        plans=(launch.plan,),
        proven=False,
    )
