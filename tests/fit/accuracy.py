"""How good the predictions are: the figures and the plot that the README shows.

    python -m tests.fit.accuracy [RUNS.csv|FOLDER ...] [-o FOLDER]

predicts every measured run from its configuration alone and writes `accuracy.toml` and
`accuracy.svg` beside the other files of `planner/evidence/data`; `examples/refresh_readme.py` then
puts them into the README. `-o FOLDER` writes elsewhere. Refit first the held-out
constants (`tests.fit.held_out`, whose errors are taken over), then the intervals
(`tests.fit.residual_fit`): width, coverage and score are those of the intervals that
ship, which leave out a run's source. They are shown for what is known today, with constants fitted
without the run's source, and at first sight (`planner.evidence.runs.bars`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from planner.evidence.runs.bars import bars_record
from planner.evidence.runs.document import summary_record
from planner.evidence.runs.doubts import with_open_facts
from planner.evidence.runs.left_out import other_views
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.report import comparison
from planner.job.quantities import share
from planner.job.written import toml_text, write_text
from planner.predict.uncertainty.families import Figure
from planner.report.charts.drawing import svg_for_pages
from planner.report.pages.studies import time_chart
from tests.fit.command import folder_of, measured_rows, run
from tests.fit.held_out import shipped_errors
from tests.fit.reliability import fit_reliability, of_sources_with_failures

COMMAND = "python -m tests.fit.accuracy"
_WORST_GROUPS = 10


def accuracy(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """What accuracy.toml holds; shares, not percent, and seconds."""
    summary = summary_record(predictions, lambda prediction: prediction.row.source)
    groups = sorted(summary.pop("groups"), key=lambda group: (group["pick"], group["group"]))
    families = summary.pop("families")
    worst = [
        {**row, "terms": ", ".join(f"{name} {share(part, 0)}" for name, part in row["terms"])}
        for row in summary.pop("worst")
    ]
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": COMMAND,
        "time_coverage_with_own_source": _coverage_with_its_source(predictions),
        **summary,
        "source": [family | _held_out(family["family"]) for family in families],
        **_held_out_means(),
        "bars": bars_record({"known": predictions, **other_views(predictions)}),
        "fit_bin": [asdict(interval) for interval in fit_reliability(predictions)],
        "open_fit_bin": [
            asdict(interval) for interval in fit_reliability(of_sources_with_failures(predictions))
        ],
        "worst": worst,
        "worst_group": groups[:_WORST_GROUPS],
    }


# Errors with constants that leave a source out, by figure, as accuracy.toml calls them.
HELD_OUT: dict[Figure, str] = {"time": "held_out", "memory": "memory_held_out"}


def _held_out(source: str) -> dict[str, Any]:
    """A source's errors with the constants that were fitted without it, if they were."""
    errors = shipped_errors().get(source, {})
    names = ("median", "mean", "bias")
    return {
        key: {name: getattr(errors[figure], f"held_out_{name}") for name in names}
        for figure, key in HELD_OUT.items()
        if figure in errors
    }


def _held_out_means() -> dict[str, Any]:
    """Means over sources of the held-out errors, beside those of the same sources as shipped."""
    names = ("median", "mean", "held_out_median", "held_out_mean")
    means = {}
    for figure, key in HELD_OUT.items():
        found = [item[figure] for item in shipped_errors().values() if figure in item]
        if found:
            means[f"{key}_mean_of_sources"] = {
                name: fmean(getattr(one, name) for one in found) for name in names
            }
    return means


def _coverage_with_its_source(predictions: Sequence[Prediction]) -> float | None:
    """Coverage where the run's source stays in: of someone who has measured there before."""
    found = (comparison(one, "time", with_its_source=True) for one in predictions)
    hits = [one.covered for one in found if one is not None]
    return fmean(hits) if hits else None


def main(arguments: Sequence[str]) -> None:
    """Write both files."""
    paths, folder = folder_of(arguments)
    predictions = with_open_facts(predict_rows(measured_rows(paths)))
    write_text(folder / "accuracy.toml", toml_text(accuracy(predictions)), force=True)
    write_text(folder / "accuracy.svg", svg_for_pages(time_chart(predictions)), force=True)


if __name__ == "__main__":
    run(main, sys.argv[1:])
