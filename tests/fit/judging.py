"""Intervals judged by runs of sources that had no part in them: coverage and score; and how fast
errors grow outside what was measured, from ranges of runs left out.

For each axis of `planner.predict.uncertainty.measured_range` the runs on one side of a bound
predict those on the other, and for each of architecture, framework, kind of model and low precision
those without it predict those with it; a run's source is left out besides. The growth is the
one of a short list whose intervals score best; the half widths of the judged intervals are fitted
to the runs that are kept (`tests.fit.error_fit`). Folds of one name are taken together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum
from operator import mul

import numpy as np
from numpy.typing import NDArray

from planner.evidence.runs.rows import grouped
from planner.predict.uncertainty.families import Family, Figure
from planner.predict.uncertainty.interval_score import interval_scores
from planner.predict.uncertainty.intervals import further_width
from planner.predict.uncertainty.measured_range import AXES, UNKNOWN, Conditions, ranges
from planner.predict.uncertainty.residuals import (
    COVERAGE,
    Array,
    ErrorTable,
    HalfWidths,
    MeasuredRuns,
    bounds,
)

# What the name of a source is followed by where its runs are judged at first sight.
AT_FIRST_SIGHT = ", at first sight"
_LEAST_INFLATION, _MOST_INFLATION = 0.25, 8.0
_HALVINGS = 30


@dataclass(frozen=True, slots=True)
class Residual:
    """ln(measured / predicted) of one run, its source, its family and where it lies.

    A run that does not `count` is judged but is not part of any distribution. `first`: the same
    before the run had taught the model anything; None where that was not kept.
    """

    source: str
    family: Family
    value: float
    at: Conditions = UNKNOWN
    counts: bool = True
    first: float | None = None

    @property
    def group(self) -> str:
        """What its runs are judged with: its source's, apart where it is the error of first
        sight."""
        return self.source + ("" if self.first is None else AT_FIRST_SIGHT)


@dataclass(frozen=True, slots=True)
class Covered:
    """How often intervals held runs of sources that had no part in them.

    `rows`: share of all runs; `by_source`: share and number of runs of each.
    """

    rows: float
    by_source: dict[str, tuple[float, int]]

    @property
    def sources(self) -> float:
        """Mean over sources."""
        return math.fsum(share for share, _ in self.by_source.values()) / len(self.by_source)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How often 80 % intervals held runs as they are predicted `today`, and at first sight, `met`;
    both the same where none was met so."""

    today: Covered
    met: Covered

    @property
    def covered(self) -> float:
        """The mean of both, each midway between the share of rows and the mean over sources.

        What a stranger's runs show lies between: today's errors are of a model that knows the runs,
        those of first sight are of a model that knew less than today's.
        """
        shares = (self.today.rows, self.today.sources, self.met.rows, self.met.sources)
        return math.fsum(shares) / len(shares)


@dataclass(frozen=True)
class Judged:
    """Runs with the half widths that other sources give them downwards and upwards, the standard
    deviation to add for what was never measured, and whether its value is that of first sight; one
    element a run."""

    figure: Figure
    sources: NDArray[np.str_]
    values: Array
    down: Array
    up: Array
    deviation: Array
    met: NDArray[np.bool_]

    def bounds(self, inflation: float = 1.0, growth: float = 1.0) -> tuple[Array, Array]:
        """Ends of the intervals, with the half widths and the deviation for the unmeasured
        multiplied."""
        further = further_width(self.figure, growth * self.deviation)
        return bounds(inflation * self.down, inflation * self.up, further)

    def coverage(self, inflation: float = 1.0) -> HeldOut:
        """How many runs lie in their intervals."""
        low, high = self.bounds(inflation)
        inside = (low <= self.values) & (self.values <= high)
        halves = [
            _covered(inside[of], self.sources[of]) for of in (~self.met, self.met) if of.any()
        ]
        return HeldOut(halves[0], halves[-1])

    def score(self, inflation: float = 1.0, growth: float = 1.0) -> float:
        """Mean interval score (`planner.predict.uncertainty.interval_score`), by `weights`."""
        scores = interval_scores(*self.bounds(inflation, growth), self.values)
        return float(np.average(scores, weights=self.weights))

    @property
    def weights(self) -> Array:
        """Weight of each run (`weights_of`)."""
        return weights_of(self.sources, self.met)

    def inflation(self) -> float:
        """The inflation at which 80 % are covered (bisection), as `HeldOut.covered` counts."""
        low, high = _LEAST_INFLATION, _MOST_INFLATION
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            if self.coverage(middle).covered < COVERAGE:
                low = middle
            else:
                high = middle
        return math.ceil(high * 1000.0) / 1000.0


def _covered(inside: NDArray[np.bool_], sources: NDArray[np.str_]) -> Covered:
    of_source = {str(one): inside[sources == one] for one in np.unique(sources)}
    by_source = {name: (float(one.mean()), len(one)) for name, one in of_source.items()}
    return Covered(float(inside.mean()), by_source)


def weights_of(sources: NDArray[np.str_], met: NDArray[np.bool_]) -> Array:
    """Weight of each run: those of a source add up to the square root of their number, within those
    of today and those at first sight, which weigh as much together."""
    _, place, counts = np.unique(sources, return_inverse=True, return_counts=True)
    weights = np.asarray(counts[place] ** -0.5, dtype=np.float64)
    if met.any() and not met.all():
        for half in (met, ~met):
            weights[half] *= len(weights) / weights[half].sum()
    return weights


def both_ways(found: Iterable[Residual]) -> list[Residual]:
    """All runs as they are predicted today, and once more as they were at first sight where
    that was kept."""
    runs = list(found)
    met = [replace(one, value=one.first) for one in runs if one.first is not None]
    return [*(replace(one, first=None) for one in runs), *met]


def judge(table: ErrorTable, found: Sequence[Residual]) -> Judged:
    """Every run as the runs of all other sources see it."""
    ends = [table.without(one.source).half_widths(one.family, one.at) for one in found]
    down, up = np.array(ends).reshape(-1, 2).T
    return Judged(
        table.figure,
        np.array([residual.group for residual in found]),
        np.array([residual.value for residual in found]),
        down,
        up,
        np.array([table.further(one.family, one.at, one.source).deviation for one in found]),
        np.array([one.first is not None for one in found]),
    )


def summarised(found: Iterable[Residual]) -> tuple[MeasuredRuns, ...]:
    """One entry per source and family, in alphabetical order, of the runs that count, as they are
    today."""
    counted = (one for one in found if one.counts and one.first is None)
    groups = grouped(counted, lambda residual: (residual.family, residual.source))
    return tuple(
        MeasuredRuns(
            source=source,
            rows=len(runs),
            measured=ranges(run.at for run in runs),
            bits=tuple(sorted({run.at.bits for run in runs} - {0})),
            **family._asdict(),
        )
        for (family, source), runs in sorted(groups.items(), key=lambda group: group[0])
    )


# Standard deviation of ln(measured / predicted): for each doubling, and for what has no run.
_GROWTHS = (0.0, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96)
# What folds cannot see: an architecture that is left out keeps its own kernel rates, fitted on its
# runs. Rates that were carried over from another architecture missed the measured ones by 10 to
# 20 %.
_CARRIED_OVER = 0.15
_HALF_BITS = 16


@dataclass(frozen=True, slots=True)
class Fold:
    """Runs that are kept; those that are not judge them. `name`: an axis, or what has no run;
    `label`: which runs are kept."""

    name: str
    label: str
    keeps: Callable[[Residual], bool]


# Bounds near the middle of the measured range, so that both sides have several sources.
_BOUNDS = {
    "gpus": ((None, 16.0), (None, 64.0)),
    "seq": ((None, 2048.0), (None, 4096.0)),
    "hidden": ((2048.0, None), (None, 5120.0)),
    "tokens": ((4096.0, None), (None, 4096.0)),
    "overhead": ((None, 1.1), (None, 1.2)),
}


def folds(found: Sequence[Residual]) -> Iterator[Fold]:
    """Ranges, architectures, frameworks, kinds of model and precisions left out."""
    for axis in AXES:
        for low, high in _BOUNDS[axis]:
            yield _range_fold(axis, low, high)
    for kind, of in _KINDS.items():
        values = sorted({of(residual) for residual in found if residual.counts})
        for value in values:
            if value != _USUAL.get(kind) and len(values) > 1:
                yield Fold(
                    kind,
                    f"without {value}",
                    lambda item, of=of, value=value: of(item) != value,  # type: ignore[misc]
                )


_KINDS: dict[str, Callable[[Residual], str]] = {
    "architecture": lambda item: item.family.architecture,
    "framework": lambda item: item.family.framework,
    "model": lambda item: item.family.model,
    "bits": lambda item: "low precision" if 0 < item.at.bits < _HALF_BITS else "16 bits",
}
_USUAL = {"model": "dense", "bits": "16 bits"}


def _range_fold(axis: str, low: float | None, high: float | None) -> Fold:
    text = f"{axis} from {low:g}" if low is not None else f"{axis} to {high:g}"

    def keeps(residual: Residual) -> bool:
        value = getattr(residual.at, axis)
        return (low is None or value >= low) and (high is None or value <= high)

    return Fold(axis, text, keeps)


# Half widths of a figure as these runs have them.
Fit = Callable[[Sequence[Residual]], HalfWidths]


def with_growth(table: ErrorTable, found: Sequence[Residual], fit: Fit) -> ErrorTable:
    """The table with its growths."""
    by_name: dict[str, list[Judged]] = defaultdict(list)
    for fold in folds(found):
        kept = [residual for residual in found if fold.keeps(residual)]
        judged = [residual for residual in found if not fold.keeps(residual)]
        if judged and any(residual.counts for residual in kept):
            by_name[fold.name].append(_judge(table, fold.name, kept, judged, fit))
    chosen = {
        name: min(_GROWTHS, key=lambda growth: _score(members, growth))
        for name, members in by_name.items()
    }
    if table.figure == "time" and "architecture" in chosen:
        chosen["architecture"] = max(chosen["architecture"], _CARRIED_OVER)
    return replace(
        table,
        growth={name: chosen[name] for name in AXES if name in chosen},
        unmeasured={name: chosen[name] for name in _KINDS if name in chosen},
    )


def _judge(
    table: ErrorTable, name: str, kept: Sequence[Residual], judged: Sequence[Residual], fit: Fit
) -> Judged:
    """The judged runs by a table of the kept ones; deviation 1 for each doubling or lack."""
    unit = {name: 1.0}
    axis = name in AXES
    one_table = replace(
        table,
        entries=summarised(kept),
        errors=fit(kept),
        folds=(),
        growth=unit if axis else {},
        unmeasured={} if axis else unit,
    )
    return judge(one_table, judged)


def _score(members: Sequence[Judged], growth: float) -> float:
    """Mean score of all folds' runs; a source weighs in each as the square root of its rows."""
    weights = [float(member.weights.sum()) for member in members]
    scores = [member.score(growth=growth) for member in members]
    return fsum(map(mul, weights, scores)) / fsum(weights)
