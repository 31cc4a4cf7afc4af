"""Refit of the error bars: how far predictions lie from measured runs, by source and family.

    python -m planner.evidence.fit.residual_fit [RUNS.csv|FOLDER ...] >
    planner/predict/uncertainty/residuals.toml

`planner.predict.uncertainty.residuals` says how the file is read. Step times are predicted with the
constants that leave a run's source out (`planner.evidence.fit.held_out`, whose file is read); the
model's memory has no such constants. The constants of the intervals come from leaving one source
out as well: every run is given the interval that the runs of all *other* sources make.
`prior_rows`, `source_power`, `communication` and `launches` are those of short lists with the best
mean interval score; the runs' residuals keep what these two errors leave of them
(`judging.without_own_errors`). `growth` and `unmeasured` come from ranges left out
(`planner.evidence.fit.growth_fit`). Every run is there twice: as it is, and predicted without its
framework's name (`unfamiliar`); a framework that one source alone has measured is judged by the
second. `inflation` then makes these held-out intervals cover 80 %: in the mean over sources, or
midway from that to the share of rows where this is less.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from planner.evidence.fit.command import rows_of_errors, run
from planner.evidence.fit.growth_fit import FoldResult, with_growth
from planner.evidence.fit.held_out import NOT_FITTED_ON, predict_held_out, shipped
from planner.evidence.fit.judging import (
    HeldOut,
    Residual,
    held_out,
    judge,
    strangers,
    summarised,
    without_unmeasured_errors,
)
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.report import memory_error, time_error
from planner.predict.uncertainty.families import UNFAMILIAR, Family, Figure
from planner.predict.uncertainty.intervals import conditions_of, family_of
from planner.predict.uncertainty.measured_range import UNKNOWN
from planner.predict.uncertainty.residuals import ResidualTable

# Below this a peak is mostly what libraries allocate, not the model.
_SMALLEST_PEAK_GIB = 8.0
# Tried for `prior_rows`: from believing a family's own runs at once to hardly ever.
_PRIOR_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0)
# Tried for `source_power`: from every source alike to halfway to every row alike.
_SOURCE_POWERS = (0.0, 0.25, 0.5)
# Tried for `communication` and `launches`.
_COMMUNICATION = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
_LAUNCHES = (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table, how its intervals cover held-out runs, and ranges left out."""

    table: ResidualTable
    coverage: HeldOut
    folds: tuple[FoldResult, ...]


def residuals(predictions: Iterable[Prediction], figure: Figure) -> list[Residual]:
    """Log residuals of the runs that test one figure."""
    found = []
    for prediction in predictions:
        error = time_error(prediction) if figure == "time" else memory_error(prediction)
        if prediction.mapped is None or error is None or not _tests(prediction, figure):
            continue
        job, source = prediction.mapped.job, prediction.row.source
        at = prediction.conditions if figure == "time" else conditions_of(job)
        counts = figure == "memory" or source not in NOT_FITTED_ON
        found.append(Residual(source, family_of(job), -math.log1p(error), at or UNKNOWN, counts))
    return found


def _tests(prediction: Prediction, figure: Figure) -> bool:
    """Whether a run says something of the model: any step; a large peak of a stated mode."""
    if figure == "time":
        return True
    peak_gib = prediction.row.number("peak_mem_gib") or 0.0
    return peak_gib >= _SMALLEST_PEAK_GIB and prediction.row.text("recompute") is not None


def fit(found: Sequence[Residual], figure: Figure) -> FittedTable:
    """The table of one figure with its constants fitted on held-out sources."""
    entries = summarised(found)
    judged_runs = strangers(found)
    scored = []
    for power in _SOURCE_POWERS:
        for prior_rows in _PRIOR_ROWS:
            table = ResidualTable(figure, entries, prior_rows, 1.0, power)
            judged = judge(table, judged_runs)
            inflation = judged.inflation()
            scored.append((judged.score(inflation), prior_rows, power, inflation))
    _, prior_rows, power, _ = min(scored)
    table = _with_unmeasured_errors(
        ResidualTable(figure, entries, prior_rows, 1.0, power), judged_runs
    )
    table = replace(table, entries=summarised(without_unmeasured_errors(table, found)))
    named = [residual for residual in found if residual.family.framework != UNFAMILIAR]
    table, folds = with_growth(table, named)
    table = replace(table, inflation=judge(table, judged_runs).inflation())
    return FittedTable(table, held_out(table, judged_runs), folds)


def _with_unmeasured_errors(table: ResidualTable, found: Sequence[Residual]) -> ResidualTable:
    """The table with the errors of exposed communication and of waiting for the CPU, and its
    inflation. Of memory both are 0."""
    judged = judge(table, found)
    exposed = np.array([residual.at.exposed for residual in found])
    waiting = np.array([residual.at.waiting for residual in found])
    scored = []
    for launches in _LAUNCHES:
        for communication in _COMMUNICATION:
            one_judged = replace(
                judged, known=np.hypot(communication * exposed, launches * waiting)
            )
            inflation = one_judged.inflation()
            scored.append((one_judged.score(inflation), communication, launches, inflation))
    _, communication, launches, inflation = min(scored)
    return replace(table, communication=communication, launches=launches, inflation=inflation)


def render(fitted: Sequence[FittedTable]) -> str:
    """The TOML file."""
    lines = [
        "# How far predictions lie from measurements: ln(measured / predicted) by source of runs",
        "# and family (framework, GPU architecture, inside one scale-up domain or beyond, dense",
        "# or MoE); planner/predict/uncertainty/residuals.py says how intervals come from it.",
        f"# Written {datetime.now(UTC):%Y-%m-%d} by: python -m planner.evidence.fit.residual_fit",
        "# Step times: with the constants that leave the run's source out (held_out.toml).",
        "# `held_out`: share of runs in the 80 % interval that all *other* sources give them.",
        "# `growth`: standard deviation added for each doubling outside what was measured,",
        "# `unmeasured`: for what has no run; `folds`: the ranges left out that they come from,",
        "# with the share of these runs in the interval without and with it.",
    ]
    for fitted_table in fitted:
        lines += ["", *_render_table(fitted_table)]
    return "\n".join(lines) + "\n"


def _render_table(fitted: FittedTable) -> Iterator[str]:
    table, coverage = fitted.table, fitted.coverage
    yield f"[{table.figure}]"
    yield f"prior_rows = {table.prior_rows:g}"
    yield f"source_power = {table.source_power:g}"
    yield f"inflation = {table.inflation:g}"
    yield f"communication = {table.communication:g}"
    yield f"launches = {table.launches:g}"
    yield f"held_out_rows = {coverage.rows:.3f}"
    yield f"held_out_mean_of_sources = {coverage.sources:.3f}"
    for name in ("growth", "unmeasured"):
        yield from ("", f"[{table.figure}.{name}]")
        yield from (f"{key} = {value:g}" for key, value in getattr(table, name).items())
    for fold in fitted.folds:
        yield from ("", f"[[{table.figure}.folds]]")
        yield f'name = "{fold.name}"'
        yield f'kept = "{fold.label}"'
        yield f"rows = {fold.judged}"
        yield f"covered = [{fold.covered_without:.3f}, {fold.covered_with:.3f}]"
    yield ""
    yield f"[{table.figure}.held_out]"
    for source, (share, rows) in coverage.by_source.items():
        yield f'"{source}" = [{share:.3f}, {rows}]'
    for entry in table.entries:
        yield ""
        yield f"[[{table.figure}.runs]]"
        for name in ("source", *Family._fields):
            yield f'{name} = "{getattr(entry, name)}"'
        yield f"rows = {entry.rows}"
        yield f"log_ratios = [{', '.join(f'{value:g}' for value in entry.log_ratios)}]"
        axes = (f"{axis} = [{low:.6g}, {high:.6g}]" for axis, (low, high) in entry.measured.items())
        yield f"measured = {{{', '.join(axes)}}}"
        yield f"bits = {list(entry.bits)}"


def fit_all(predictions: Sequence[Prediction]) -> list[FittedTable]:
    """Tables of time and memory, as far as they were measured."""
    factors = {source: item.factors for source, item in shipped().items()}
    unnamed = predict_rows(prediction.row.unnamed for prediction in predictions)
    everything = [*predictions, *unnamed]
    timed = [prediction for prediction in everything if time_error(prediction) is not None]
    found: dict[Figure, list[Residual]] = {
        "time": residuals(predict_held_out(timed, factors), "time"),
        "memory": residuals(everything, "memory"),
    }
    return [fit(runs, figure) for figure, runs in found.items() if runs]


def main(paths: Sequence[str]) -> None:
    """Write the file to standard output."""
    sys.stdout.write(render(fit_all(predict_rows(rows_of_errors(paths)))))


if __name__ == "__main__":
    run(main, sys.argv[1:])
