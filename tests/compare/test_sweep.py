"""Sweeps: nothing lost, nothing twice, the same rows however often they are interrupted."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from planner.compare.offers import Offer
from planner.compare.settings import Settings
from planner.compare.sweep.journal import opened, rows, write
from planner.compare.sweep.run import (
    Engine,
    SearchCounts,
    count,
    demand_answer,
    header,
    run,
    started,
)
from planner.compare.sweep.work import Common, Grid, GridPoint, Pricing, TaskRecord, search_point
from planner.job.errors import CannotTellError, UsageError
from planner.job.request import Request
from planner.search.launchable import SILENT

SETTINGS = Settings()
GRID = Grid(
    axes={
        "model": (("gpt2", {"model": "gpt2"}),),
        "cluster": tuple((name, {"offer": Offer(gpus=name)}) for name in ("1xH100", "2xA100")),
        "gbs": tuple((str(gbs), {"gbs": gbs}) for gbs in (8, 16, 32)),
    },
    price_axes=("price-kind",),
    pricings=tuple(
        Pricing((kind,), 10**9, SETTINGS.model_copy(update={"basis": kind}))
        for kind in ("on_demand", "owned")
    ),
    build=lambda chosen: (
        Request(
            model=chosen["model"], gbs=chosen["gbs"], seq=1024, recompute=("none",),
            limits={"zero": (1,)},
        ),
        chosen["offer"],
    ),
    fixed="",
)  # fmt: skip
HEAD = header(SETTINGS.today)
COMMON = Common(GRID.pricings, SILENT, HEAD["planner"], HEAD["sources"])
Work = Callable[[GridPoint], TaskRecord]


def made_up(point: GridPoint) -> TaskRecord:
    """A record without a search."""
    return {"rows": [{"status": "none", "reason": point.key}] * 2, "provenance": {"seconds": 1.0}}


class Bench:
    """An engine in this process: remembers what it was given, breaks as it is told."""

    def __init__(self, work: Work = made_up, window: int = 3) -> None:
        self.work, self.given = work, list[str]()
        self.engine = Engine(self.submit, window)

    def submit(self, point: GridPoint) -> Future[TaskRecord]:
        future: Future[TaskRecord] = Future()
        self.given.append(point.key)
        try:
            future.set_result(self.work(point))
        except (RuntimeError, CannotTellError) as error:
            future.set_exception(error)
        return future


def sweep(folder: Path, bench: Bench, grid: Grid = GRID) -> SearchCounts:
    with opened(folder) as journal:
        journal.begin(HEAD)
        run(grid, journal, bench.engine)
        write(grid, journal, folder)
        return count(grid, journal)


def table(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / "results.parquet").to_pylist()
    return found


def test_rows_of_real_searches_in_the_order_of_the_grid(tmp_path: Path) -> None:
    assert sweep(tmp_path, Bench(lambda point: search_point(COMMON, point))) == SearchCounts(
        6, 6, 0
    )
    found = table(tmp_path)
    names = [(row["cluster"], row["gbs"], row["price-kind"]) for row in found]
    assert names == [
        (cluster, gbs, kind)
        for cluster in ("1xH100", "2xA100")
        for gbs in ("8", "16", "32")
        for kind in ("on_demand", "owned")
    ]
    assert all(row["status"] == "plan" and row["days"] > 0.0 for row in found)
    assert found[0]["cost"] != found[1]["cost"] and found[0]["days"] == found[1]["days"]
    schema = pq.read_schema(tmp_path / "results.parquet")
    assert schema.metadata[b"sources"].decode() == HEAD["sources"]
    assert schema.field("days").metadata[b"unit"] == b"d"
    again = Bench()
    assert sweep(tmp_path, again) == SearchCounts(6, 6, 0)
    assert again.given == []


def test_no_search_begins_after_the_time_limit(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.begin(HEAD)
        run(GRID, journal, Bench().engine, time_limit_s=0.0)
        assert count(GRID, journal) == SearchCounts(6, 0, 0)
        run(GRID, journal, Bench().engine, time_limit_s=3600.0)
        assert count(GRID, journal) == SearchCounts(6, 6, 0)


def test_what_was_interrupted_goes_on_and_ends_alike(tmp_path: Path) -> None:
    class ThenCtrlC(Bench):
        def submit(self, point: GridPoint) -> Future[TaskRecord]:
            if len(self.given) == 4:
                raise KeyboardInterrupt
            return super().submit(point)

    first, second = ThenCtrlC(window=1), Bench(window=1)
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path / "a", first)
    assert sweep(tmp_path / "a", second) == SearchCounts(6, 6, 0)
    sweep(tmp_path / "b", Bench())
    assert sorted(first.given + second.given) == sorted({GRID.key(index) for index in range(6)})
    written = [(tmp_path / name / "results.parquet").read_bytes() for name in "ab"]
    assert written[0] == written[1]


def test_failures_are_counted_and_tried_again(tmp_path: Path) -> None:
    def fails(point: GridPoint) -> TaskRecord:
        if point.labels[2] == "16":
            raise RuntimeError("no\nluck")
        return made_up(point)

    assert sweep(tmp_path, Bench(fails)) == SearchCounts(6, 4, 2)
    with opened(tmp_path) as journal:
        assert set(journal.failed.values()) == {"RuntimeError: luck"}
    again = Bench()
    assert sweep(tmp_path, again) == SearchCounts(6, 6, 0)
    assert len(again.given) == 2 and len(table(tmp_path)) == 12


def test_nothing_but_failures_ends_it(tmp_path: Path) -> None:
    def fails(_point: GridPoint) -> TaskRecord:
        raise RuntimeError("no such module")

    many = replace(GRID, axes=GRID.axes | {"seed": tuple((str(n), {"n": n}) for n in range(20))})
    bench = Bench(fails)
    with pytest.raises(CannotTellError, match="no such module"):
        sweep(tmp_path, bench, many)
    assert len(bench.given) < 40


def test_only_the_search_that_kills_its_process_fails(tmp_path: Path) -> None:
    def kills(point: GridPoint) -> TaskRecord:
        if point.key == GRID.key(3):
            raise BrokenExecutor("a process was killed")
        return made_up(point)

    bench = Bench(kills)
    assert sweep(tmp_path, bench) == SearchCounts(6, 5, 1) and len(bench.given) == 7
    with opened(tmp_path) as journal:
        assert journal.failed == {GRID.key(3): "its process was killed, twice"}


def test_a_full_disk_keeps_whole_records(tmp_path: Path) -> None:
    def long(_point: GridPoint) -> TaskRecord:
        return {"rows": [{"status": "none", "reason": "x" * 9000}] * 2, "provenance": {}}

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (80_000, hard))
    try:
        with pytest.raises(OSError, match="searches are kept"):
            sweep(tmp_path, Bench(long, window=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with opened(tmp_path) as journal:
        kept = len(journal.done)
        assert 1 < kept < 6 and None not in list(journal.records(journal.done))
    second = Bench(long, window=1)
    assert sweep(tmp_path, second) == SearchCounts(6, 6, 0)
    assert len(second.given) == 6 - kept


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    sweep(tmp_path, Bench())
    with opened(tmp_path) as journal:
        with pytest.raises(UsageError, match="begun with sources"):
            journal.begin(HEAD | {"sources": "other"})
        with pytest.raises(UsageError, match="another sweep writes"), opened(tmp_path):
            pass
    (tmp_path / "journal.sqlite").write_text("no record of anything" * 99)
    with pytest.raises(UsageError, match="not the journal of a sweep"), opened(tmp_path):
        pass
    with pytest.raises(CannotTellError, match="sources"):
        search_point(replace(COMMON, sources="other"), GRID.point(0))


def test_more_values_search_only_what_is_new(tmp_path: Path) -> None:
    sweep(tmp_path, Bench())
    more = replace(GRID, axes=GRID.axes | {"gbs": (*GRID.axes["gbs"], ("64", {"gbs": 64}))})
    bench = Bench()
    assert sweep(tmp_path, bench, more) == SearchCounts(8, 8, 0)
    assert len(bench.given) == 2
    with opened(tmp_path) as journal:
        assert len(list(rows(more, journal))) == 16


def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.compare.sweep.run.ANSWERS_WITHIN_S", 0.2)
    with pytest.raises(CannotTellError, match=r"no cluster answers at 127\.0\.0\.1:9"):
        demand_answer("127.0.0.1:9")
    for address in ("nowhere", "host:port", "http://[", ""):
        with pytest.raises(UsageError, match="write HOST:PORT"):
            demand_answer(address)


def test_processes_of_this_machine_outlive_a_killed_one(tmp_path: Path) -> None:
    """Real processes; one is killed while it works."""

    def kill_first(_what: str, done: int, _total: int) -> None:
        if done == 1:
            (record,) = journal.records(journal.done)
            assert record is not None
            os.kill(record["provenance"]["pid"], 9)

    with opened(tmp_path) as journal, started("local", COMMON, processes=1) as engine:
        journal.begin(HEAD)
        run(GRID, journal, engine, kill_first)
        assert count(GRID, journal) == SearchCounts(6, 6, 0)
