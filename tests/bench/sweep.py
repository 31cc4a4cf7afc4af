"""`python -m tests.bench.sweep`: what a sweep costs beside its searches, by engine.

Tasks here do nothing, so that all that is left is the loop, the journal with its wait for the disk,
and the engine's way to a worker and back. `--address` measures a Ray or Dask cluster.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from planner.compare.offers import Offer
from planner.compare.settings import Settings
from planner.compare.sweep import run as running
from planner.compare.sweep.journal import FIGURES, opened, read_only, write
from planner.compare.sweep.run import count, header, run
from planner.compare.sweep.work import Common, Grid, GridPoint, Pricing, TaskRecord
from planner.job.request import Request
from planner.search.launchable import SILENT

_SETTINGS = Settings()
_TEXTS = {
    "status": "plan",
    "plan": "tp8 pp4 vpp5 dp16 z1, 1×32, none, tp-overlap",
    "currency": "USD",
}


def nothing(_common: Common, point: GridPoint) -> TaskRecord:
    """A record as large as that of a search."""
    figures = {name: float(hash((point.key, name)) % 10**9) for name in FIGURES}
    row = figures | _TEXTS | {"reason": "", "num_gpus": 64, "plan_gbs_tokens": 4 * 10**6}
    made = {"host": "somewhere", "pid": 1, "seconds": 0.5, "ended_at": "2026-01-01T00:00:00+00:00"}
    return {"rows": [row], "provenance": made}


def _build(chosen: Mapping[str, Any]) -> tuple[Request, Offer]:
    return Request(model="8b", gbs=chosen["gbs"]), Offer(gpus="64xH100")


def _grid(tasks: int) -> Grid:
    return Grid(
        axes={
            "model": (("8b", {}),),
            "cluster": (("64xH100", {}),),
            "gbs": tuple((str(gbs), {"gbs": gbs}) for gbs in range(1, tasks + 1)),
        },
        price_axes=(),
        pricings=(Pricing((), 10**12, _SETTINGS),),
        build=_build,
        fixed="",
    )


@click.command()
@click.option("--engine", type=click.Choice(["local", "ray", "dask"]), default="local")
@click.option("--address")
@click.option("--tasks", type=click.IntRange(1), default=5_000, show_default=True)
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
def main(engine: running.EngineName, address: str | None, tasks: int, processes: int) -> None:
    """Seconds, bytes and memory a task."""
    grid, head = _grid(tasks), header(_SETTINGS.today)
    common = Common(grid.pricings, SILENT, head["planner"], head["sources"])
    running.search_point = nothing  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            opened(folder) as journal,
            running.started(engine, common, address=address, processes=processes) as started,
        ):
            journal.begin(head)
            _timed("hand out, note", tasks, lambda: run(grid, journal, started))
        found: list[Any] = []
        _timed("open again", tasks, lambda: found.append(read_only(folder, folder)))
        _timed("count", tasks, lambda: count(grid, found[0]))
        _timed("write Parquet", tasks, lambda: write(grid, found[0], folder))
        for path in sorted(folder.iterdir()):
            click.echo(f"{path.name:20s} {path.stat().st_size / tasks:10.0f} B a task")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    click.echo(f"{'peak memory':20s} {peak / 1024:10.0f} MiB")


def _timed(what: str, tasks: int, work: Any) -> None:
    wall, used = time.perf_counter(), time.process_time()
    work()
    wall, used = time.perf_counter() - wall, time.process_time() - used
    click.echo(
        f"{what:20s} {wall / tasks * 1e6:10.0f} us a task, {used / tasks * 1e6:.0f} us of CPU"
    )


if __name__ == "__main__":
    main()
