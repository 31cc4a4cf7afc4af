"""Objections of launch writers to a search's job and plans, supplied by the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.job.job import Job
from planner.job.request import Request
from planner.predict.plan import Plan


# Functions by name, because notes are sent to other processes.
def _no_note(_: Job) -> str | None:
    return None


def _no_notes(_: Sequence[Plan], __: Request, ___: Job) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class LaunchNotes:
    """`of_job`: why the framework's writer could launch no plan of a job. `of_plans`: which plans
    it refuses, and why. None if it accepts them."""

    of_job: Callable[[Job], str | None] = _no_note
    of_plans: Callable[[Sequence[Plan], Request, Job], str | None] = _no_notes


SILENT = LaunchNotes()
