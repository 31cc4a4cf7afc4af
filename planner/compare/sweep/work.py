"""The points of a sweep, one search each, and the task for one point: the plan to take, in days and
money at every price.

No decision in a task depends on a clock, so a task that runs again, anywhere, gives the same
figures. Things that differ (host, seconds) are kept apart from its rows, as the record's
provenance.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, TypedDict

from planner._version import __version__
from planner.compare.comparison import (
    EnteredOffer,
    check_currencies,
    enter,
    raise_common_problem,
    run_of,
    with_batch,
)
from planner.compare.interval import columns
from planner.compare.offers import Offer, check_providers
from planner.compare.run import facility_kw
from planner.compare.searches import Outcome, Task, search_one
from planner.compare.settings import Settings
from planner.job.errors import CannotTellError
from planner.job.request import Request
from planner.job.written import picked
from planner.predict.plan_text import configuration_text
from planner.search.launchable import LaunchNotes

# A label of an axis, and the options that it sets.
Value = tuple[str, Mapping[str, Any]]

# Lists of names, which the catalogue may lack, have at most this length; lists of numbers may be
# longer.
_TRIED = 100


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Pricing:
    """Tokens and settings that turn a plan into days and money, with their labels."""

    labels: tuple[str, ...]
    tokens: int
    settings: Settings

    @property
    def text(self) -> str:
        """A hash of everything that its figures depend on, except the date, which the journal
        has."""
        settings = self.settings.model_dump_json(exclude={"today"})
        return _hash(repr((self.labels, self.tokens, settings)))


@dataclass(frozen=True)
class GridPoint:
    """One search. `key`: equal for the same search in any grid with the same fixed part."""

    key: str
    labels: tuple[str, ...]
    request: Request
    offer: Offer


@dataclass(frozen=True)
class Grid:
    """Every combination of the axes' values, the last axis varying fastest; points are made when
    they are needed.

    `axes`: name -> values; `price_axes`: names of the labels of `pricings`; `build`: makes the job
    and the offer from a combination's options; `fixed`: everything else that the figures depend on.
    """

    axes: Mapping[str, tuple[Value, ...]]
    price_axes: tuple[str, ...]
    pricings: tuple[Pricing, ...]
    build: Callable[[Mapping[str, Any]], tuple[Request, Offer]]
    fixed: str

    def __len__(self) -> int:
        return prod(len(values) for values in self.axes.values())

    def key(self, index: int) -> str:
        """32 characters that identify a search."""
        return _hash(self.fixed + repr(sorted(repr(one) for _, one in self._values(index))))

    def labels(self, index: int) -> tuple[str, ...]:
        """The labels of a combination, one per axis."""
        return tuple(label for label, _ in self._values(index))

    def point(self, index: int) -> GridPoint:
        """A combination as a search. UsageError for options that contradict each other."""
        return GridPoint(
            self.key(index), self.labels(index), *self.build(merged(self._values(index)))
        )

    def on(self, today: date) -> Grid:
        """The same grid, with prices aged to the given day."""
        pricings = (
            replace(one, settings=one.settings.model_copy(update={"today": today}))
            for one in self.pricings
        )
        return replace(self, pricings=tuple(pricings))

    def _values(self, index: int) -> list[Value]:
        found = []
        for values in reversed(list(self.axes.values())):
            index, place = divmod(index, len(values))
            found.append(values[place])
        return found[::-1]


def merged(values: Iterable[Value]) -> dict[str, Any]:
    """The options of several values in one dictionary."""
    return {key: value for _, options in values for key, value in options.items()}


def check_grid(grid: Grid) -> None:
    """Raise UsageError for an error that every point has. Nothing is searched: the first values of
    each axis are tried on every cluster, with the first values of the other axes."""
    clusters = grid.axes["cluster"]
    first = {name: values[0] for name, values in grid.axes.items()}
    for name, values in grid.axes.items():
        for value in values[: _TRIED if name != "cluster" else 1]:
            chosen = first | {name: value}
            raise_common_problem([_entered(grid, chosen | {"cluster": one}) for one in clusters])
    entries = [_entered(grid, first | {"cluster": one}) for one in clusters]
    for pricing in grid.pricings:
        check_providers(pricing.settings, [entry.offer for entry in entries])
        check_currencies(entries, pricing.settings)


def _entered(grid: Grid, chosen: Mapping[str, Value]) -> EnteredOffer:
    request, offer = grid.build(merged(chosen.values()))
    return enter(offer, with_batch(request)[0], None, None)


# One search at a time per process: workers with several threads would share its memory and cores.
_alone = threading.Lock()


class TaskRecord(TypedDict):
    """The result of a task: a row for each price, and where and when it ran."""

    rows: list[dict[str, Any]]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class Common:
    """The inputs that all tasks share. `planner`, `sources`: version and source hash of the planner
    that began the sweep."""

    pricings: tuple[Pricing, ...]
    launch: LaunchNotes
    planner: str
    sources: str


def search_point(common: Common, point: GridPoint) -> TaskRecord:
    """Search a point. CannotTellError if this machine has another version of the planner; an error
    of the point itself becomes a row with a reason."""
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
    """Raise CannotTellError for another version of the planner: its figures do not belong in the
    same table."""
    if (__version__, sources_hash()) != (common.planner, common.sources):
        raise CannotTellError(
            f"{socket.gethostname()} has trainplan {__version__}, sources {sources_hash()}; the "
            f"sweep was begun with {common.planner}, {common.sources}"
        )


@cache
def sources_hash() -> str:
    """Hash of all code and data that figures are computed from."""
    digest = hashlib.sha256()
    for package in ("constraints", "hardware", "planner"):
        (folder,) = importlib.import_module(package).__path__
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in (".py", ".toml", ".csv", ".tsv"):
                digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _compile_once() -> None:
    """Compile the cost core unless this node already has it; other processes of the node wait for
    it."""
    from filelock import FileLock

    from planner.cost._machine_code import cache_folder, why_not_kept
    from planner.predict.warmup import warm_up

    if why_not_kept():
        return
    with FileLock(cache_folder() / "compiling.lock"):
        warm_up()


def _figures(entry: EnteredOffer, outcome: Outcome | None, pricing: Pricing) -> dict[str, Any]:
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
