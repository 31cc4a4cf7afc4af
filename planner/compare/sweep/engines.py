"""Where the tasks of a sweep run: processes of this machine, or a user's Ray or Dask cluster.

Every engine hands out `concurrent.futures.Future`s, so one loop (`planner.compare.sweep.run`)
serves all. Ray and Dask run a task again where its worker died; here, the loop does.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal
from urllib.parse import urlsplit

from planner.compare.searches import start_worker, threads_of
from planner.compare.sweep.grid import GridPoint
from planner.compare.sweep.work import Common, TaskRecord, search_point
from planner.job.errors import CannotTellError, UsageError, demand_installed

EngineName = Literal["local", "ray", "dask"]
# A cluster that is there answers within this time.
ANSWERS_WITHIN_S = 10.0
# What listens there has let this process in within this time, if it is such a cluster at all.
_LETS_IN_WITHIN_S = 40.0
# Tasks handed out for each that runs on another machine, so that no worker waits for the next.
_AHEAD = 4


@dataclass(frozen=True)
class Engine:
    """`submit` starts a task; `window`: tasks to hand out before the first is back."""

    submit: Callable[[GridPoint], Future[TaskRecord]]
    window: int


@contextmanager
def started(
    name: EngineName, common: Common, *, address: str | None = None, processes: int = 1
) -> Iterator[Engine]:
    """An engine, ended with the block. UsageError for what is not installed or not given,
    CannotTellError for a cluster that does not answer."""
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
    """CannotTellError unless something listens at `HOST:PORT`, `tcp://HOST:PORT` or alike."""
    try:
        parts = urlsplit(address if "://" in address else f"tcp://{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise UsageError(f"--address {address}: write HOST:PORT, as 10.0.0.1:6379")
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
    """What `connect` returns, in time: both libraries may wait without end for a port that is
    open and silent. CannotTellError."""
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
        raise _silent(address, f"no word within {_LETS_IN_WITHIN_S:.0f} s") from None
    except (OSError, RuntimeError) as error:
        raise _silent(address, error) from None


@contextmanager
def _local(common: Common, processes: int) -> Iterator[Engine]:
    """Processes of this machine, each a separate pool: one that dies takes its task alone, and
    another takes its place."""
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
        # One object for all workers, and results that nobody finds again by their arguments.
        shared = client.scatter(common, broadcast=True, hash=False)
        run: Any = partial(client.get_executor(pure=False).submit, search_point, shared)
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        yield Engine(run, _AHEAD * max(1, workers))
