"""Compare measured collectives with the model, and refit the curves of `collectives.toml`.

    python -m tests.fit.collective_fit [ROWS.csv]

ROWS.csv (without it `tests/fit/collectives.csv`) has the columns gpu, nodes, gpus,
collective, payload_bytes, busbw_gb_per_s, time_ms, fabric_or_algorithm. For each
curve come out: fitted parameters beside those that ship, and errors of what ships. Benchmarks that
time each call from Python see a start-up that a queued training step does not; it is fitted too
and does not ship.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hardware.files import shipped_toml
from hardware.link_curves import LinkCurves, load_curve_table, scale_out_curve
from planner.cost.inputs import LinkInputs
from planner.evidence.learn.kernels import collective_s
from planner.job.quantities import signed_share
from planner.predict.links import assemble
from tests.fit.command import one_file, run
from tests.fit.compute_fit import pattern_search

MEBIBYTE = 2.0**20
# Log ratio from which a row's error counts in proportion only, and how far a fit may go.
SOFT = 0.05
MOST_FACTOR = 4.0
START_UP = "start-up"
# What identifies a measurement; a second row with the same is another quantity.
KEY = ["gpu", "nodes", "gpus", "collective", "payload_bytes", "fabric_or_algorithm"]


class Machine(NamedTuple):
    """Kinds of link and nominal rates (bytes/s per GPU and direction) of a benchmarked GPU."""

    scale_up: str
    scale_up_bytes_per_s: float
    fabric: str
    scale_out_bytes_per_s: float
    pair_bytes_per_s: float | None = None


_TABLES = shipped_toml("tests.fit", "searches.toml")
MACHINES = {gpu: Machine(**row) for gpu, row in _TABLES["machines"].items()}


@dataclass(frozen=True)
class CollectiveRow:
    """One measurement: `time_s` of a collective of `payload_bytes` among `gpus`."""

    gpu: str
    nodes: int
    gpus: int
    collective: str
    payload_bytes: float
    time_s: float
    label: str


def link_bytes(collective: str, payload_bytes: float, size: int) -> float:
    """Bytes on a link, the numerator of bus bandwidth (nccl-tests doc/PERFORMANCE.md)."""
    factor = 2.0 if collective == "all_reduce" else 1.0
    return payload_bytes * factor * (size - 1) / size


def read_rows(path: Path) -> list[CollectiveRow]:
    """Measurements of known machines that have a size and a figure; of equal keys the first
    counts."""
    import pandas as pd

    table = pd.read_csv(path, dtype={"fabric_or_algorithm": str})
    has_figure = table["busbw_gb_per_s"].notna() | table["time_ms"].notna()
    known = table["gpu"].isin(MACHINES) & table["payload_bytes"].notna() & has_figure
    records = table[known].drop_duplicates(KEY).fillna({"fabric_or_algorithm": ""})
    return [_row(record) for record in records.to_dict("records")]


def _row(record: dict[Hashable, Any]) -> CollectiveRow:
    time_s = record["time_ms"] * 1e-3
    if math.isnan(time_s):
        moved = link_bytes(record["collective"], record["payload_bytes"], record["gpus"])
        time_s = moved / (record["busbw_gb_per_s"] * 1e9)
    sizes = {name: record[name] for name in KEY[:-1]}
    return CollectiveRow(**sizes, time_s=time_s, label=record[KEY[-1]])


def shipped_links(gpu: str) -> LinkInputs:
    """Link inputs of a benchmarked machine of 8-GPU nodes, with the curves that ship."""
    machine, table = MACHINES[gpu], load_curve_table()
    curves = LinkCurves(
        scale_up=table.scale_up[machine.scale_up],
        scale_out=scale_out_curve(machine.fabric),
        launch_s=table.launch_s,
        host_share=table.host_share,
        straggler_share=table.straggler_share,
    )
    return assemble(
        curves,
        job_gpus=8,
        domain_gpus=8,
        scale_up_bytes_per_s=machine.scale_up_bytes_per_s,
        scale_out_bytes_per_s=machine.scale_out_bytes_per_s,
        host_bytes_per_s=math.inf,
        pair_bytes_per_s=machine.pair_bytes_per_s,
    )


def predict_s(row: CollectiveRow, links: LinkInputs) -> float:
    """Model time of a row, without the benchmark's start-up."""
    if "NVLS off" in row.label or row.label.endswith("ring"):
        links = links._replace(scale_up_reduction_gain=1.0)
    return collective_s(row.collective, row.payload_bytes, row.gpus, row.nodes, links)


@dataclass(frozen=True)
class FitStage:
    """A least-squares fit of `free` fields of one machine's links on its rows, `inside` a node or
    beyond."""

    name: str
    gpu: str
    free: tuple[str, ...]
    inside: bool = True

    def rows(self, row: CollectiveRow) -> bool:
        """Whether a row is one of them."""
        return row.gpu == self.gpu and (row.nodes == 1) == self.inside


STAGES = tuple(FitStage(name, **row) for name, row in _TABLES["links"].items())


def soft_l1(error: float) -> float:
    """Squared below `SOFT`, linear beyond, so that a few odd rows do not decide a fit."""
    return 2.0 * SOFT**2 * (math.sqrt(1.0 + (error / SOFT) ** 2) - 1.0)


def fit_stage(stage: FitStage, rows: Sequence[CollectiveRow]) -> tuple[dict[str, float], float]:
    """Fitted fields and the benchmark's start-up, s: soft-L1 on the log of the time ratio.

    Each within a factor of `MOST_FACTOR` of what ships; starts of 1 us to 1 ms.
    """
    links = shipped_links(stage.gpu)
    start = {field: math.log(getattr(links, field)) for field in stage.free}
    bounds = {
        field: (log - math.log(MOST_FACTOR), log + math.log(MOST_FACTOR))
        for field, log in start.items()
    }
    start[START_UP], bounds[START_UP] = math.log(20e-6), (math.log(1e-6), math.log(1e-3))

    def objective(logs: dict[str, float]) -> float:
        values = {name: math.exp(log) for name, log in logs.items()}
        trial = links._replace(**{field: values[field] for field in stage.free})
        return statistics.fmean(
            soft_l1(math.log((predict_s(row, trial) + values[START_UP]) / row.time_s))
            for row in rows
        )

    fitted = {name: math.exp(log) for name, log in pattern_search(objective, start, bounds).items()}
    return fitted, fitted.pop(START_UP)


def stage_lines(stage: FitStage, rows: Sequence[CollectiveRow]) -> Iterator[str]:
    """Fitted fields beside those that ship, and errors of what ships with the start-up."""
    fields, start_up = fit_stage(stage, rows)
    shipped = shipped_links(stage.gpu)
    yield f"{stage.name}: benchmark start-up {start_up * 1e6:.0f} us"
    for name, value in fields.items():
        yield f"  {name:32} fitted {value:10.4g}  shipped {getattr(shipped, name):10.4g}"
    found = [(predict_s(row, shipped) + start_up) / row.time_s - 1.0 for row in rows]
    yield (
        f"  {len(found)} rows: median error {signed_share(statistics.median(found))}, "
        f"worst {signed_share(max(found, key=abs))}"
    )


def main(arguments: Sequence[str]) -> None:
    """Print the fit and the errors of what ships."""
    rows = read_rows(one_file(arguments, "collectives.csv"))
    for stage in STAGES:
        chosen = [row for row in rows if stage.rows(row) and row.payload_bytes >= MEBIBYTE]
        sys.stdout.write("\n".join(stage_lines(stage, chosen)) + "\n")


if __name__ == "__main__":
    run(main, sys.argv[1:])
