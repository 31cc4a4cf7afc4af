"""Fits the covariance of errors inside sweeps (`planner.tune.errors`) to published runs.

    python -m tests.fit.sweep_fit [RUNS.csv|FOLDER ...] > planner/tune/errors.toml

A sweep is the runs of one source that agree in all that makes a group of a replay, four or more.
The scales are those under which the sweeps' ln(measured / predicted), by constants that leave the
source out, are likeliest: the mean log density of a run, over a sweep's runs, over a source's
sweeps (each weighs as the square root of its runs) and over sources (as the square root of theirs).
The weights of distances are held near `_USUAL` by a weak prior, so that what no sweep varies stays
there. `folds` are fitted without a tenth of the sources each, beginning anew.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from hardware.calibration import parameters_of
from planner.evidence.learn.priors import Published, fitted_prior, published
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.rows import TUNED_RUNS, grouped, read_rows
from planner.job.written import toml_text
from planner.predict.uncertainty.residuals import FOLDS, fold_of
from planner.tune.errors import (
    AXES,
    SCALES,
    Array,
    ErrorScales,
    distances_of,
    log_odds_of_scales,
    mean_half_width,
)
from planner.tune.groups import group_of
from tests.fit.command import rows_of_errors, run

COMMAND = "python -m tests.fit.sweep_fit"
_FEWEST = 4
_START = (1.4, 0.3, 0.1)
_USUAL, _HELD = 0.2, 8e-4
_START_WEIGHTS = (0.4, 0.2, 0.2, 0.4, 0.15, 0.4, 0.5, 0.4)
_ROUNDS, _STEP = 5, 0.7
_LEAST_GAIN = 1e-6


@dataclass(frozen=True)
class Sweep:
    """A source's runs of one job on one cluster: ln(measured / predicted) in half widths of their
    bars, (runs,), slopes by the cluster's rates, and distances."""

    source: str
    residuals: Array
    slopes: Array
    distances: dict[str, Array]

    def log_density(self, scales: ErrorScales) -> float:
        """Of a run of the sweep, the mean."""
        values, vectors = np.linalg.eigh(scales.covariance(self.slopes, self.distances))
        values, count = np.maximum(values, 1e-8), len(self.residuals)
        squares = float(((vectors.T @ self.residuals) ** 2 / values).sum())
        logs = log_odds_of_scales() - count * np.log(SCALES) - 0.5 * squares / SCALES**2
        constant = 0.5 * (float(np.log(values).sum()) + count * np.log(2.0 * np.pi))
        return float((np.logaddexp.reduce(logs) - constant) / count)


def sweeps_of(runs: Published) -> list[Sweep]:
    """Every sweep of published runs."""
    places = grouped(range(len(runs.predictions)), lambda at: group_of(runs.predictions[at].row))
    found = []
    for group, at in places.items():
        if len(at) < _FEWEST:
            continue
        predictions = [runs.predictions[index] for index in at]
        residuals = runs.equations.residuals[at] / mean_half_width(predictions)
        slopes = runs.equations.slopes[at]
        found.append(Sweep(group.source, residuals, slopes, distances_of(predictions)))
    return found


def fitted(sweeps: Sequence[Sweep], spreads: Array) -> ErrorScales:
    """The likeliest scales: each number in turn by a step that halves where neither way helps."""
    logs = np.log([*_START, *_START_WEIGHTS])
    steps, best = np.full(len(logs), _STEP), _score(sweeps, logs, spreads)
    for _ in range(_ROUNDS):
        for place in range(len(logs)):
            for sign in (1.0, -1.0):
                tried = logs.copy()
                tried[place] += sign * steps[place]
                score = _score(sweeps, tried, spreads)
                if score > best + _LEAST_GAIN:
                    logs, best = tried, score
                    break
            else:
                steps[place] *= 0.5
    return _scales(logs, spreads)


def _scales(logs: Array, spreads: Array) -> ErrorScales:
    physics, likeness, alone, *weights = (round(float(one), 4) for one in np.exp(logs))
    return ErrorScales(physics, likeness, alone, dict(zip(AXES, weights, strict=True)), spreads)


def _score(sweeps: Sequence[Sweep], logs: Array, spreads: Array) -> float:
    scales, total, mass = _scales(logs, spreads), 0.0, 0.0
    for members in grouped(sweeps, lambda one: one.source).values():
        weights = np.sqrt([len(one.residuals) for one in members])
        densities = np.array([one.log_density(scales) for one in members])
        of_source = float(weights.sum()) ** 0.5
        total += of_source * float(densities @ weights / weights.sum())
        mass += of_source
    held = float(((logs[len(_START) :] - np.log(_USUAL)) ** 2).sum())
    return total / mass - _HELD * held


def without(runs: Published, sources: Collection[str]) -> Published:
    """The runs of all other sources."""
    at = [index for index, one in enumerate(runs.clusters) if one.source not in sources]
    return Published(
        tuple(runs.predictions[index] for index in at),
        replace(
            runs.equations,
            residuals=runs.equations.residuals[at],
            slopes=runs.equations.slopes[at],
        ),
        tuple(runs.clusters[index] for index in at),
    )


_ABOUT = """\
# Covariance of ln(measured / predicted) inside sweeps (planner/tune/errors.py): scales in half
# widths of an error bar, weights of distances, spreads of a cluster's rates. `folds`: each
# without every tenth of the sources, for replays of these.
"""


def _table(scales: ErrorScales) -> dict[str, Any]:
    names = (one.name for one in parameters_of("time"))
    return {
        "physics": scales.physics,
        "likeness": scales.likeness,
        "alone": scales.alone,
        "weights": dict(scales.weights),
        "spreads": {
            name: round(float(one), 4) for name, one in zip(names, scales.spreads, strict=True)
        },
    }


def errors_text(runs: Published, others: Published) -> str:
    """The TOML file. `runs`: of full training, whose clusters' spreads are those of a calibration;
    `others`: further runs with sweeps."""
    sources = sorted({one.source for one in (*runs.clusters, *others.clusters)})
    left: dict[int, set[str]] = defaultdict(set)
    for source in sources:
        left[fold_of(source, sources)].add(source)
    sweeps = [*sweeps_of(runs), *sweeps_of(others)]
    return render(runs, sweeps, sources, [set[str](), *(left[place] for place in range(FOLDS))])


def render(
    runs: Published, sweeps: Sequence[Sweep], sources: Sequence[str], parts: Sequence[set[str]]
) -> str:
    """The TOML file of the scales without each part of the sources, the first without none."""
    tables = []
    for part in parts:
        spreads = fitted_prior(without(runs, part)).spreads
        tables.append(_table(fitted([one for one in sweeps if one.source not in part], spreads)))
    head = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "command": COMMAND, "sources": list(sources)}
    return _ABOUT + toml_text(head | tables[0] | {"folds": tables[1:]})


def main(paths: Sequence[str]) -> None:
    """Write the file to standard output."""
    tuned = [] if paths else list(read_rows(TUNED_RUNS))
    runs, others = (
        published(predict_rows(rows), "time") for rows in (rows_of_errors(paths), tuned)
    )
    sys.stdout.write(errors_text(runs, others))


if __name__ == "__main__":
    run(main, sys.argv[1:])
