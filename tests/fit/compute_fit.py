"""Compare measured kernels with the model, and refit the curves of `compute.toml`.

    python -m tests.fit.compute_fit [OP_EFFICIENCY.csv]

OP_EFFICIENCY.csv (without it `tests/fit/operators.csv`: MooreThreads/SimuMax,
configs/system, Apache-2.0) has the columns of SimuMax's operator benchmarks: gpu, op (matmul,
group_matmul, sdp_fwd, sdp_bwd), peak_tflops, efficiency (share of that peak; attention counts the
full square though its mask is causal) and the shape. Attention kernels of H100 come from the
figures that lie beside this file. Two tables come out: fitted parameters beside those that ship,
and errors of what ships, by operator.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware.files import shipped_text, shipped_toml
from hardware.load import load_gpu
from planner.cost.inputs import GpuInputs
from planner.evidence.learn.kernels import kernel_s
from planner.predict.cost_tables import gpu_inputs
from tests.fit.command import one_file, run

Array = NDArray[np.float64]
CATALOGUE_NAMES = {"B200-SXM": "B200-SXM-180GB"}
# Attention kernel that a benchmark of the file ran (cuDNN through Transformer Engine on B200).
ATTENTION = {"A100-PCIe-80GB": "flash2", "B200-SXM-180GB": "flash3_or_cudnn"}
FIGURE_KERNELS = {"flash2": "flash2", "flash3": "flash3_or_cudnn", "cudnn": "flash3_or_cudnn"}
OUTPUT_BYTES = {("False", "bf16"): 2.0, ("True", "bf16"): 4.0, ("True", "fp32"): 8.0}


class Measurement(NamedTuple):
    """A timed kernel: `family` gemm, grouped or attention; `shape` as `kernel_s` takes it."""

    gpu: str
    family: str
    label: str
    shape: tuple[float, ...]
    time_s: float


@dataclass(frozen=True)
class Search:
    """Parameters fitted together on one family of kernels, each with its bounds."""

    family: str
    bounds: dict[str, tuple[float, float]] = field(hash=False)


_LIMITS = shipped_toml("tests.fit", "searches.toml")
SEARCHES = tuple(Search(family, bounds) for family, bounds in _LIMITS["kernels"].items())
FIGURE_SEARCH = Search("attention", _LIMITS["kernels"]["attention"] | _LIMITS["figures"])


def _gemm(row: dict[str, str], peak: float) -> tuple[str, tuple[float, ...], float]:
    batch, m, n, k = (float(row[name]) for name in ("b", "m", "n", "k"))
    output = OUTPUT_BYTES[row["accumulate"], row["out_dtype"]]
    label = f"{row['layout']} {row['out_dtype']}"
    return label, (m, n, k, batch, output), 2.0 * batch * m * n * k / peak


def _grouped(row: dict[str, str], peak: float) -> tuple[str, tuple[float, ...], float]:
    groups, m, n, k = (float(row[name]) for name in ("ng", "M", "N", "K"))
    weight = row["stage"] == "bwd_grad_w"
    output = OUTPUT_BYTES[row["accumulate"], row["main_grad_dtype"] if weight else "bf16"]
    width, depth = (k, n) if row["stage"] == "bwd_grad_act" else (n, k)
    shape = (groups * m, groups, width, depth, output, float(weight))
    return row["stage"], shape, 2.0 * groups * m * n * k / peak


def _attention(row: dict[str, str], peak: float) -> tuple[str, tuple[float, ...], float]:
    names = ("batch", "seq_len", "head_num", "qk_head_dim", "v_head_dim")
    batch, seq, heads, qk, v = (float(row[name]) for name in names)
    backward = row["op"] == "sdp_bwd"
    flop = (5.0 if backward else 2.0) * batch * seq**2 * heads * (qk + v)
    shape = (batch, seq, seq, heads, qk, v, 1.0, 0.0, float(backward))
    return f"{row['op']} {qk:g}", shape, flop / peak


_READERS = {
    "matmul": ("gemm", _gemm),
    "group_matmul": ("grouped", _grouped),
    "sdp_fwd": ("attention", _attention),
    "sdp_bwd": ("attention", _attention),
}


def read_operators(path: Path) -> list[Measurement]:
    """Measurements of a file of operator efficiencies."""
    found = []
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        gpu = CATALOGUE_NAMES.get(row["gpu"], row["gpu"])
        family, reader = _READERS[row["op"]]
        label, shape, at_peak_s = reader(row, float(row["peak_tflops"]) * 1e12)
        found.append(Measurement(gpu, family, label, shape, at_peak_s / float(row["efficiency"])))
    return found


def read_figures(kernel: str) -> list[Measurement]:
    """Attention of one kernel from published figures: 16k tokens, 2048 wide, any length."""
    text = shipped_text("tests.fit", "attention_figures.csv")
    rows = csv.DictReader(text.splitlines())
    return [_figure(row) for row in rows if FIGURE_KERNELS[row["kernel"]] == kernel]


def _figure(row: dict[str, str]) -> Measurement:
    seq, width, causal = float(row["seq"]), float(row["head_dim"]), float(row["causal"])
    backward = row["direction"] == "backward"
    batch, heads = 16384.0 / seq, 2048.0 / width
    flop = (10.0 if backward else 4.0) * batch * heads * seq**2 * width / (1.0 + causal)
    shape = (batch, seq, seq, heads, width, width, causal, 0.0, float(backward))
    label = f"{row['kernel']} {row['direction']} {width:g}{' causal' if causal else ''}"
    time_s = flop / (float(row["tflop_per_s"]) * 1e12)
    return Measurement(row["gpu"], "attention", label, shape, time_s)


def ratios(measurements: Sequence[Measurement], gpu: GpuInputs) -> Array:
    """Predicted over measured time of measurements of one family."""
    return np.array([kernel_s(one.family, one.shape, gpu) / one.time_s for one in measurements])


def loss(measurements: Sequence[Measurement], gpu: GpuInputs) -> float:
    """Mean |log(predicted/measured)|: robust against rows taken at another clock."""
    return float(np.mean(np.abs(np.log(ratios(measurements, gpu)))))


def with_values(gpu: GpuInputs, values: dict[str, float]) -> GpuInputs:
    """`gpu` with parameters replaced; the linear layers of the benchmarks run in 16 bit."""
    changed = gpu._replace(**values)
    return changed._replace(gemm_max_efficiency=changed.gemm16_max_efficiency)


def pattern_search(
    objective: Callable[[dict[str, float]], float],
    start: dict[str, float],
    bounds: dict[str, tuple[float, float]],
    rounds: int = 60,
) -> dict[str, float]:
    """Minimise over a box: try a step each way along each axis, halve the steps that fail.

    Hooke and Jeeves, Direct search (JACM 8(2), 1961), without the pattern move.
    """
    best = {name: min(max(start[name], low), high) for name, (low, high) in bounds.items()}
    value = objective(best)
    steps = {name: (high - low) / 4.0 for name, (low, high) in bounds.items()}
    for _ in range(rounds):
        for name, (low, high) in bounds.items():
            trials = [
                {**best, name: min(max(best[name] + sign * steps[name], low), high)}
                for sign in (-1.0, 1.0)
            ]
            scored = [(objective(trial), trial) for trial in trials]
            winner = min(scored, key=lambda pair: pair[0])
            if winner[0] < value:
                value, best = winner
            else:
                steps[name] /= 2.0
    return best


def fitted_parameters(
    measurements: Sequence[Measurement], gpu: GpuInputs, search: Search
) -> dict[str, float]:
    """Parameters of `search` that fit the measurements best, from those that ship."""

    def objective(values: dict[str, float]) -> float:
        return loss(measurements, with_values(gpu, values))

    start = {name: float(getattr(gpu, name)) for name in search.bounds}
    return pattern_search(objective, start, search.bounds)


def shipped_inputs(gpu: str, attention: str = "auto") -> GpuInputs:
    """What the planner uses today for a GPU of the catalogue in bf16."""
    return gpu_inputs(load_gpu(gpu), "bf16", attention)


def summary(name: str, values: Array) -> str:
    """One line: rows, median and 90th percentile of |error|, median error, of time ratios."""
    errors = values - 1.0
    spread = np.abs(errors)
    return (
        f"{name:<44} {len(errors):>4}  {np.median(spread):6.1%}  {np.quantile(spread, 0.9):6.1%}"
        f"  {np.median(errors):+6.1%}"
    )


def error_lines(measurements: Sequence[Measurement], gpu: GpuInputs) -> Iterable[str]:
    """Errors of one GPU and family: of all rows, and by label."""
    values = ratios(measurements, gpu)
    yield summary(f"{measurements[0].gpu} {measurements[0].family}", values)
    labels = np.array([each.label for each in measurements])
    for label in dict.fromkeys(labels):
        yield summary(f"  {label}", values[labels == label])


def lines(measurements: Sequence[Measurement], gpu: GpuInputs, search: Search) -> Iterable[str]:
    """Errors of one GPU and family, then fitted parameters beside the shipped ones."""
    yield from error_lines(measurements, gpu)
    for name, value in fitted_parameters(measurements, gpu, search).items():
        yield f"    {name:<36} fitted {value:<10.4g} ships {getattr(gpu, name):.4g}"


def output_lines(path: Path) -> Iterable[str]:
    """All lines of the command's output."""
    yield f"{'':<44} rows  median     90 %    bias"
    for kernel in dict.fromkeys(FIGURE_KERNELS.values()):
        figures = read_figures(kernel)
        yield from lines(figures, shipped_inputs(figures[0].gpu, kernel), FIGURE_SEARCH)
    operators = read_operators(path)
    for name in dict.fromkeys(each.gpu for each in operators):
        gpu = shipped_inputs(name, ATTENTION.get(name, "auto"))
        for search in SEARCHES:
            rows = [each for each in operators if (each.gpu, each.family) == (name, search.family)]
            if rows:
                yield from lines(rows, gpu, search)


def main(arguments: Sequence[str]) -> None:
    """Print the report for the file named on the command line."""
    for line in output_lines(one_file(arguments, "operators.csv")):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    run(main, sys.argv[1:])
