"""Refit of the error bars: how far predictions lie from measured runs, by source and family.

    python -m planner.calibrate.residual_fit RUNS.csv|FOLDER > planner/literature/residuals.toml

`planner.residuals` says how the file is read. Its two constants come from leaving one source out:
every run is given the interval that the runs of all *other* sources make. `own_rows` is the one of
a short list with the best mean interval score (Gneiting & Raftery 2007, eq. 43: width plus 2/0.2
times what sticks out); `inflation` then makes these held-out intervals cover 80 %. A source weighs
as the square root of its rows.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from planner.measured.predict import Prediction, predict_rows
from planner.measured.report import memory_error, time_error
from planner.measured.rows import read_rows
from planner.residuals import (
    COVERAGE,
    Family,
    Figure,
    ResidualTable,
    SourceResiduals,
    Spread,
    represent,
)
from planner.uncertainty import family_of, log_bounds, widened

# Unit-test sized models whose step is CPU time and logging: no guide to a real run.
_TIMES_NOT_USED = frozenset({"megatron-ci-golden"})
# Below this a peak is mostly what libraries allocate, not the model.
_SMALLEST_PEAK_GIB = 8.0
# Tried for `own_rows`: from believing a family's own runs at once to hardly ever.
_OWN_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0)
_LEAST_INFLATION, _MOST_INFLATION = 0.25, 8.0
_HALVINGS = 30


@dataclass(frozen=True, slots=True)
class Residual:
    """ln(measured / predicted) of one run, its source and its family."""

    source: str
    family: Family
    value: float


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How often 80 % intervals held runs of sources that had no part in them.

    `rows`: share of all runs; `weighed`: sources weigh as square roots of their rows;
    `by_source`: share and number of runs of each.
    """

    rows: float
    weighed: float
    by_source: dict[str, tuple[float, int]]

    @property
    def sources(self) -> float:
        """Mean over sources."""
        return math.fsum(share for share, _ in self.by_source.values()) / len(self.by_source)


def residuals(predictions: Iterable[Prediction], figure: Figure) -> list[Residual]:
    """Log residuals of the runs that test one figure."""
    found = []
    for prediction in predictions:
        error = time_error(prediction) if figure == "time" else memory_error(prediction)
        if prediction.mapped is None or error is None or not _counts(prediction, figure):
            continue
        family = family_of(prediction.mapped.job)
        found.append(Residual(prediction.row.source, family, -math.log1p(error)))
    return found


def _counts(prediction: Prediction, figure: Figure) -> bool:
    """Whether a run says something of the model: a real step; a large peak of a stated mode."""
    if figure == "time":
        return prediction.row.source not in _TIMES_NOT_USED
    peak_gib = prediction.row.number("peak_mem_gib") or 0.0
    return peak_gib >= _SMALLEST_PEAK_GIB and prediction.row.text("recompute") is not None


def summarised(found: Iterable[Residual]) -> tuple[SourceResiduals, ...]:
    """One entry per source and family, in alphabetical order."""
    groups: dict[tuple[Family, str], list[float]] = defaultdict(list)
    for own in found:
        groups[own.family, own.source].append(own.value)
    return tuple(
        SourceResiduals(
            source=source,
            rows=len(values),
            log_ratios=represent(values),
            **family._asdict(),
        )
        for (family, source), values in sorted(groups.items())
    )


# A run, and the spread that the runs of all other sources give its family, not yet inflated.
_Judged = tuple[Residual, Spread]


def fit(found: Sequence[Residual], figure: Figure) -> ResidualTable:
    """The table of one figure with both constants fitted on held-out sources."""
    entries = summarised(found)
    scored = []
    for own_rows in _OWN_ROWS:
        judged = _judged(ResidualTable(figure, entries, own_rows, 1.0), found)
        inflation = _inflation(judged, figure)
        scored.append((_score(judged, figure, inflation), own_rows, inflation))
    _, own_rows, inflation = min(scored)
    return ResidualTable(figure, entries, own_rows, inflation)


def _judged(plain: ResidualTable, found: Sequence[Residual]) -> list[_Judged]:
    """Every run with its spread from a table without inflation."""
    known: dict[tuple[Family, str], Spread] = {}
    for own in found:
        key = (own.family, own.source)
        if key not in known:
            known[key] = plain.spread(*key)
    return [(own, known[own.family, own.source]) for own in found]


def _inflation(judged: Sequence[_Judged], figure: Figure) -> float:
    """The inflation at which held-out intervals cover 80 % (bisection)."""
    low, high = _LEAST_INFLATION, _MOST_INFLATION
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if _coverage(judged, figure, middle).weighed < COVERAGE:
            low = middle
        else:
            high = middle
    return math.ceil(high * 1000.0) / 1000.0


def _bounds(
    judged: Sequence[_Judged], figure: Figure, inflation: float
) -> Iterator[tuple[Residual, float, float]]:
    """Every run with the ends of its interval."""
    known: dict[tuple[Family, str], tuple[float, float]] = {}
    for own, spread in judged:
        key = (own.family, own.source)
        if key not in known:
            known[key] = log_bounds(widened(spread.inflated(inflation), own.family, figure))
        yield own, *known[key]


def held_out(table: ResidualTable, found: Sequence[Residual]) -> HeldOut:
    """Coverage of the intervals that leave each run's own source out."""
    return _coverage(_judged(replace(table, inflation=1.0), found), table.figure, table.inflation)


def _coverage(judged: Sequence[_Judged], figure: Figure, inflation: float) -> HeldOut:
    hits: dict[str, list[bool]] = defaultdict(list)
    for own, low, high in _bounds(judged, figure, inflation):
        hits[own.source].append(low <= own.value <= high)
    inside = {source: sum(flags) for source, flags in hits.items()}
    weights = {source: len(flags) ** 0.5 for source, flags in hits.items()}
    shares = {source: inside[source] / len(flags) for source, flags in hits.items()}
    return HeldOut(
        rows=sum(inside.values()) / len(judged),
        weighed=sum(weights[own] * shares[own] for own in hits) / sum(weights.values()),
        by_source={own: (shares[own], len(hits[own])) for own in sorted(hits)},
    )


def _score(judged: Sequence[_Judged], figure: Figure, inflation: float) -> float:
    """Mean interval score of held-out intervals; sources weigh as square roots of their rows."""
    rows = Counter(own.source for own, _ in judged)
    total = weight = 0.0
    for own, low, high in _bounds(judged, figure, inflation):
        outside = max(0.0, low - own.value, own.value - high)
        share = rows[own.source] ** -0.5
        total += share * (high - low + 2.0 / (1.0 - COVERAGE) * outside)
        weight += share
    return total / weight


def render(fitted: Sequence[tuple[ResidualTable, HeldOut]]) -> str:
    """The TOML file."""
    lines = [
        "# How far predictions lie from measurements: ln(measured / predicted) by source of runs",
        "# and family (framework, GPU architecture, inside one scale-up domain or beyond, dense",
        "# or MoE); planner/residuals.py says how intervals come from it.",
        f"# Written {datetime.now(UTC):%Y-%m-%d} by: python -m planner.calibrate.residual_fit DATA",
        "# `held_out`: share of runs in the 80 % interval that all *other* sources give them.",
    ]
    for table, coverage in fitted:
        lines += ["", *_render_table(table, coverage)]
    return "\n".join(lines) + "\n"


def _render_table(table: ResidualTable, coverage: HeldOut) -> Iterator[str]:
    yield f"[{table.figure}]"
    yield f"own_rows = {table.own_rows:g}"
    yield f"inflation = {table.inflation:g}"
    yield f"held_out_rows = {coverage.rows:.3f}"
    yield f"held_out_mean_of_sources = {coverage.sources:.3f}"
    yield ""
    yield f"[{table.figure}.held_out]"
    for source, (share, rows) in coverage.by_source.items():
        yield f'"{source}" = [{share:.3f}, {rows}]'
    for own in table.entries:
        yield ""
        yield f"[[{table.figure}.runs]]"
        for name in ("source", *Family._fields):
            yield f'{name} = "{getattr(own, name)}"'
        yield f"rows = {own.rows}"
        yield f"log_ratios = [{', '.join(f'{value:g}' for value in own.log_ratios)}]"


def fit_all(predictions: Sequence[Prediction]) -> list[tuple[ResidualTable, HeldOut]]:
    """Tables of time and memory, as far as they were measured, with their held-out coverage."""
    fitted = []
    figures: tuple[Figure, ...] = ("time", "memory")
    for figure in figures:
        found = residuals(predictions, figure)
        if found:
            table = fit(found, figure)
            fitted.append((table, held_out(table, found)))
    return fitted


def main(paths: Sequence[str]) -> None:
    """Write the file to standard output."""
    if not paths:
        sys.exit("usage: python -m planner.calibrate.residual_fit RUNS.csv|FOLDER ...")
    rows = [row for path in paths for row in read_rows(Path(path))]
    sys.stdout.write(render(fit_all(predict_rows(rows))))


if __name__ == "__main__":
    main(sys.argv[1:])
