"""How fast errors grow outside what was measured, from ranges of runs left out.

For each axis of `planner.predict.uncertainty.measured_range` the runs on one side of a bound
predict those on the other, and for each of architecture, framework, kind of model and low precision
those without it predict those with it; a run's own source is left out besides. The growth is the
one of a short list whose intervals score best. Folds of one name are taken together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum
from operator import mul

from planner.evidence.fit.judging import Judged, Residual, judge, summarised, without_own_errors
from planner.predict.uncertainty.measured_range import AXES
from planner.predict.uncertainty.residuals import ResidualTable

# Standard deviation of ln(measured / predicted): for each doubling, and for what has no run.
_GROWTHS = (0.0, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32)
# What folds cannot see: an architecture that is left out keeps its own kernel rates, fitted on its
# runs. Rates that were carried over from another architecture missed the measured ones by 10 to
# 20 %.
_CARRIED_OVER = 0.15
_HALF_BITS = 16


@dataclass(frozen=True, slots=True)
class Fold:
    """Runs that are kept; those that are not judge them. `name`: an axis, or what has no run."""

    name: str
    label: str
    keeps: Callable[[Residual], bool]


@dataclass(frozen=True, slots=True)
class FoldResult:
    """A fold: runs kept and judged, how many of these lie in the interval without and with the
    growth that was chosen."""

    name: str
    label: str
    kept: int
    judged: int
    covered_without: float
    covered_with: float


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
        values = sorted({of(own) for own in found if own.counts})
        for value in values:
            if value != _USUAL.get(kind) and len(values) > 1:
                yield _kind_fold(kind, of, value)


_KINDS: dict[str, Callable[[Residual], str]] = {
    "architecture": lambda own: own.family.architecture,
    "framework": lambda own: own.family.framework,
    "model": lambda own: own.family.model,
    "bits": lambda own: "low precision" if 0 < own.at.bits < _HALF_BITS else "16 bits",
}
_USUAL = {"model": "dense", "bits": "16 bits"}


def _kind_fold(kind: str, of: Callable[[Residual], str], value: str) -> Fold:
    return Fold(kind, f"without {value}", lambda own: of(own) != value)


def _range_fold(axis: str, low: float | None, high: float | None) -> Fold:
    text = f"{axis} from {low:g}" if low is not None else f"{axis} to {high:g}"

    def keeps(own: Residual) -> bool:
        value = getattr(own.at, axis)
        return (low is None or value >= low) and (high is None or value <= high)

    return Fold(axis, text, keeps)


def with_growth(
    table: ResidualTable, found: Sequence[Residual]
) -> tuple[ResidualTable, tuple[FoldResult, ...]]:
    """The table with its growths, and what each fold shows."""
    by_name: dict[str, list[tuple[Fold, int, Judged]]] = defaultdict(list)
    for fold in folds(found):
        kept = [own for own in found if fold.keeps(own)]
        judged = [own for own in found if not fold.keeps(own)]
        if judged and any(own.counts for own in kept):
            by_name[fold.name].append((fold, len(kept), _judge(table, fold.name, kept, judged)))
    chosen, results = {}, []
    for name, members in by_name.items():
        chosen[name] = min(_GROWTHS, key=lambda growth: _score(members, table.inflation, growth))
        results += [_result(*own, table.inflation, chosen[name]) for own in members]
    if table.figure == "time" and "architecture" in chosen:
        chosen["architecture"] = max(chosen["architecture"], _CARRIED_OVER)
    fitted = replace(
        table,
        growth={name: chosen[name] for name in AXES if name in chosen},
        unmeasured={name: chosen[name] for name in _KINDS if name in chosen},
    )
    return fitted, tuple(results)


def _judge(
    table: ResidualTable, name: str, kept: Sequence[Residual], judged: Sequence[Residual]
) -> Judged:
    """The judged runs by a table of the kept ones; deviation 1 for each doubling or lack."""
    unit = {name: 1.0}
    axis = name in AXES
    own = replace(
        table,
        entries=summarised(without_own_errors(table, kept)),
        growth=unit if axis else {},
        unmeasured={} if axis else unit,
    )
    return judge(own, judged)


def _score(members: Sequence[tuple[Fold, int, Judged]], inflation: float, growth: float) -> float:
    """Mean score of all folds' runs; a source weighs in each as the square root of its rows."""
    weights = [float(own.weights.sum()) for _, _, own in members]
    scores = [own.score(inflation, growth) for _, _, own in members]
    return fsum(map(mul, weights, scores)) / fsum(weights)


def _result(fold: Fold, kept: int, own: Judged, inflation: float, growth: float) -> FoldResult:
    without, with_it = (_covered(own, inflation, one) for one in (0.0, growth))
    return FoldResult(fold.name, fold.label, kept, len(own.values), without, with_it)


def _covered(own: Judged, inflation: float, growth: float) -> float:
    low, high = own.ends(inflation, growth)
    return float(((low <= own.values) & (own.values <= high)).mean())
