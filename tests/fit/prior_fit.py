"""Refit of what is known of facts that rows leave open: how likely their values are, and what
silence means.

    python -m tests.fit.prior_fit [RUNS.csv|FOLDER ...] >
    planner/evidence/data/open_priors.toml

`planner.evidence.runs.plausible` says how the file is read. The shares of values are counted from
runs that state a fact and on which it bears. Whether the year of the software tells more than the
framework alone is decided by the mean log probability of what each source states, seen by all
others.

`silence`, how likely an open fact is what the framework does by default, is the one of a short
list with the best interval score of runs that leave it open, other facts as by default; runs of a
source weigh as the square root of their number, and errors of first sights, where they were kept,
as much as those of today with the source left out. Where fewer than `_FEWEST_SOURCES` leave a fact
open, or no mixture scores better by a standard error over the sources, it is 1: the fact is listed,
and the prediction and its bar stay those of the default.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import fsum, hypot, log, sqrt
from statistics import fmean
from typing import NamedTuple

import numpy as np

from planner.evidence.runs.doubts import with_values
from planner.evidence.runs.left_out import left_out_factors, predict_held_out
from planner.evidence.runs.open_facts import fact_named, stated_facts, varied
from planner.evidence.runs.plausible import Prior, StatedShares, year_of
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.report import at_first_sight, known
from planner.evidence.runs.rows import FIRST_SIGHT, grouped
from planner.predict.uncertainty.families import Figure
from planner.predict.uncertainty.interval_score import interval_scores
from planner.predict.uncertainty.intervals import log_bounds, spread_of
from planner.predict.uncertainty.open_mixture import OpenFact
from planner.predict.uncertainty.residuals import Spread
from tests.fit.command import measured_rows, run

_SILENCES = (0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
_SUREST = _SILENCES[-1]
_FEWEST_SOURCES = 5
# At which the spread of a fact is stated.
_EVEN = 0.5
_ABOUT = """\
# What sources that state a fact say of its values, and how likely a fact that a row leaves open
# is what the framework does by default (`silence`). Written by: {command}
# source, group (framework, or GPU architecture), year of the software (0: unknown), runs, shares.
"""
COMMAND = "python -m tests.fit.prior_fit"


# --- shares of values ---------------------------------------------------------------------------


def stated_shares(predictions: Sequence[Prediction]) -> dict[str, list[StatedShares]]:
    """What each source states of each varied fact, by group and year."""
    counts: dict[str, dict[tuple[str, str, int], Counter[str]]] = defaultdict(
        lambda: defaultdict(Counter)
    )
    for prediction in predictions:
        for column, value in stated_facts(prediction).items():
            group = fact_named(column).group(prediction.job)
            key = prediction.row.source, group, year_of(prediction.row)
            counts[column][key][value.cell] += 1
    return {
        column: [_shares(*key, found) for key, found in sorted(some.items())]
        for column, some in counts.items()
    }


def _shares(source: str, group: str, year: int, found: Counter[str]) -> StatedShares:
    rows = found.total()
    shares = {value: round(count / rows, 4) for value, count in sorted(found.items())}
    return StatedShares(source=source, group=group, year=year, rows=rows, shares=shares)


def year_tells(stated: Sequence[StatedShares], values: Sequence[str]) -> bool:
    """Whether what a source states is likelier by its year than by its framework alone, as seen by
    all others."""
    by_year, plain = (
        _mean_log(Prior(silence=1.0, by_year=by_year, stated=tuple(stated)), values)
        for by_year in (True, False)
    )
    return by_year > plain


def _mean_log(prior: Prior, values: Sequence[str]) -> float:
    """Mean over sources of the mean log probability of what they state."""
    found: dict[str, list[float]] = defaultdict(list)
    for one in prior.stated:
        weights = prior.weights(values, one.group, one.year, one.source)
        found[one.source].append(fsum(s * log(weights[v]) for v, s in one.shares.items()))
    return fmean(map(fmean, found.values()))


# --- what silence means -------------------------------------------------------------------------


class Outcome(NamedTuple):
    """ln(measured / predicted by default) of a run, the spread of such runs where nothing is
    open, and one of its open facts."""

    source: str
    figure: Figure
    value: float
    spread: Spread
    fact: OpenFact


def outcomes(predictions: Sequence[Prediction]) -> Iterator[Outcome]:
    """Every measured run that an open fact moves, as its source left out predicts it, and at first
    sight; `predictions`: with their open facts."""
    found = [one for one in predictions if one.opened]
    unseen = predict_held_out(found, left_out_factors())
    views = {"": unseen, ", at first sight": at_first_sight(found)}
    for name, some in views.items():
        for one in some:
            for figure in FIRST_SIGHT:
                yield from _of_run(one, figure, name)


def _of_run(one: Prediction, figure: Figure, view: str) -> Iterator[Outcome]:
    pair = known(one, figure)
    if pair is None:
        return
    at = one.conditions if figure == "time" else None
    spread, _ = spread_of(one.job, figure, one.row.source, at)
    for fact in one.opened:
        if fact.moves(figure):
            value = log(pair[1] / pair[0])
            yield Outcome(one.row.source + view, figure, value, spread, fact)


def silences(found: Iterable[Outcome]) -> dict[str, Mapping[str, list[float]]]:
    """Of each fact and source the weighted sum of the interval scores under each silence."""
    by_fact: dict[str, Mapping[str, list[float]]] = {}
    for fact, members in grouped(found, lambda one: one.fact.name).items():
        by_source = grouped(members, lambda one: one.source)
        by_fact[fact] = {
            source: [
                fsum(_score(one, silence) for one in some) / sqrt(len(some))
                for silence in _SILENCES
            ]
            for source, some in by_source.items()
        }
    return by_fact


def _score(one: Outcome, silence: float) -> float:
    """The interval score of a run whose fact is predicted over."""
    doubt = OpenFact(one.fact.name, silence, one.fact.values).doubt(one.figure)
    ends = (doubt.median + end for end in log_bounds(one.spread, doubt))
    low, high, value = (np.array([number]) for number in (*ends, one.value))
    return float(interval_scores(low, high, value)[0])


def best_silence(curves: Mapping[str, Sequence[float]], without: str = "") -> float:
    """The silence of the best score over all sources but one (at first sight, too); the surest
    where few are left, or where it gains less than one standard error over the sources."""
    left = {name: curve for name, curve in curves.items() if name.partition(",")[0] != without}
    if len({name.partition(",")[0] for name in left}) < _FEWEST_SOURCES:
        return _SUREST
    sums = [fsum(curve[at] for curve in left.values()) for at in range(len(_SILENCES))]
    best = min(range(len(sums)), key=lambda at: (sums[at], -at))
    gains = [curve[-1] - curve[best] for curve in left.values()]
    return _SILENCES[best] if fsum(gains) > hypot(*gains) else _SUREST


def fitted_priors(predictions: Sequence[Prediction]) -> dict[str, Prior]:
    """Priors of all facts that are varied and that any source states."""
    cells, stated = dict(varied()), stated_shares(predictions)
    shares = {
        column: Prior(silence=_SUREST, by_year=year_tells(some, cells[column]), stated=tuple(some))
        for column, some in stated.items()
    }
    opened = with_values(predictions, shares)
    curves = silences(outcomes(opened))
    found = {
        column: prior.model_copy(update=_silence(curves.get(column, {})))
        for column, prior in shares.items()
    }
    return {
        column: prior.model_copy(update={"spread": _spread(column, opened)})
        for column, prior in found.items()
    }


def _spread(column: str, opened: Sequence[Prediction]) -> float:
    """Of the measured runs that leave a fact open, were it as likely what others state as the
    default."""
    facts = [
        (replace(fact, silence=_EVEN), figure)
        for one in opened
        for fact in one.opened
        for figure in FIRST_SIGHT
        if fact.name == column and known(one, figure)
    ]
    by_figure = grouped(facts, lambda pair: pair[1]).values()
    means = [fmean(fact.doubt(figure).variance for fact, figure in some) for some in by_figure]
    return sqrt(max(means, default=0.0))


def _silence(curves: Mapping[str, Sequence[float]]) -> dict[str, object]:
    everyone = best_silence(curves)
    sources = {source.partition(",")[0] for source in curves}
    others = {source: best_silence(curves, source) for source in sorted(sources)}
    return {
        "silence": everyone,
        "silence_without": {name: one for name, one in others.items() if one != everyone},
    }


# --- the file -----------------------------------------------------------------------------------


def render(found: Mapping[str, Prior]) -> str:
    """The TOML file; a line for what a source states."""
    parts = [_ABOUT.format(command=COMMAND), f'date = "{datetime.now(UTC):%Y-%m-%d}"\n']
    for column, prior in found.items():
        lines = [f"\n[{column}]", f"silence = {prior.silence:g}"]
        if prior.silence_without:
            lines.append(f"silence_without = {_inline(prior.silence_without)}")
        lines += [
            f"spread = {prior.spread:.4f}",
            f"by_year = {str(prior.by_year).lower()}",
            "stated = [",
        ]
        lines += [f"    {_line(one)}," for one in prior.stated]
        parts.append("\n".join([*lines, "]\n"]))
    return "".join(parts)


def _line(one: StatedShares) -> str:
    return (
        f'{{ source = "{one.source}", group = "{one.group}", year = {one.year}, '
        f"rows = {one.rows}, shares = {_inline(one.shares)} }}"
    )


def _inline(numbers: Mapping[str, float]) -> str:
    return "{ " + ", ".join(f'"{name}" = {value:g}' for name, value in numbers.items()) + " }"


def main(paths: Sequence[str]) -> None:
    """Write the file to standard output."""
    sys.stdout.write(render(fitted_priors(predict_rows(measured_rows(paths)))))


if __name__ == "__main__":
    run(main, sys.argv[1:])
