"""Sweeps on Ray and Dask, with workers and drivers that are killed and disks that fill up."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from planner.compare.sweep.journal import read_only
from planner.job.errors import UsageError

pytestmark = pytest.mark.clusters

BIN = Path(sys.executable).parent
WORKERS = 3
SEARCHES = 24
FILE = """tokens = "1B"
recompute = "none"

[grid]
model = ["gpt2", "llama-3.2-1b"]
gpus = ["1..4xH100", "2xA100"]
gbs = [8, 16, 32]
price-kind = ["on_demand", "owned"]
"""
Command = tuple[str, ...]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def dask() -> Iterator[Command]:
    """A scheduler and workers, each a process with one thread."""
    address = f"127.0.0.1:{free_port()}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    host, port = address.split(":")
    scheduler = subprocess.Popen(
        [*_dask("scheduler"), "--host", host, "--port", port, "--no-dashboard"], **quiet
    )  # type: ignore[call-overload]
    _wait_for(host, int(port))
    workers = subprocess.Popen(
        [*_dask("worker"), address, "--nworkers", str(WORKERS), "--nthreads", "1",
         "--no-dashboard"],
        **quiet,
    )  # type: ignore[call-overload]  # fmt: skip
    yield "--engine", "dask", "--address", address
    for process in (workers, scheduler):
        process.terminate()
        process.wait(30)


def _dask(what: str) -> list[str]:
    return [sys.executable, "-m", f"distributed.cli.dask_{what}"]


def _wait_for(host: str, port: int) -> None:
    for _ in range(300):
        try:
            socket.create_connection((host, port), 1.0).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"nothing listens at {host}:{port}")


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A head node that runs so many tasks at a time."""
    port = free_port()
    folder = tmp_path_factory.mktemp("r")
    subprocess.run(
        [BIN / "ray", "start", "--head", f"--port={port}", f"--num-cpus={WORKERS}",
         "--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=100000000",
         "--node-ip-address=127.0.0.1", f"--temp-dir={folder}"],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    yield "--engine", "ray", "--address", f"127.0.0.1:{port}"
    subprocess.run([BIN / "ray", "stop"], check=True, capture_output=True, timeout=60)


@pytest.fixture(params=["local", "ray", "dask"])
def engine(request: pytest.FixtureRequest) -> Command:
    if request.param == "local":
        return "--processes", str(WORKERS)
    found: Command = request.getfixturevalue(request.param)
    return found


class Sweep:
    """One folder, and `planner sweep` in processes of its own."""

    def __init__(self, folder: Path, engine: Command) -> None:
        folder.mkdir(exist_ok=True)
        self.engine, self.path = engine, folder / "grid.toml"
        self.path.write_text(FILE)
        self.folder, self.log = folder / "grid.sweep", folder / "log"

    def start(self) -> subprocess.Popen[bytes]:
        """A sweep whose output goes to `said`."""
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "planner", "sweep", str(self.path), "-q", *self.engine],
                stdout=log,
                stderr=log,
            )

    def said(self) -> str:
        return self.log.read_text()

    def run(self, status: int, seconds: float = 300.0) -> str:
        child = self.start()
        assert child.wait(seconds) == status, self.said()
        return self.said()

    def done(self) -> list[dict[str, object]]:
        try:
            journal = read_only(self.folder, self.path)
        except (OSError, UsageError):  # not yet begun
            return []
        return [record for record in journal.records(journal.done) if record is not None]

    def wait_for(self, searches: int, child: subprocess.Popen[bytes]) -> None:
        for _ in range(2400):
            if len(self.done()) >= searches or child.poll() is not None:
                break
            time.sleep(0.05)
        assert child.poll() is None, self.said()

    def finish(self) -> None:
        """Run to the end: all is done, each search once."""
        assert f"done      {SEARCHES}" in self.run(0)
        assert len(self.done()) == SEARCHES

    def rows(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = pq.read_table(self.folder / "results.parquet").to_pylist()
        return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """Rows of a sweep that nothing disturbs, by one process of this machine."""
    sweep = Sweep(tmp_path_factory.mktemp("quiet"), ("--processes", "1"))
    sweep.finish()
    return sweep.rows()


def kill_a_worker(sweep: Sweep, child: subprocess.Popen[bytes]) -> None:
    provenance: Any = sweep.done()[-1]["provenance"]
    os.kill(provenance["pid"], signal.SIGKILL)
    assert child.wait(300) == 0, sweep.said()


def kill_the_driver(_sweep: Sweep, child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait(60)


def ctrl_c(sweep: Sweep, child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    assert "the same command goes on" in sweep.said()
    assert (sweep.folder / "results.parquet").exists()


@pytest.mark.parametrize("harm", [kill_a_worker, kill_the_driver, ctrl_c])
def test_nothing_lost_and_nothing_twice(
    tmp_path: Path,
    engine: Command,
    expected: list[dict[str, object]],
    harm: Callable[[Sweep, subprocess.Popen[bytes]], None],
) -> None:
    sweep = Sweep(tmp_path, engine)
    child = sweep.start()
    sweep.wait_for(4, child)
    harm(sweep, child)
    sweep.finish()
    assert sweep.rows() == expected


def test_a_full_disk(tmp_path: Path, engine: Command, expected: list[dict[str, object]]) -> None:
    sweep = Sweep(tmp_path, engine)
    child = sweep.start()
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (36_000, 36_000))
    assert child.wait(300) == 74, sweep.said()
    assert "searches are kept" in sweep.said()
    assert 0 < len(sweep.done()) < SEARCHES
    sweep.finish()
    assert sweep.rows() == expected


def test_something_else_that_listens(tmp_path: Path) -> None:
    """A port behind which there is no cluster: an answer within a minute."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        for name in ("dask", "ray"):
            sweep = Sweep(tmp_path / name, ("--engine", name, "--address", address))
            assert "no cluster answers" in sweep.run(3, 90.0)
