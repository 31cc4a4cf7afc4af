"""The search as people ask for it: with what the launch writers say of its plans."""

from __future__ import annotations

from typing import Any

from planner.job.request import Request
from planner.launch.registry import LAUNCH_NOTES
from planner.search import search
from planner.search.result import SearchResult


def find_plans(request: Request, **options: Any) -> SearchResult:
    """Pareto front of plans, tokens/s against peak memory of a GPU, with a note of which plans
    `planner launch` would refuse; options and errors: `planner.search.search.find_plans`."""
    return search.find_plans(request, launch=LAUNCH_NOTES, **options)
