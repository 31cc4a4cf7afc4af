"""Refit of the error bars: how far predictions lie from measured runs, by source and family.

    python -m planner.evidence.fit.residual_fit [RUNS.csv|FOLDER ...] >
    planner/predict/uncertainty/residuals.json

`planner.predict.uncertainty.residuals` says how the file is read. Runs are predicted with the
constants that leave their source out (`planner.evidence.fit.held_out`, whose file is read). A
stranger's errors are larger than those of a source that the model has learnt from: where a run was
predicted before anything was changed for it, that error stands in the distributions (and, without
its framework's name, as much more or less as the name changes today), elsewhere that of today
`taught` times. Every run is judged by the interval that the runs of all *other* sources make.
`prior_rows`, `source_power`, `taught`, `communication` and `launches` are those of short lists with
the best mean interval score of all runs as they are predicted today and of those met at first
sight, both of which weigh as much (`judging.both_ways`); the runs' residuals keep what the last
two leave of them (`judging.without_unmeasured_errors`). `growth` and `unmeasured` come from ranges
left out (`planner.evidence.fit.judging`). Every run is there twice: as it is, and predicted without
its framework's name (`unfamiliar`). `inflation` then makes these held-out intervals cover 80 % in
the mean of today's errors, which are those of a model that has learnt from the runs, and of errors
at first sight, which are those of a model that knew less than today's (`judging.HeldOut`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product

import numpy as np

from planner.evidence.fit.command import rows_of_errors, run
from planner.evidence.fit.constants_fit import NOT_FITTED_ON, tells
from planner.evidence.fit.held_out import predict_held_out, shipped
from planner.evidence.fit.judging import (
    HeldOut,
    Judged,
    Residual,
    both_ways,
    judge,
    summarised,
    with_growth,
    without_unmeasured_errors,
)
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.report import error_of
from planner.evidence.runs.rows import FIRST_SIGHT, MeasuredRow
from planner.predict.uncertainty.families import Figure
from planner.predict.uncertainty.intervals import conditions_of, family_of
from planner.predict.uncertainty.measured_range import UNKNOWN
from planner.predict.uncertainty.residuals import ResidualTable

# Tried for `prior_rows`: from believing a family's runs at once to hardly ever.
_PRIOR_ROWS = (4.0, 8.0, 16.0, 32.0, 64.0)
# Tried for `source_power`: from every source alike to halfway to every row alike.
_SOURCE_POWERS = (0.0, 0.25, 0.5)
# Tried for `taught`: sources that were met at first sight err 1.5 times as much then as now, older
# ones half as much as those do at first.
_TAUGHT = (1.0, 1.5, 2.0)
# Tried for `communication` and `launches`.
_COMMUNICATION = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
_ABOUT = (
    "How far predictions lie from measurements: ln(measured / predicted) by source of runs and "
    "family (framework, GPU architecture, inside one scale-up domain or beyond, dense or MoE); "
    "planner/predict/uncertainty/residuals.py says how intervals come from it. Predicted with "
    "the constants that leave the run's source out (held_out.toml). held_out: share of runs in "
    "the 80 % interval that all *other* sources give them, and how many. growth: standard "
    "deviation added for each doubling outside what was measured; unmeasured: for what has no "
    "run. taught: errors of strangers over today's. "
    "By: python -m planner.evidence.fit.residual_fit."
)
_LAUNCHES = (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table, how its intervals cover held-out runs, and how many times as large as today's errors
    those of a stranger are taken to be."""

    table: ResidualTable
    coverage: HeldOut
    taught: float


def residuals(predictions: Iterable[Prediction], figure: Figure) -> list[Residual]:
    """Log residuals of the runs that test one figure."""
    found: list[Residual] = []
    named: dict[tuple[str, int], Residual] = {}
    for prediction in predictions:
        error = error_of(prediction, figure)
        if error is None or not tells(prediction, figure):
            continue
        job, row, source = prediction.job, prediction.row, prediction.row.source
        at = prediction.conditions if figure == "time" else conditions_of(job)
        counts = figure == "memory" or source not in NOT_FITTED_ON
        first, log = _at_first_sight(row, figure), -math.log1p(error)
        is_named = row.text("framework") is not None
        known = named.get((row.file, row.line))
        if first is not None and not is_named:
            first = None if known is None else first + log - known.value
        residual = Residual(source, family_of(job), log, at or UNKNOWN, counts, first, is_named)
        if is_named:
            named[row.file, row.line] = residual
        found.append(residual)
    return found


def _at_first_sight(row: MeasuredRow, figure: Figure) -> float | None:
    """ln(measured / predicted), under its framework's name, before the row had taught anything;
    None where it was not kept."""
    measured, first = FIRST_SIGHT[figure]
    known, said = row.measurement(measured), row.number(first)
    return None if known is None or said is None else math.log(known / said)


def fitted_table(found: Sequence[Residual], figure: Figure) -> FittedTable:
    """The table of one figure with its constants fitted on held-out sources."""
    judged_runs = both_ways(found)

    def plain(prior_rows: float, power: float, taught: float) -> ResidualTable:
        entries = summarised(residual.to_a_stranger(taught) for residual in found)
        return ResidualTable(figure, entries, prior_rows, 1.0, power)

    factors = _TAUGHT if any(one.first is not None for one in judged_runs) else (1.0,)
    *numbers, _ = _best(
        lambda *numbers: judge(plain(*numbers), judged_runs), _PRIOR_ROWS, _SOURCE_POWERS, factors
    )
    taught = numbers[-1]
    found = [residual.to_a_stranger(taught) for residual in found]
    table = _with_unmeasured_errors(plain(*numbers), judged_runs)
    table = replace(table, entries=summarised(without_unmeasured_errors(table, found)))
    table = with_growth(table, [residual for residual in found if residual.named])
    judged = judge(table, judged_runs)
    inflation = judged.inflation()
    return FittedTable(replace(table, inflation=inflation), judged.coverage(inflation), taught)


def _best(judged: Callable[..., Judged], *tried: Sequence[float]) -> tuple[float, ...]:
    """The numbers, one of each list, whose intervals score best, and their inflation."""
    scored = []
    for numbers in product(*tried):
        found = judged(*numbers)
        inflation = found.inflation()
        scored.append((found.score(inflation), *numbers, inflation))
    return min(scored)[1:]


def _with_unmeasured_errors(table: ResidualTable, found: Sequence[Residual]) -> ResidualTable:
    """The table with the errors of exposed communication and of waiting for the CPU, and its
    inflation. Of memory both are 0."""
    judged = judge(table, found)
    exposed = np.array([residual.at.exposed for residual in found])
    waiting = np.array([residual.at.waiting for residual in found])
    communication, launches, inflation = _best(
        lambda one, other: replace(judged, known=np.hypot(one * exposed, other * waiting)),
        _COMMUNICATION,
        _LAUNCHES,
    )
    return replace(table, communication=communication, launches=launches, inflation=inflation)


def render(fitted: Sequence[FittedTable]) -> str:
    """The JSON file: a line for each source's runs of a family."""
    about = f"{_ABOUT} Written {datetime.now(UTC):%Y-%m-%d}."
    parts = [f'"about": {json.dumps(about)}']
    parts += [f'"{one.table.figure}": {_render_table(one)}' for one in fitted]
    return "{" + ",\n".join(parts) + "}\n"


def _render_table(fitted: FittedTable) -> str:
    table, coverage = fitted.table, fitted.coverage
    numbers = {
        "prior_rows": table.prior_rows,
        "source_power": table.source_power,
        "taught": fitted.taught,
        "inflation": _rounded(table.inflation),
        "communication": table.communication,
        "launches": table.launches,
        **{
            f"held_out_{name}": {"rows": round(one.rows, 3), "sources": round(one.sources, 3)}
            for name, one in (("today", coverage.today), ("at_first_sight", coverage.met))
        },
        **{
            part: {name: _rounded(value) for name, value in getattr(table, part).items()}
            for part in ("growth", "unmeasured")
        },
        "held_out": {
            source: (round(share, 3), rows)
            for source, (share, rows) in (coverage.today.by_source | coverage.met.by_source).items()
        },
    }
    entries = (
        entry.model_dump()
        | {"measured": {axis: [*map(_rounded, ends)] for axis, ends in entry.measured.items()}}
        for entry in table.entries
    )
    runs = ",\n".join(map(json.dumps, entries))
    return f'{json.dumps(numbers)[:-1]},\n"runs": [\n{runs}]}}'


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def fit_all(predictions: Sequence[Prediction]) -> list[FittedTable]:
    """Tables of time and memory, as far as they were measured."""
    factors = {source: item.factors for source, item in shipped().items()}
    unnamed = predict_rows(prediction.row.unnamed for prediction in predictions)
    unseen = predict_held_out([*predictions, *unnamed], factors)
    found: dict[Figure, list[Residual]] = {
        figure: residuals(unseen, figure) for figure in FIRST_SIGHT
    }
    return [fitted_table(runs, figure) for figure, runs in found.items() if runs]


def main(paths: Sequence[str]) -> None:
    """Write the file to standard output."""
    sys.stdout.write(render(fit_all(predict_rows(rows_of_errors(paths)))))


if __name__ == "__main__":
    run(main, sys.argv[1:])
