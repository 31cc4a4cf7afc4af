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

from planner.evidence.fit.judging import (
    Judged,
    Residual,
    judge,
    summarised,
    without_unmeasured_errors,
)
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
        values = sorted({of(residual) for residual in found if residual.counts})
        for value in values:
            if value != _USUAL.get(kind) and len(values) > 1:
                yield _kind_fold(kind, of, value)


_KINDS: dict[str, Callable[[Residual], str]] = {
    "architecture": lambda item: item.family.architecture,
    "framework": lambda item: item.family.framework,
    "model": lambda item: item.family.model,
    "bits": lambda item: "low precision" if 0 < item.at.bits < _HALF_BITS else "16 bits",
}
_USUAL = {"model": "dense", "bits": "16 bits"}


def _kind_fold(kind: str, of: Callable[[Residual], str], value: str) -> Fold:
    return Fold(kind, f"without {value}", lambda item: of(item) != value)


def _range_fold(axis: str, low: float | None, high: float | None) -> Fold:
    text = f"{axis} from {low:g}" if low is not None else f"{axis} to {high:g}"

    def keeps(residual: Residual) -> bool:
        value = getattr(residual.at, axis)
        return (low is None or value >= low) and (high is None or value <= high)

    return Fold(axis, text, keeps)


def with_growth(
    table: ResidualTable, found: Sequence[Residual]
) -> tuple[ResidualTable, tuple[FoldResult, ...]]:
    """The table with its growths, and what each fold shows."""
    by_name: dict[str, list[tuple[Fold, int, Judged]]] = defaultdict(list)
    for fold in folds(found):
        kept = [residual for residual in found if fold.keeps(residual)]
        judged = [residual for residual in found if not fold.keeps(residual)]
        if judged and any(residual.counts for residual in kept):
            by_name[fold.name].append((fold, len(kept), _judge(table, fold.name, kept, judged)))
    chosen, results = {}, []
    for name, members in by_name.items():
        chosen[name] = min(_GROWTHS, key=lambda growth: _score(members, table.inflation, growth))
        results += [_result(*member, table.inflation, chosen[name]) for member in members]
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
    one_table = replace(
        table,
        entries=summarised(without_unmeasured_errors(table, kept)),
        growth=unit if axis else {},
        unmeasured={} if axis else unit,
    )
    return judge(one_table, judged)


def _score(members: Sequence[tuple[Fold, int, Judged]], inflation: float, growth: float) -> float:
    """Mean score of all folds' runs; a source weighs in each as the square root of its rows."""
    weights = [float(member.weights.sum()) for _, _, member in members]
    scores = [member.score(inflation, growth) for _, _, member in members]
    return fsum(map(mul, weights, scores)) / fsum(weights)


def _result(fold: Fold, kept: int, judged: Judged, inflation: float, growth: float) -> FoldResult:
    without, with_it = (_covered(judged, inflation, one) for one in (0.0, growth))
    return FoldResult(fold.name, fold.label, kept, len(judged.values), without, with_it)


def _covered(judged: Judged, inflation: float, growth: float) -> float:
    low, high = judged.bounds(inflation, growth)
    return float(((low <= judged.values) & (judged.values <= high)).mean())
