"""One task of a sweep: the plan to take at one point, in days and money at every price.

Nothing in it looks at a clock to decide anything, so a task that runs again, anywhere, gives the
same figures. What differs (host, seconds) is the record's provenance, beside its rows.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import socket
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from planner._version import __version__
from planner.compare.comparison import EnteredOffer, enter, run_of, with_batch
from planner.compare.interval import columns
from planner.compare.run import facility_kw
from planner.compare.searches import Outcome, Task, search_one
from planner.compare.sweep.grid import GridPoint, Pricing
from planner.job.errors import CannotTellError
from planner.job.written import picked
from planner.predict.plan_text import configuration_text
from planner.search.launchable import LaunchNotes

# One search at a time in a process: workers with several threads would share its memory and cores.
_alone = threading.Lock()


class TaskRecord(TypedDict):
    """What a task leaves: a row for each price, and where and when it ran."""

    rows: list[dict[str, Any]]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class Common:
    """What all tasks share. `planner`, `sources`: of the planner with which the sweep began."""

    pricings: tuple[Pricing, ...]
    launch: LaunchNotes
    planner: str
    sources: str


def search_point(common: Common, point: GridPoint) -> TaskRecord:
    """Search a point. CannotTellError where this machine has another planner; what is wrong with
    the point itself is a row with a reason."""
    started = time.perf_counter()
    with _alone:
        _demand_same(common)
        _compile_once()
        entry = enter(point.offer, with_batch(point.request)[0], None, None)
        outcome = None if entry.job is None else _searched(entry, common)
    return {
        "rows": [_figures(entry, outcome, pricing) for pricing in common.pricings],
        "provenance": {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "seconds": time.perf_counter() - started,
            "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    }


def _searched(entry: EnteredOffer, common: Common) -> Outcome:
    outcome = search_one(Task(entry.request, only_plans=True, launch=common.launch))
    if outcome.result is not None and outcome.result.stopped:
        raise CannotTellError("the search was interrupted")
    return outcome


def _demand_same(common: Common) -> None:
    """Figures of different planners do not belong into one table."""
    if (__version__, sources_hash()) != (common.planner, common.sources):
        raise CannotTellError(
            f"{socket.gethostname()} has trainplan {__version__}, sources {sources_hash()}; the "
            f"sweep was begun with {common.planner}, {common.sources}"
        )


@cache
def sources_hash() -> str:
    """Hash of all code and data that figures come from."""
    digest = hashlib.sha256()
    for package in ("constraints", "hardware", "planner"):
        (folder,) = importlib.import_module(package).__path__
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in (".py", ".toml", ".csv", ".tsv"):
                digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _compile_once() -> None:
    """Compile the cost core unless the node has it; other processes of the node wait for it."""
    from filelock import FileLock

    from planner.cost._machine_code import cache_folder, why_not_kept
    from planner.predict.warmup import warm_up

    if why_not_kept():
        return
    with FileLock(cache_folder() / "compiling.lock"):
        warm_up()


def _figures(entry: EnteredOffer, outcome: Outcome | None, pricing: Pricing) -> dict[str, Any]:
    """The figures of `columns.toml` that there are."""
    run, reason = run_of(entry, outcome, pricing.tokens, pricing.settings)
    gpus = entry.cluster.num_gpus
    if run is None:
        return {"status": "none", "reason": reason, "num_gpus": gpus}
    plan = run.plan
    return {
        "status": "plan",
        "plan": configuration_text(plan),
        "num_gpus": gpus,
        **picked(
            plan,
            "plan_gbs_tokens=gbs_tokens step_time_s step_time_low_s=step_time.low"
            " step_time_high_s=step_time.high tokens_per_s mfu peak_bytes fit_probability",
        ),
        **columns("days", run.days),
        **columns("cost", run.cost(pricing.settings.basis)),
        "currency": pricing.settings.currency,
        "mwh": run.energy.mwh.value,
        "power_kw": facility_kw(run.energy.drawn_w, gpus),
    }
