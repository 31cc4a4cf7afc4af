"""Errors that a source of runs did not help to shrink: constants refitted without each source.

    python -m planner.evidence.fit.held_out [RUNS.csv|FOLDER ...] >
    planner/evidence/data/held_out.toml

The runs of a source are predicted, exactly, with the shipped constants times what leaving the
source out changes: exp(without it - with all), as `planner.evidence.fit.constants_fit` has it.

`planner.evidence.fit.residual_fit` reads the factors of the file and makes the error bars from such
held-out predictions.

Tables of `planner validate` show rows as somebody predicts them who has not seen their source
(`left_out`). A framework that no other source has measured is predicted as a stranger to it would
be: by what the row says that it does, with no name, so that nothing in a profile that was made from
one source helps to predict that source. What such a source taught in the form of a mechanism stays;
how rows were predicted before it was there, the tables of first sights show.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from statistics import fmean, median

import tomli as tomllib

from planner.evidence.fit.command import measured_rows, run
from planner.evidence.fit.constants_fit import (
    ConstantEvidence,
    FittedRuns,
    evidence_of,
    fitted_factors,
    linearised_all,
)
from planner.evidence.fit.step_fit import CONSTANTS
from planner.evidence.runs.predict import Prediction, cost_predictions, predict_rows
from planner.evidence.runs.report import at_first_sight, error_of
from planner.evidence.runs.rows import FIRST_SIGHT, grouped
from planner.job.job import Job
from planner.job.written import toml_text
from planner.predict.cost_model import CostModel
from planner.predict.uncertainty.families import UNFAMILIAR, Figure
from planner.predict.uncertainty.shipped import shipped_tables

# Factor of each constant by name, for the runs of each source.
SourceFactors = Mapping[str, Mapping[str, float]]

COMMAND = "python -m planner.evidence.fit.held_out"


@dataclass(frozen=True, slots=True)
class FigureErrors:
    """Median and mean |predicted / measured - 1| and signed median of one source's runs: with the
    shipped constants, and with those that leave it out."""

    rows: int
    median: float
    mean: float
    bias: float
    held_out_median: float
    held_out_mean: float
    held_out_bias: float


@dataclass(frozen=True, slots=True)
class SourceErrors:
    """Errors of a source's step times and peaks, where it has any, and what leaving it out does to
    constants, as factors on the shipped values."""

    time: FigureErrors | None = None
    memory: FigureErrors | None = None
    factors: dict[str, float] = field(default_factory=dict)


def held_out(
    predictions: Sequence[Prediction], fits: Iterable[FittedRuns] | None = None
) -> dict[str, SourceErrors]:
    """Errors of every source with step times or peaks, with and without its part in the constants;
    `fits`: the runs' linearised form, where it is known already."""
    measured = [
        one
        for one in predictions
        if any(error_of(one, figure) is not None for figure in FIRST_SIGHT)
    ]
    factors = fitted_factors(measured, fits)
    again = predict_held_out(measured, factors)
    errors = {figure: _held_out_errors(measured, again, figure) for figure in FIRST_SIGHT}
    return {
        source: SourceErrors(
            **{figure: found.get(source) for figure, found in errors.items()},
            factors={name: by for name, by in factors.get(source, {}).items() if by != 1.0},
        )
        for source in sorted(set().union(*errors.values()))
    }


def _held_out_errors(
    before: Iterable[Prediction], after: Iterable[Prediction], figure: Figure
) -> dict[str, FigureErrors]:
    first, again = _errors(before, figure), _errors(after, figure)
    return {source: FigureErrors(*found, *again[source][1:]) for source, found in first.items()}


def _errors(
    predictions: Iterable[Prediction], figure: Figure
) -> dict[str, tuple[int, float, float, float]]:
    """Number of runs, median and mean size of their errors and signed median, by source."""
    found = {}
    for source, runs in grouped(predictions, lambda prediction: prediction.row.source).items():
        errors = [error for run in runs if (error := error_of(run, figure)) is not None]
        if errors:
            sizes = [abs(error) for error in errors]
            found[source] = len(errors), median(sizes), fmean(sizes), median(errors)
    return found


def predict_held_out(predictions: Sequence[Prediction], factors: SourceFactors) -> list[Prediction]:
    """The same rows, each with the constants times its source's factors."""
    results = list(predictions)
    changed = {source for source, some in factors.items() if any(by != 1.0 for by in some.values())}
    chosen = (index for index, one in enumerate(results) if one.row.source in changed)
    for source, indices in grouped(chosen, lambda index: predictions[index].row.source).items():
        costed = cost_predictions(
            [results[index] for index in indices],
            lambda job, by=factors[source]: CostModel(job, multiplied(job, by)),  # type: ignore[misc]
        )
        for index, prediction in zip(indices, costed, strict=True):
            results[index] = prediction
    return results


def multiplied(job: Job, factors: Mapping[str, float]) -> dict[str, float]:
    """Factors of the core's fields that a job depends on, by those of constants."""
    items = [one for one in CONSTANTS if factors.get(one.name, 1.0) != 1.0 and one.applies(job)]
    return {name: factors[one.name] for one in items for name in one.fields}


_ABOUT = """\
# Errors of predicted step times and peaks by source, with the shipped constants, which saw
# most sources, and with constants fitted on all others (planner/evidence/fit/constants_fit.py).
# |predicted / measured - 1|; bias is its signed median. `factors`: on the shipped value.
# `constant`: the value that ships, the best fit of all runs, what it would be without
# runs, and what to ship by `ConstantEvidence.shrunk`: one source's fit half way back.
"""


def render(
    found: Mapping[str, SourceErrors], constants: Mapping[str, ConstantEvidence] | None = None
) -> str:
    """The TOML file; `constants`: what each rests on."""
    listed = {constant.name: constant for constant in CONSTANTS}
    content = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": COMMAND,
        "source": {
            source: {name: part for name, part in asdict(item).items() if part is not None}
            for source, item in found.items()
        },
        "constant": {
            name: {
                "figure": listed[name].figure,
                "file": listed[name].file,
                **asdict(one),
                "shrunk": one.shrunk,
            }
            for name, one in (constants or {}).items()
        },
    }
    return _ABOUT + toml_text(content)


def parse(text: str) -> dict[str, SourceErrors]:
    """What `render` wrote, by source."""
    return {
        source: SourceErrors(
            **{figure: FigureErrors(**item[figure]) for figure in FIRST_SIGHT if figure in item},
            factors=item.get("factors", {}),
        )
        for source, item in tomllib.loads(text).get("source", {}).items()
    }


@cache
def shipped() -> dict[str, SourceErrors]:
    """`planner/evidence/data/held_out.toml`; empty before it was made."""
    path = files("planner.evidence").joinpath("data/held_out.toml")
    return parse(path.read_text(encoding="utf-8")) if path.is_file() else {}


def main(paths: Sequence[str]) -> None:
    """Write the file to standard output."""
    predictions = predict_rows(measured_rows(paths))
    fits = linearised_all(predictions)
    constants = {name: one for runs in fits for name, one in evidence_of(runs).items()}
    sys.stdout.write(render(held_out(predictions, fits), constants))


def measured_by() -> dict[str, frozenset[str]]:
    """Sources of the shipped runs of each framework."""
    found: dict[str, set[str]] = defaultdict(set)
    for table in shipped_tables().values():
        for entry in table.entries:
            if entry.framework != UNFAMILIAR:
                found[entry.framework].add(entry.source)
    return {framework: frozenset(sources) for framework, sources in found.items()}


def left_out(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Rows of the shipped sources, each predicted without its own; refused ones are left away."""
    factors = {source: item.factors for source, item in shipped().items()}
    sources = measured_by()
    everyone = frozenset(factors).union(*sources.values())
    known = [item for item in predictions if item.row.source in everyone and not item.error]
    # Those whose source is the only one that has measured their framework.
    alone = [
        index
        for index, item in enumerate(known)
        if sources.get(item.job.framework.family or item.job.framework.name)
        == frozenset((item.row.source,))
    ]
    strange = predict_rows(known[index].row.unnamed for index in alone)
    for index, item in zip(alone, strange, strict=True):
        known[index] = item
    return predict_held_out(known, factors)


def other_views(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    """What `planner.evidence.runs.bars` judges beside today's predictions: the same rows without
    their sources, and at first sight."""
    return {"left_out": left_out(predictions), "first_sight": at_first_sight(predictions)}


if __name__ == "__main__":
    run(main, sys.argv[1:])
