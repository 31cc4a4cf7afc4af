"""Half widths of the error bars of phases of reinforcement learning, from measured runs.

    python -m tests.fit.rl_error_fit [RUNS.csv|FOLDER ...] > planner/predict/rl/errors.toml

    min over h:  mean of [half + 2/alpha · max(0, y - half)],  half = hypot(h, 1.28 · d)

for each kind of phase and each side by itself: y, ln(measured / predicted) on that side; d, the
standard deviation that open facts of the row leave, which is no error of the model and stays apart.
That is the interval score (Gneiting and Raftery 2007). Sources are the witnesses: one of n rows
weighs as the root of n. `shared` is what makes the bars of whole steps score best. Every source is
left out in turn, too, and `planner validate` judges its rows by the bars that the others give.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median, stdev
from typing import NamedTuple

from planner.evidence.rl.predict import Compared, compared, predict_rl
from planner.evidence.rl.report import trusted
from planner.evidence.rl.rows import PUBLISHED, Figure, read_rl_rows, rl_tables
from planner.evidence.runs.rows import grouped
from planner.job.written import toml_text
from planner.predict.rl.errors import WIDTH, Ends, joined
from planner.predict.uncertainty.interval_score import ALPHA

# The figure that tells the errors of each kind, and the kinds that nobody has measured: whose they
# take, and how many times as wide.
_TOLD_BY: Mapping[str, Figure] = {
    "generation": "generation", "training": "training", "reading": "logprobs",
    "transfer": "transfer", "memory": "memory",
}  # fmt: skip
_LIKE = {"moves": ("transfer", 1.2), "reward": ("training", 1.0)}
# Repeats of one configuration differ by 14 to 16 % between batches of jobs, whatever is predicted
# (NeMo-RL v0.7, branch reports): no bar is narrower.
_LEAST, _MOST, _STEP = 0.15, 1.6, 0.01
_SHARED = tuple(0.25 * index for index in range(5))
# Rows of a source from which on their spread says something.
_FEWEST = 3
_LEAST_REPEAT = 0.05


class Miss(NamedTuple):
    """One figure of one row: its source, y and d of the module's formula, and the parts of it."""

    source: str
    log: float
    deviation: float
    parts: tuple[tuple[str, float], ...]


def misses(figures: Iterable[tuple[str, Compared]], figure: Figure) -> list[Miss]:
    """The misses of a figure; `figures`: with their sources."""
    return [
        Miss(source, one.log, one.deviation, one.parts)
        for source, one in figures
        if one.figure == figure
    ]


def weighted(found: Sequence[Miss]) -> list[tuple[Miss, float]]:
    """Each miss with its weight; a source of n rows weighs as the root of n, all together 1."""
    by_source = grouped(found, lambda one: one.source)
    total = sum(math.sqrt(len(some)) for some in by_source.values())
    return [
        (one, 1.0 / math.sqrt(len(some)) / total) for some in by_source.values() for one in some
    ]


def fitted(found: Sequence[Miss]) -> Ends:
    """The half widths with the least interval score."""
    some = weighted(found)
    sides = [[(sign * one.log, one.deviation, weight) for one, weight in some] for sign in (-1, 1)]
    return Ends(_least(sides[0]), _least(sides[1]))


def _least(side: Sequence[tuple[float, float, float]]) -> float:
    """Where one side's part of the score is least, on a grid."""
    steps = round((_MOST - _LEAST) / _STEP)
    grid: list[float] = [_LEAST + _STEP * index for index in range(steps + 1)]

    def loss(half: float) -> float:
        return math.fsum(
            weight * _paid(math.hypot(half, WIDTH * deviation), over)
            for over, deviation, weight in side
        )

    return round(float(min(grid, key=loss)), 3)


def _paid(half: float, over: float) -> float:
    return half + 2.0 / ALPHA * max(0.0, over - half)


def repeat_of(found: Sequence[Miss]) -> float:
    """Standard deviation of a source's rows about their mean: the median source's."""
    spreads = [
        stdev([one.log for one in some])
        for some in grouped(found, lambda one: one.source).values()
        if len(some) >= _FEWEST
    ]
    return round(max(_LEAST_REPEAT, median(spreads)), 3) if spreads else _LEAST_REPEAT


def shared_of(steps: Sequence[Miss], ends: Mapping[str, Ends]) -> float:
    """The part of the errors of a step's phases that is one error: what makes steps score best."""
    some = weighted(steps)

    def loss(shared: float) -> float:
        return math.fsum(weight * _score(one, ends, shared) for one, weight in some)

    return min(_SHARED, key=loss) if some else 0.5


def _score(one: Miss, ends: Mapping[str, Ends], shared: float) -> float:
    bar = joined([(ends[kind], each) for kind, each in one.parts], shared).and_also(one.deviation)
    return _paid(bar.low, -one.log) + _paid(bar.high, one.log)


def fit(figures: Sequence[tuple[str, Compared]]) -> dict[str, Ends]:
    """The bar of every kind."""
    found = {
        kind: fitted(some) for kind, figure in _TOLD_BY.items() if (some := misses(figures, figure))
    }
    for kind, (other, times) in _LIKE.items():
        if other in found:
            found[kind] = Ends(*(round(times * half, 3) for half in found[other]))
    return found


def content_of(figures: Sequence[tuple[str, Compared]]) -> dict[str, object]:
    """What `errors.toml` holds."""
    ends = fit(figures)
    kinds = {}
    for kind, bar in ends.items():
        told = misses(figures, _TOLD_BY.get(kind) or _TOLD_BY[_LIKE[kind][0]])
        own = told if kind in _TOLD_BY else []
        kinds[kind] = {
            "low": bar.low,
            "high": bar.high,
            "repeat": repeat_of(told),
            "rows": len(own),
            "sources": len({one.source for one in own}),
        }
    sources = sorted({source for source, _ in figures})
    without = {
        source: {kind: list(bar) for kind, bar in fit(_without(figures, source)).items()}
        for source in sources
    }
    return {
        "shared": shared_of(misses(figures, "step"), ends),
        "kind": kinds,
        "without": without,
    }


def _without(figures: Sequence[tuple[str, Compared]], source: str) -> list[tuple[str, Compared]]:
    return [pair for pair in figures if pair[0] != source]


_ABOUT = """\
# How far phases of a step of reinforcement learning lie from what is predicted, by kind of phase:
# half widths of the 80 % interval of ln(measured / predicted) below (`low`) and above (`high`),
# where nothing is open, and `repeat`: the standard deviation of ln(seconds) among runs of one
# source, once their mean is known. `shared`: the part of the errors of a step's phases that is one
# error, as that of lengths and machine is. `rows`, `sources`: what they rest on; 0: nobody has
# published such a time, and the kind takes the bar of one like it. `without`: what they would be
# without a source, [low, high]. Made by: python -m tests.fit.rl_error_fit
"""


def main(paths: Sequence[str]) -> None:
    """Write the file to standard output."""
    tables = rl_tables([Path(path) for path in paths] or [PUBLISHED])
    rows = [row for table in tables for row in read_rl_rows(table)]
    kept = trusted(predict_rl(rows))
    figures = [(one.row.source, each) for one in kept for each in compared(one)]
    sys.stdout.write(_ABOUT + toml_text(content_of(figures)))


if __name__ == "__main__":
    main(sys.argv[1:])
