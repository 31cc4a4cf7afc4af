"""Judge error bars by width, coverage and interval score, by family of runs.

The families are those of the error bars (framework profile, GPU architecture, inside one scale-up
domain or beyond, dense or mixture). Each has a mean over its runs, and a mean over its sources of
each source's mean, so that a source with 200 runs does not dominate. The same runs have three
views:

* known: predicted with today's constants;
* left out: predicted with constants fitted without the run's source;
* at first sight: as predicted before anything was changed because of the run
  (`first_sight_*`).

In every view the interval comes from the runs of other sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.report import RunComparison, comparison, log_bars
from planner.evidence.runs.rows import FIRST_SIGHT, grouped
from planner.predict.uncertainty.families import Figure
from planner.predict.uncertainty.interval_score import BarQuality, bar_quality
from planner.predict.uncertainty.intervals import family_of

# Predictions of the same rows by view: `known`, `left_out`, `first_sight`.
Views = Mapping[str, Sequence[Prediction]]
ALL_RUNS = "all runs"


@dataclass(frozen=True, slots=True)
class FamilyBars:
    """The quality of the error bars of one figure over one family of runs."""

    family: str
    quality: BarQuality


def family_bars(predictions: Sequence[Prediction], figure: Figure) -> list[FamilyBars]:
    """The bars of a figure by family, those with most sources first, followed by the bars of all
    runs; empty if nothing was measured."""
    found = [(one, run) for one in predictions if (run := comparison(one, figure)) is not None]
    if not found:
        return []
    by_family = grouped(found, lambda pair: ", ".join(family_of(pair[0].job)))
    families = [_bars(name, members) for name, members in by_family.items()]
    families.sort(key=lambda one: (-one.quality.sources, -one.quality.runs, one.family))
    return [*families, _bars(ALL_RUNS, found)]


def _bars(name: str, members: Sequence[tuple[Prediction, RunComparison]]) -> FamilyBars:
    sources = [one.row.source for one, _ in members]
    return FamilyBars(name, bar_quality(*log_bars([run for _, run in members]), sources))


def bars_record(views: Views) -> dict[str, Any]:
    """The bars of every view and figure as plain records, in the order of `family_bars`."""
    return {
        view: {
            figure: [{"family": one.family, **asdict(one.quality)} for one in families]
            for figure in FIRST_SIGHT
            if (families := family_bars(predictions, figure))
        }
        for view, predictions in views.items()
    }
