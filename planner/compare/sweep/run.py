"""The loop of a sweep (hand out what is not done, record what comes back, and count), and the
places where its tasks run: processes of this machine, or a user's Ray or Dask cluster.

Every engine hands out `concurrent.futures.Future`s, so one loop serves all. Ray and Dask run a task
again if its worker died; for local processes, the loop does.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import islice, takewhile
from math import inf
from queue import SimpleQueue
from time import monotonic
from typing import Any, Literal
from urllib.parse import urlsplit

from planner._version import __version__
from planner.compare.searches import Progress, start_worker, threads_of
from planner.compare.sweep.journal import Journal
from planner.compare.sweep.work import (
    Common,
    Grid,
    GridPoint,
    TaskRecord,
    search_point,
    sources_hash,
)
from planner.job.errors import CannotTellError, UsageError, demand_installed

EngineName = Literal["local", "ray", "dask"]
# A running cluster answers within this time.
ANSWERS_WITHIN_S = 10.0
# A running cluster of the right kind lets this process join within this time.
_LETS_IN_WITHIN_S = 40.0
# Tasks handed out per running one on another machine, so that no worker has to wait for the next.
_AHEAD = 4


@dataclass(frozen=True)
class Engine:
    """`submit` starts a task; `window`: number of tasks that may be out at the same time."""

    submit: Callable[[GridPoint], Future[TaskRecord]]
    window: int


@contextmanager
def started(
    name: EngineName, common: Common, *, address: str | None = None, processes: int = 1
) -> Iterator[Engine]:
    """An engine, ended with the block. UsageError for a missing package or address, CannotTellError
    for a cluster that does not answer."""
    if name == "local":
        with _local(common, processes) as engine:
            yield engine
        return
    module = "ray" if name == "ray" else "distributed"
    demand_installed(f"--engine {name} needs", name, module)
    if address is None:
        raise UsageError(f"--engine {name}: give the cluster's --address, as HOST:PORT")
    demand_answer(address)
    with (_ray if name == "ray" else _dask)(common, address) as engine:
        yield engine


def demand_answer(address: str) -> None:
    """Raise CannotTellError unless something listens at the address (`HOST:PORT`, `tcp://HOST:PORT`
    or similar)."""
    try:
        parts = urlsplit(address if "://" in address else f"tcp://{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise UsageError(f"--address {address}: write HOST:PORT, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host, port), ANSWERS_WITHIN_S).close()
    except OSError as error:
        raise _silent(address, error) from None


def _silent(address: str, error: object) -> CannotTellError:
    return CannotTellError(
        f"no cluster answers at {address} ({error}); what is done is kept: start the cluster, or "
        "correct --address, and give the same command again"
    )


def _let_in(connect: Callable[[], Any], address: str) -> Any:
    """The result of `connect`, with a time limit, because both libraries may wait forever for an
    open port that stays silent. CannotTellError."""
    found: Future[Any] = Future()

    def attempt() -> None:
        try:
            found.set_result(connect())
        except BaseException as error:  # noqa: BLE001 (raised again by who waits)
            found.set_exception(error)

    threading.Thread(target=attempt, daemon=True).start()
    try:
        return found.result(_LETS_IN_WITHIN_S)
    except TimeoutError:
        raise _silent(address, f"no answer within {_LETS_IN_WITHIN_S:.0f} s") from None
    except (OSError, RuntimeError) as error:
        raise _silent(address, error) from None


@contextmanager
def _local(common: Common, processes: int) -> Iterator[Engine]:
    """Processes of this machine, each a separate pool: one that dies loses only its own task and is
    replaced."""
    context = multiprocessing.get_context("spawn")
    idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()

    def start() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            1, context, initializer=start_worker, initargs=(threads_of(processes),)
        )

    def submit(point: GridPoint) -> Future[TaskRecord]:
        pool = idle.get()
        try:
            future = pool.submit(search_point, common, point)
        except BrokenProcessPool:
            pool = start()
            future = pool.submit(search_point, common, point)
        future.add_done_callback(lambda _future: idle.put(pool))
        return future

    for _ in range(processes):
        idle.put(start())
    before = set(multiprocessing.active_children())
    try:
        yield Engine(submit, processes)
    finally:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()


@contextmanager
def _ray(common: Common, address: str) -> Iterator[Engine]:
    import ray

    _let_in(partial(ray.init, address, log_to_driver=False, logging_level="ERROR"), address)
    try:
        shared = ray.put(common)
        task = ray.remote(num_cpus=1, max_retries=3)(search_point)

        def submit(point: GridPoint) -> Future[TaskRecord]:
            future: Future[TaskRecord] = task.remote(shared, point).future()
            return future

        yield Engine(submit, _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1))))
    finally:
        ray.shutdown()


@contextmanager
def _dask(common: Common, address: str) -> Iterator[Engine]:
    import distributed

    connect = partial(distributed.Client, address, timeout=ANSWERS_WITHIN_S, set_as_default=False)
    with _let_in(connect, address) as client:
        # One shared object for all workers, without caching of results by their arguments.
        shared = client.scatter(common, broadcast=True, hash=False)
        run: Any = partial(client.get_executor(pure=False).submit, search_point, shared)
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        yield Engine(run, _AHEAD * max(1, workers))


# After this many failures and no success, something is wrong with all searches.
_ALL_FAIL = 20


Batch = list[tuple[GridPoint, TaskRecord | str]]


@dataclass(frozen=True)
class SearchCounts:
    """Numbers of searches of a grid that are done, failed (the next run tries them again), and
    left."""

    total: int
    done: int
    failed: int

    @property
    def left(self) -> int:
        """Searches not tried yet."""
        return self.total - self.done - self.failed


def count(grid: Grid, journal: Journal) -> SearchCounts:
    """The progress of a sweep according to its journal."""
    keys = [grid.key(index) for index in range(len(grid))]
    done = sum(key in journal.done for key in keys)
    return SearchCounts(len(keys), done, sum(key in journal.failed for key in keys))


def header(today: date) -> dict[str, str]:
    """Everything besides its points that the figures of a sweep depend on, including the date,
    because prices age."""
    return {"planner": __version__, "sources": sources_hash(), "today": today.isoformat()}


def run(
    grid: Grid,
    journal: Journal,
    engine: Engine,
    progress: Progress | None = None,
    time_limit_s: float | None = None,
) -> None:
    """Search every point that is not done. A result is in the journal before another point is
    handed out; after `time_limit_s`, none is handed out.

    CannotTellError if the cluster is lost, or if the first searches all fail; OSError if the
    journal cannot be written; KeyboardInterrupt. Earlier records stay.
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
    """Points with their records, or with the reasons why they failed, as they end. A search whose
    process was killed is tried once more."""
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
    if isinstance(error, BrokenExecutor):
        return "its process was killed, twice"
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"
