"""The loop of a sweep: hand out what is not done, note what comes back, and count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass
from datetime import date
from itertools import islice, takewhile
from math import inf
from time import monotonic

from planner._version import __version__
from planner.compare.searches import Progress
from planner.compare.sweep.engines import Engine
from planner.compare.sweep.grid import Grid, GridPoint
from planner.compare.sweep.journal import Journal
from planner.compare.sweep.work import TaskRecord, sources_hash
from planner.job.errors import CannotTellError

# So many failures and nothing else: something is wrong with all of them.
_ALL_FAIL = 20


Batch = list[tuple[GridPoint, TaskRecord | str]]


@dataclass(frozen=True)
class SearchCounts:
    """Searches of a grid that are done, failed (and tried again by the next run), and left."""

    total: int
    done: int
    failed: int

    @property
    def left(self) -> int:
        """Not yet tried."""
        return self.total - self.done - self.failed


def count(grid: Grid, journal: Journal) -> SearchCounts:
    """Where a sweep is, by its journal."""
    keys = [grid.key(index) for index in range(len(grid))]
    done = sum(key in journal.done for key in keys)
    return SearchCounts(len(keys), done, sum(key in journal.failed for key in keys))


def header(today: date) -> dict[str, str]:
    """What all figures of a sweep depend on besides its points; prices age with the date."""
    return {"planner": __version__, "sources": sources_hash(), "today": today.isoformat()}


def run(
    grid: Grid,
    journal: Journal,
    engine: Engine,
    progress: Progress | None = None,
    time_limit_s: float | None = None,
) -> None:
    """Search every point that is not done. Each is in the journal before the next is handed out;
    after `time_limit_s` none is.

    CannotTellError where the cluster is lost, or nothing but failures come back; OSError where the
    journal cannot be written; KeyboardInterrupt. What was noted before stays.
    """
    tell = progress or (lambda _what, _done, _total: None)
    todo = [index for index in range(len(grid)) if grid.key(index) not in journal.done]
    ended, failures = len(grid) - len(todo), 0
    began = ended
    tell("searching", ended, len(grid))
    until = inf if time_limit_s is None else monotonic() + time_limit_s
    points = takewhile(lambda _: monotonic() < until, map(grid.point, todo))
    for batch in _outcomes(engine, points):
        journal.add((point.key, item) for point, item in batch)
        ended += len(batch)
        failures += sum(isinstance(item, str) for _, item in batch)
        point, item = batch[-1]
        tell(f"searched {' '.join(point.labels)}", ended, len(grid))
        if failures == ended - began >= _ALL_FAIL:
            raise CannotTellError(f"the first {failures} searches failed; the last: {item}")


def _outcomes(engine: Engine, points: Iterator[GridPoint]) -> Iterator[Batch]:
    """Points with their records, or why they failed, as they end. What killed its process is tried
    once more."""
    waiting: dict[Future[TaskRecord], GridPoint] = {}
    deaths: set[str] = set()

    def hand_out(some: Iterable[GridPoint]) -> None:
        waiting.update((engine.submit(point), point) for point in some)

    hand_out(islice(points, engine.window))
    while waiting:
        batch, again = [], []
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            point = waiting.pop(future)
            if future.cancelled():
                raise CannotTellError("the cluster was lost; what is done is kept")
            error = future.exception()
            if isinstance(error, BrokenExecutor) and point.key not in deaths:
                deaths.add(point.key)
                again.append(point)
                continue
            batch.append((point, future.result() if error is None else _why(error)))
        if batch:
            yield batch
        hand_out(again)
        hand_out(islice(points, engine.window - len(waiting)))


def _why(error: BaseException) -> str:
    """A failure in one line."""
    if isinstance(error, BrokenExecutor):
        return "its process was killed, twice"
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"
