"""Errors that a source of runs did not help to shrink: constants refitted without each source.

    python -m tests.fit.held_out [RUNS.csv|FOLDER ...] -o FOLDER

writes into the folder (`planner/evidence/data`) what `planner.evidence.runs.left_out` reads, the
factors by which constants differ without each source (`held_out.toml`), and what pages and tests
show of them (`held_out_errors.toml`, which is in no wheel).

The runs of a source are predicted, exactly, with the shipped constants times what leaving the
source out changes: exp(without it - with all), as `tests.fit.constants_fit` has it.
`tests.fit.residual_fit` makes the error bars from such held-out predictions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from statistics import fmean, median

import tomli as tomllib

from planner.evidence.runs.constants import CONSTANTS
from planner.evidence.runs.left_out import predict_held_out
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.report import error_of
from planner.evidence.runs.rows import FIRST_SIGHT, PUBLISHED, grouped
from planner.job.written import toml_text, write_text
from planner.predict.uncertainty.families import Figure
from tests.fit.command import folder_of, measured_rows, run
from tests.fit.constants_fit import (
    ConstantEvidence,
    FittedRuns,
    evidence_of,
    fitted_factors,
    linearised_all,
)

COMMAND = "python -m tests.fit.held_out"
FACTORS, ERRORS = "held_out.toml", "held_out_errors.toml"


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


_ABOUT_FACTORS = """\
# By which factor each constant of whole steps and of peaks would differ without a source
# (planner/evidence/runs/left_out.py). Not listed: constants that the source does not move.
"""
_ABOUT_ERRORS = """\
# Errors of predicted step times and peaks by source, with the shipped constants, which saw
# most sources, and with constants fitted on all others (tests/fit/constants_fit.py).
# |predicted / measured - 1|; bias is its signed median.
# `constant`: the value that ships, the best fit of all runs, what it would be without
# runs, and what to ship by `ConstantEvidence.shrunk`: one source's fit half way back.
"""


def render_factors(found: Mapping[str, SourceErrors]) -> str:
    """The file that the planner reads: a line for each source."""
    return "".join([_head(_ABOUT_FACTORS), "\n[factors]\n", *map(_factors_line, found.items())])


def _head(about: str) -> str:
    return about + toml_text({"date": f"{datetime.now(UTC):%Y-%m-%d}", "command": COMMAND})


def _factors_line(source: tuple[str, SourceErrors]) -> str:
    name, item = source
    texts = ((constant, f"{by:.4g}") for constant, by in item.factors.items())
    pairs = ", ".join(f"{constant} = {text}" for constant, text in texts if text != "1")
    return f'"{name}" = {{ {pairs} }}\n' if pairs else f'"{name}" = {{}}\n'


def render_errors(
    found: Mapping[str, SourceErrors], constants: Mapping[str, ConstantEvidence] | None = None
) -> str:
    """The file of errors; `constants`: what each rests on."""
    listed = {constant.name: constant for constant in CONSTANTS}
    content = {
        "source": {
            source: {
                figure: asdict(errors)
                for figure in FIRST_SIGHT
                if (errors := getattr(item, figure)) is not None
            }
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
    return _head(_ABOUT_ERRORS) + toml_text(content)


def parse_errors(text: str) -> dict[str, dict[Figure, FigureErrors]]:
    """What `render_errors` wrote, by source and figure."""
    return {
        source: {figure: FigureErrors(**item[figure]) for figure in FIRST_SIGHT if figure in item}
        for source, item in tomllib.loads(text).get("source", {}).items()
    }


@cache
def shipped_errors() -> dict[str, dict[Figure, FigureErrors]]:
    """The errors of the shipped sources; empty before the file was made."""
    path = PUBLISHED.with_name(ERRORS)
    return parse_errors(path.read_text(encoding="utf-8")) if path.is_file() else {}


def main(arguments: Sequence[str]) -> None:
    """Write both files into the folder given."""
    paths, folder = folder_of(arguments)
    predictions = predict_rows(measured_rows(paths))
    fits = linearised_all(predictions)
    constants = {name: one for runs in fits for name, one in evidence_of(runs).items()}
    found = held_out(predictions, fits)
    write_text(folder / FACTORS, render_factors(found), force=True)
    write_text(folder / ERRORS, render_errors(found, constants), force=True)


if __name__ == "__main__":
    run(main, sys.argv[1:])
