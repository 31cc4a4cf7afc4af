"""Micro-benchmarks as equations: the output of nccl-tests, and tables of matrix products or from
the probe.

A table is a CSV file with the column `kind`: `gemm` (m, n, k), `attention` (batch, seq, heads,
head_dim, causal, backward), `copy` and `optimizer` (bytes read and written) or a collective
(`all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`: bytes, gpus, nodes), and `time_s`.
Without `kind` its rows are products, and `time_us`, `time_ms` or `tflops` may replace `time_s`.

The model's rates of products are those of continuous load, so a short benchmark is compared with
the share of the peak that short ones reach (`max_share`). Similar benchmarks share their errors, so
the median of one kind and order of magnitude counts once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from hardware.curves import load_compute_curves
from hardware.errors import HardwareError
from hardware.files import csv_table, read_text
from hardware.schema import Cluster
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.evidence.learn.kernels import collective_s, kernel_s
from planner.evidence.learn.linear import Equations, Factors, tangent
from planner.evidence.learn.logs import text_lines
from planner.evidence.runs.rows import grouped
from planner.job.errors import UsageError
from planner.predict.calibrated import calibrated
from planner.predict.cost_tables import gpu_inputs, half_precision
from planner.predict.links import link_inputs

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
KINDS = ("gemm", "attention", "copy", "optimizer", *COLLECTIVES)
_RANK = re.compile(r"^#\s*Rank\s+\d+\s.*?\bon\s+(\S+)\s+device")
_TEST = re.compile(r"(all_reduce|all_gather|reduce_scatter|alltoall)(?:_perf)?")
_TIMES = {"time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6}
# Shortest time of a kernel, s.
_SHORTEST_S = 1e-9
_NEEDED = {
    "gemm": ("m", "n", "k"),
    "attention": ("batch", "seq", "heads", "head_dim"),
    "copy": ("bytes",),
    "optimizer": ("bytes",),
} | dict.fromkeys(COLLECTIVES, ("bytes", "gpus"))


@dataclass(frozen=True, slots=True)
class Bench:
    """One timed kernel or collective. `sizes`: its sizes, under the column names of a benchmark
    table (see the module)."""

    kind: str
    sizes: Mapping[str, float]
    time_s: float

    @property
    def alike(self) -> tuple[str, int]:
        """Benchmarks with the same pair count as similar: the kind, and the power of ten of the
        seconds (-3 for 1 ms to 10 ms)."""
        return self.kind, math.floor(math.log10(self.time_s))


def is_nccl_output(path: Path) -> bool:
    """Whether one of a file's first lines is from nccl-tests."""
    beginnings = ("# nThread", "# nccl-tests", "# Collective test starting")
    return any(line.startswith(beginnings) for line in islice(text_lines(path), 2002))


def is_bench_table(path: Path) -> bool:
    """Whether a CSV file has the header of a benchmark table."""
    header = next(iter(text_lines(path)), "").lower().strip().split(",")
    return "kind" in header or {"m", "n", "k"} <= set(header)


def _collective(text: str) -> str | None:
    """The collective that a line or a file name mentions; None for any other test."""
    match = _TEST.search(text)
    return match and match[1].replace("alltoall", "all_to_all")


def read_nccl(path: Path) -> list[Bench]:
    """Parse the rows of nccl-tests (out of place). The output or the file name tells the
    collective; tests of other collectives are skipped. UsageError."""
    hosts: list[str] = []
    found: list[Bench] = []
    kind, told, time_at = _collective(path.name), False, 5
    for line in text_lines(path):
        if match := _RANK.match(line):
            hosts.append(match[1])
        elif line.startswith("# Using devices"):
            hosts = []
        elif "test starting" in line:
            kind, told = _collective(line), True
        elif line.startswith("#"):
            words = line.split()
            # Old versions print no root before the time.
            time_at = words.index("time") - 1 if {"size", "time"} <= set(words) else time_at
        elif (cells := line.split()) and len(cells) >= 8 and cells[0].isdecimal():
            if kind is None and not told:
                raise UsageError(
                    f"{path}: nothing says which collective it is; name the file after its test, "
                    "for example all_reduce_perf.txt"
                )
            found += _nccl_row(cells, kind, hosts, time_at)
    if not found:
        raise UsageError(
            f"{path}: no row of nccl-tests with a time above 0 of {', '.join(COLLECTIVES)}"
        )
    if len(hosts) < 2:
        raise UsageError(f"{path}: fewer than two `# Rank` lines: keep nccl-tests' header")
    return found


def _nccl_row(
    cells: Sequence[str], kind: str | None, hosts: Sequence[str], time_at: int
) -> Iterator[Bench]:
    """The benchmark in one row of nccl-tests' output. Nothing if the test is of another collective,
    or if the row has no positive size or time. `hosts`: the host of each rank; `time_at`: index of
    the cell with the time, in microseconds."""
    sent, seconds = _finite(cells[0]), _finite(cells[time_at]) * 1e-6
    if kind and seconds > 0.0 and sent > 0.0:
        sizes = {"bytes": sent, "gpus": float(len(hosts)), "nodes": float(len(set(hosts)))}
        yield Bench(kind, sizes, seconds)


def read_table(path: Path) -> list[Bench]:
    """Parse the rows of a benchmark table. UsageError names line and column."""
    try:
        rows = list(csv_table(read_text(path), str(path))[1])
    except HardwareError as error:
        raise UsageError(str(error)) from None
    found = [_bench(path, line, cells) for line, cells in rows]
    if not found:
        raise UsageError(f"{path}: a header, but no benchmark below it")
    return found


def _bench(path: Path, line: int, cells: Mapping[str, str]) -> Bench:
    kind = (cells.get("kind") or "gemm").strip()
    if kind not in KINDS:
        raise UsageError(f"{path} line {line}: kind {kind!r} is not one of {', '.join(KINDS)}")
    sizes = {
        name: _finite(text)
        for name, text in cells.items()
        if name and text and name not in ("kind", "source")
    }
    for name in _NEEDED[kind]:
        if not sizes.get(name, 0.0) > 0.0:
            raise UsageError(f"{path} line {line}, column {name}: {kind} needs a number above 0")
    seconds = _seconds(kind, sizes)
    if not _SHORTEST_S <= seconds < math.inf:
        raise UsageError(
            f"{path} line {line}: needs time_s, time_ms or time_us of at least a nanosecond, "
            "or tflops for a product"
        )
    return Bench(kind, sizes, seconds)


def _seconds(kind: str, sizes: Mapping[str, float]) -> float:
    for name, unit in _TIMES.items():
        if name in sizes:
            return sizes[name] * unit
    rate = sizes.get("tflops", 0.0) * 1e12
    flop = 2.0 * sizes.get("m", 0.0) * sizes.get("n", 0.0) * sizes.get("k", 0.0)
    return flop / rate if kind == "gemm" and rate > 0.0 else math.nan


def _finite(text: str) -> float:
    """A number; NaN for text that is not a number, or for a value that no benchmark has."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if abs(number) < 1e18 else math.nan


def predicted_s(bench: Bench, gpu: GpuInputs, links: LinkInputs) -> float:
    """The model's seconds for a benchmark."""
    one = bench.sizes
    match bench.kind:
        case "gemm":
            shape = (one["m"], one["n"], one["k"], one.get("batch", 1.0), 2.0)
            return kernel_s("gemm", shape, gpu)
        case "attention":
            width, length = one["head_dim"], one["seq"]
            causal, backward = one.get("causal", 1.0), one.get("backward", 0.0)
            sides = (one["batch"], length, length, one["heads"], width, width, causal, 0.0)
            return kernel_s("attention", (*sides, backward), gpu)
        case "copy" | "optimizer":
            return gpu.kernel_floor_s + one["bytes"] / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)
        case _:
            nodes = max(1, round(one.get("nodes", 1.0)))
            return collective_s(bench.kind, one["bytes"], round(one["gpus"]), nodes, links)


def bench_inputs(cluster: Cluster, factors: Factors) -> tuple[GpuInputs, LinkInputs]:
    """Inputs for predicting benchmarks on a cluster, with short products at their maximum rate."""
    gpu, half = cluster.gpu, half_precision(cluster.gpu)
    share = load_compute_curves(gpu).max_share(half)
    plain = gpu_inputs(gpu, half, "auto")
    short = plain._replace(gemm_max_efficiency=share, gemm16_max_efficiency=share)
    links = calibrated(link_inputs(cluster), "links", factors)
    return calibrated(short, "gpu", factors), links


def bench_equations(benches: Sequence[Bench], cluster: Cluster) -> Equations:
    """One equation of the step time's parameters for each kind and order of magnitude."""

    def logs(factors: Factors) -> np.ndarray:
        gpu, links = bench_inputs(cluster, factors)
        return np.log([predicted_s(bench, gpu, links) for bench in benches])

    base, slopes = tangent(logs, "time")
    measured = np.log([bench.time_s for bench in benches])
    alike = grouped(range(len(benches)), lambda index: benches[index].alike).values()
    residuals, middles = (
        np.array([np.median(values[members], axis=0) for members in alike])
        for values in (measured - base, slopes)
    )
    return Equations("time", residuals, middles)
