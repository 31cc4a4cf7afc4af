"""Refit of the error bars: spreads of ln(measured / predicted) by family, from measured runs.

    python -m planner.calibrate.residual_fit RUNS.csv|FOLDER > planner/literature/residuals.toml

A family is a framework profile on a GPU architecture, inside one scale-up domain or beyond.
`spread` is the 80 % quantile of the absolute residual over 1.2816: a normal of that spread holds
80 % of them. It includes the family's bias, which is left in the prediction.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
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
_Z = NormalDist().inv_cdf(0.5 + _QUANTILE / 2)


@dataclass(frozen=True, order=True)
class Family:
    """Key of a family; empty fields pool over all values."""

    framework: str = ""
    architecture: str = ""
    nodes: str = ""
    model: str = ""


@dataclass
class Errors:
    """Log residuals of one family, and the sources they are from."""

    time: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)


def spread(residuals: Sequence[float]) -> float:
    """Standard deviation of the normal that holds 80 % of the absolute residuals."""
    ordered = sorted(abs(value) for value in residuals)
    return ordered[math.ceil(_QUANTILE * len(ordered)) - 1] / _Z


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
                errors.time.append(-math.log1p(time))
                errors.sources.add(prediction.row.source)
            peak_gib = prediction.row.number("peak_mem_gib") or 0.0
            if memory is not None and peak_gib >= _SMALLEST_PEAK_GIB:
                errors.memory.append(-math.log1p(memory))
                errors.sources.add(prediction.row.source)
    return table


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
        lines += [f"sources = {sorted(errors.sources)!r}".replace("'", '"'), ""]
    return "\n".join(lines)


def main(paths: Sequence[str]) -> None:
    """Write the file to standard output."""
    rows = [row for path in paths for row in read_rows(Path(path))]
    sys.stdout.write(render(collect(predict_rows(rows))))


if __name__ == "__main__":
    main(sys.argv[1:])
