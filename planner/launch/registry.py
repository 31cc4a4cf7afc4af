"""Which framework a plan can be launched with, and why a writer refuses one."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from planner.job.errors import UsageError
from planner.job.frameworks.names import target_of_profile
from planner.job.frameworks.targets import TARGETS, Target
from planner.predict.decided import decided_job, decided_request
from planner.search.launchable import LaunchNotes

if TYPE_CHECKING:
    from planner.job.job import Job
    from planner.job.request import Request
    from planner.launch.contract import Writer
    from planner.predict.plan import Plan


def writer_of(target: Target) -> Writer:
    """The module that writes for a target, imported now."""
    return cast("Writer", importlib.import_module(f"planner.launch.{target.module}"))


def job_launch_note(job: Job) -> str | None:
    """Why the framework's writer could launch no plan of the job, and which could; None if it can.

    A profile without a writer (`nanogpt`) is for its figures alone: nothing is said. Figures of
    such a job are worth having (people run forks that have the model), so it is searched.
    """
    target = target_of_profile(job.framework.name)
    refusals = () if target is None else writer_of(target).job_refusals(job)
    if target is None or not refusals:
        return None
    reasons = "; ".join(f"{refusal.reason} (nearest: {refusal.nearest})" for refusal in refusals)
    able = dict.fromkeys(target.profile for target in TARGETS.values() if _launches(target, job))
    others = f". Frameworks that launch it: {', '.join(able)}" if able else ""
    return f"planner launch writes none of these plans for {target.name}: {reasons}{others}"


def launch_note(plans: Sequence[Plan], request: Request, job: Job) -> str | None:
    """Which of a search's plans the framework's writer refuses, and why; None if it takes all.

    Where it takes the job, the rules over shapes leave few: a schedule that was asked for by name.
    """
    from planner.launch.contract import Launch

    whole = job_launch_note(job)
    target = target_of_profile(job.framework.name)
    if whole is not None or target is None:
        return whole
    refused: dict[str, list[int]] = {}
    for number, plan in enumerate(plans, start=1):
        one_decided_job = decided_job(job, plan)
        launch = Launch(plan, decided_request(request, plan), one_decided_job, target.name)
        for refusal in writer_of(target).refusals(launch)[:1]:
            refused.setdefault(refusal.reason, []).append(number)
    if not refused:
        return None
    reasons = [
        f"{'plan' if len(item) == 1 else 'plans'} {', '.join(map(str, item))}: {reason}"
        for reason, item in refused.items()
    ]
    return f"not written by planner launch for {target.name}: " + "; ".join(reasons)


LAUNCH_NOTES = LaunchNotes(job_launch_note, launch_note)


def _launches(target: Target, job: Job) -> bool:
    """Whether the target has the job's model, length, optimizer and precision."""
    from planner.job.frameworks import load_framework
    from planner.job.optimizers import check_optimizer

    profile = load_framework(target.profile)
    if job.precision not in profile.precisions:
        return False
    try:
        check_optimizer(profile, job.optimizer_setting)
    except UsageError:
        return False
    return not writer_of(target).job_refusals(job)
