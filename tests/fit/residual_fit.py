"""Refit of the error bars: how far predictions lie from measured runs, by source and family.

    python -m tests.fit.residual_fit [RUNS.csv|FOLDER ...] >
    planner/predict/uncertainty/residuals.json

`planner.predict.uncertainty.residuals` says how the file is read. Runs are predicted with the
constants that leave their source out (`tests.fit.held_out`, whose file is read). A
stranger's errors are larger than those of a source that the model has learnt from, and errors at
first sight are those of a model that knew less than today's: bars are fitted to both, all runs as
they are predicted today and those that were met so as they were met, which weigh as much
(`judging.both_ways`). Every run is judged by the half widths that the runs of *other* sources make
(`tests.fit.error_fit`). `growth` and `unmeasured` come from ranges left out
(`tests.fit.judging`), `shares` from the runs about their bars
(`tests.fit.components`). All half widths are then multiplied by what
makes held-out intervals cover 80 % in the mean of both (`judging.HeldOut`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from planner.evidence.runs.left_out import left_out_factors, predict_held_out
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.report import error_of
from planner.evidence.runs.rows import FIRST_SIGHT, TUNED_RUNS, MeasuredRow
from planner.job.job import Job
from planner.predict.uncertainty.families import Family, Figure, as_trained_in_full
from planner.predict.uncertainty.intervals import conditions_of, family_of, is_tuned
from planner.predict.uncertainty.measured_range import UNKNOWN
from planner.predict.uncertainty.residuals import (
    FOLDS,
    ErrorTable,
    HalfWidths,
    fold_of,
)
from planner.predict.uncertainty.shipped import TUNED
from tests.fit.command import rows_of_errors, run
from tests.fit.components import variance_shares
from tests.fit.constants_fit import NOT_FITTED_ON, tells
from tests.fit.error_fit import fitted_errors
from tests.fit.judging import (
    Fit,
    HeldOut,
    Residual,
    both_ways,
    judge,
    summarised,
    with_growth,
)

_ABOUT = (
    "How far predictions lie from measurements, |ln(measured / predicted)| downwards and upwards: "
    "half widths of 80 % intervals by part of the prediction (parts) and logarithms of factors by "
    "kind of job (kinds); planner/predict/uncertainty/residuals.py says how intervals come from "
    "it. Predicted with the constants that leave the run's source out (held_out.toml). folds: the "
    "same without each tenth of the sources. held_out: share of runs in the 80 % interval that "
    "*other* sources give them, and how many. shares: of the variance. growth: standard deviation "
    "added for each doubling outside what was measured; unmeasured: for what has no run. runs: of "
    "a source in a family, with what they reach. By: python -m tests.fit.residual_fit."
)


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table, and how its intervals cover held-out runs."""

    table: ErrorTable
    coverage: HeldOut


def residuals(
    predictions: Iterable[Prediction], figure: Figure, *, tuned: bool = False
) -> list[Residual]:
    """Log residuals of the runs that test one figure; `tuned`: of fine-tuning."""
    found: list[Residual] = []
    for prediction in predictions:
        error = error_of(prediction, figure)
        if error is None or not tells(prediction, figure):
            continue
        job, row, source = prediction.job, prediction.row, prediction.row.source
        at = prediction.conditions if figure == "time" else conditions_of(job)
        counts = figure == "memory" or source not in NOT_FITTED_ON
        first = _at_first_sight(row, figure)
        log = -math.log1p(error)
        found.append(Residual(source, _family(job, tuned=tuned), log, at or UNKNOWN, counts, first))
    return found


def _family(job: Job, *, tuned: bool) -> Family:
    """The family of a job; among runs of full training, those of adapters count as such runs."""
    family = family_of(job)
    return family if tuned else as_trained_in_full(family)


def _at_first_sight(row: MeasuredRow, figure: Figure) -> float | None:
    """ln(measured / predicted) before the row had taught anything; None where it was not kept."""
    measured, first = FIRST_SIGHT[figure]
    known, said = row.measurement(measured), row.number(first)
    return None if known is None or said is None else math.log(known / said)


def fitted_table(
    found: Sequence[Residual], figure: Figure, beside: ErrorTable | None = None
) -> FittedTable:
    """The table of one figure, fitted on held-out sources; `beside`: of another way of training, of
    whose runs, which reach much further, the growth of errors outside of them is."""
    runs, fit = both_ways(found), partial(fitted_errors, figure)
    table = ErrorTable(figure, summarised(runs), fit(runs), beside=beside)
    table = replace(table, folds=tuple(_without_folds(table, runs, fit)))
    if beside is None:
        table = with_growth(table, runs, fit)
    else:
        table = replace(table, growth=beside.growth, unmeasured=beside.unmeasured)
    inflation = judge(table, runs).inflation()
    table = replace(
        table,
        errors=table.errors.times(inflation),
        folds=tuple(fold.times(inflation) for fold in table.folds),
    )
    judged = judge(table, runs)
    table = replace(table, shares=variance_shares(judged, runs))
    return FittedTable(table, judged.coverage())


def _without_folds(table: ErrorTable, found: Sequence[Residual], fit: Fit) -> Iterator[HalfWidths]:
    """Half widths by the sources outside of each fold; by all where that has all of them."""
    fold_by_source = {source: fold_of(source, table.sources) for source in table.sources}
    for fold in range(FOLDS):
        kept = [one for one in found if fold_by_source.get(one.source) != fold]
        yield fit(kept) if any(one.counts for one in kept) else table.errors


def render(fitted: Sequence[FittedTable], tuned: Sequence[FittedTable] = ()) -> str:
    """The JSON file: a line for each source's runs of a family; `tuned`: tables of fine-tuning."""
    about = f"{_ABOUT} Written {datetime.now(UTC):%Y-%m-%d}."
    parts = [f'"about": {json.dumps(about)}']
    parts += [f'"{one.table.figure}": {_render_table(one)}' for one in fitted]
    if tuned:
        tables = (f'"{one.table.figure}": {_render_table(one)}' for one in tuned)
        parts.append(f'"{TUNED}": {{' + ",\n".join(tables) + "}")
    return "{" + ",\n".join(parts) + "}\n"


def _render_table(fitted: FittedTable) -> str:
    table, coverage = fitted.table, fitted.coverage
    numbers = {
        **{
            f"held_out_{name}": {"rows": round(one.rows, 3), "sources": round(one.sources, 3)}
            for name, one in (("today", coverage.today), ("at_first_sight", coverage.met))
        },
        "errors": asdict(table.errors),
        "folds": [asdict(fold) for fold in table.folds],
        **{part: getattr(table, part) for part in ("shares", "growth", "unmeasured")},
        "held_out": {
            source: (round(share, 3), rows)
            for source, (share, rows) in (coverage.today.by_source | coverage.met.by_source).items()
        },
    }
    runs = ",\n".join(json.dumps(_plain(entry.model_dump())) for entry in table.entries)
    parts = (f"{json.dumps(name)}: {json.dumps(_plain(part))}" for name, part in numbers.items())
    return "{" + ",\n".join(parts) + f',\n"runs": [\n{runs}]}}'


def _plain(item: Any) -> Any:
    """With every float to six digits."""
    if isinstance(item, float):
        return _rounded(item)
    if isinstance(item, Mapping):
        return {name: _plain(part) for name, part in item.items()}
    return [_plain(part) for part in item] if isinstance(item, tuple | list) else item


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def fit_all(predictions: Sequence[Prediction]) -> list[FittedTable]:
    """Tables of time and memory, as far as they were measured."""
    unseen = predict_held_out(predictions, left_out_factors())
    found: dict[Figure, list[Residual]] = {
        figure: residuals(unseen, figure) for figure in FIRST_SIGHT
    }
    return [fitted_table(runs, figure) for figure, runs in found.items() if runs]


def fit_tuned(
    predictions: Sequence[Prediction], full: Mapping[Figure, ErrorTable]
) -> list[FittedTable]:
    """Tables of those of the runs that fine-tune (`intervals.is_tuned`), which no constant is
    fitted on; `full`: of training in full."""
    chosen = [one for one in predictions if one.mapped is not None and is_tuned(one.job)]
    found = ((figure, residuals(chosen, figure, tuned=True)) for figure in FIRST_SIGHT)
    return [fitted_table(runs, figure, full.get(figure)) for figure, runs in found if runs]


def main(paths: Sequence[str]) -> None:
    """Write the file to standard output: of the runs given, or of both sets that ship."""
    fitted = fit_all(predict_rows(rows_of_errors(paths)))
    full = {one.table.figure: one.table for one in fitted}
    tuned = [] if paths else fit_tuned(predict_rows(rows_of_errors([str(TUNED_RUNS)])), full)
    sys.stdout.write(render(fitted, tuned))


if __name__ == "__main__":
    run(main, sys.argv[1:])
