"""Refit of the error bars: spreads of ln(measured / predicted) by family, from measured runs.

    python -m planner.calibrate.residual_fit RUNS.csv|FOLDER > planner/literature/residuals.toml

A family is a framework profile on a GPU architecture, inside one scale-up domain or beyond, of
dense or MoE models. `spread` is the 80 % quantile of the absolute residual over 1.2816: a normal of
that spread holds 80 % of them. It includes the family's bias, which is left in the prediction.
A source weighs as the square root of its rows: rows of one source share much of their error.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from statistics import NormalDist

from planner.measured.predict import Prediction, predict_rows
from planner.measured.report import memory_error, time_error
from planner.measured.rows import read_rows

# Fewer rows than this make no family of their own.
SMALLEST_FAMILY = 5
# Unit-test sized models whose step is CPU time and logging: no guide to a real run.
_TIMES_NOT_USED = frozenset({"megatron-ci-golden"})
# Below this a peak is mostly what libraries allocate, not the model.
_SMALLEST_PEAK_GIB = 8.0
_QUANTILE = 0.80
_ROUNDING = 1e-9
_Z = NormalDist().inv_cdf(0.5 + _QUANTILE / 2)


@dataclass(frozen=True, order=True)
class Family:
    """Key of a family; empty fields pool over all values."""

    framework: str = ""
    architecture: str = ""
    nodes: str = ""
    model: str = ""


# A log residual and the source of its row.
Residual = tuple[float, str]


@dataclass
class Errors:
    """Log residuals of one family."""

    time: list[Residual] = field(default_factory=list)
    memory: list[Residual] = field(default_factory=list)

    @property
    def sources(self) -> list[str]:
        """The sources that the residuals are from."""
        return sorted({source for _, source in (*self.time, *self.memory)})


def spread(residuals: Sequence[Residual]) -> float:
    """Standard deviation of the normal that holds 80 % of the absolute residuals.

    A source weighs as the square root of its rows.
    """
    rows = Counter(source for _, source in residuals)
    ordered = sorted((abs(value), rows[source] ** -0.5) for value, source in residuals)
    wanted = _QUANTILE * sum(weight for _, weight in ordered) * (1.0 - _ROUNDING)
    for (value, _), reached in zip(
        ordered, accumulate(weight for _, weight in ordered), strict=True
    ):
        if reached >= wanted:
            return value / _Z
    return ordered[-1][0] / _Z


def families_of(prediction: Prediction) -> Iterable[Family]:
    """The families that a row belongs to, narrowest first."""
    if prediction.mapped is None:
        return
    job = prediction.mapped.job
    name, architecture = job.framework.name, job.cluster.gpu.architecture
    inside = job.cluster.num_gpus <= job.cluster.scale_up_domain_gpus
    scale = "one domain" if inside else "several domains"
    model = "moe" if job.model.moe else "dense"
    yield Family(name, architecture, scale, model)
    yield Family(name, architecture, "", model)
    yield Family(name, architecture)
    yield Family("", architecture, "", model)
    yield Family("", architecture)
    yield Family(name, "", "", model)
    yield Family(name)
    yield Family()


def collect(predictions: Iterable[Prediction]) -> dict[Family, Errors]:
    """Log residuals by family."""
    table: dict[Family, Errors] = defaultdict(Errors)
    for prediction in predictions:
        time, memory = time_error(prediction), memory_error(prediction)
        for family in families_of(prediction):
            errors = table[family]
            if time is not None and prediction.row.source not in _TIMES_NOT_USED:
                errors.time.append((-math.log1p(time), prediction.row.source))
            if memory is not None and _tests_memory(prediction):
                errors.memory.append((-math.log1p(memory), prediction.row.source))
    return table


def _tests_memory(prediction: Prediction) -> bool:
    """Whether a peak says something of the memory model: large, and of a stated recompute mode."""
    peak_gib = prediction.row.number("peak_mem_gib") or 0.0
    return peak_gib >= _SMALLEST_PEAK_GIB and prediction.row.text("recompute") is not None


def render(table: dict[Family, Errors]) -> str:
    """The TOML file."""
    lines = [
        "# How far predictions lie from measurements: spread of ln(measured / predicted) by family",
        "# (framework, GPU architecture, inside one scale-up domain or beyond, dense or MoE). Keys",
        "# that are left out pool over all values; the narrowest family that has rows is used.",
        f"# Written {datetime.now(UTC):%Y-%m-%d} by: python -m planner.calibrate.residual_fit DATA",
        "",
    ]
    for family in sorted(table):
        errors = table[family]
        if max(len(errors.time), len(errors.memory)) < SMALLEST_FAMILY:
            continue
        lines += ["[[family]]"]
        for name in ("framework", "architecture", "nodes", "model"):
            if value := getattr(family, name):
                lines.append(f'{name} = "{value}"')
        for name in ("time", "memory"):
            values = getattr(errors, name)
            if len(values) >= SMALLEST_FAMILY:
                lines.append(f"spread_log_{name} = {spread(values):.3f}")
                lines.append(f"{name}_rows = {len(values)}")
        lines += [f"sources = {errors.sources!r}".replace("'", '"'), ""]
    return "\n".join(lines)


def main(paths: Sequence[str]) -> None:
    """Write the file to standard output."""
    rows = [row for path in paths for row in read_rows(Path(path))]
    sys.stdout.write(render(collect(predict_rows(rows))))


if __name__ == "__main__":
    main(sys.argv[1:])
