"""The page of a study of `planner tune`."""

from __future__ import annotations

from planner.report.charts.drawing import Drawing
from planner.report.charts.measured import pairs_chart
from planner.report.pages.cards import tune_card
from planner.report.pages.page import Page, Section, beside_card
from planner.report.traced import Pair
from planner.report.tune import tune_report
from planner.tune.outcome import TunedStudy


def tune_page(study: TunedStudy) -> Page:
    """Predicted and measured step times and peaks, above the tables."""
    report = tune_report(study, None)
    drawings = [
        Drawing(name, title, pairs_chart(pairs, unit))
        for name, title, pairs, unit in (
            ("steps", "Seconds of a step", _times(study), "s"),
            ("peaks", "Peak of a GPU's memory", _peaks(study), "GiB"),
        )
        if pairs
    ]
    lead = f"{study.framework} on {study.num_gpus:,} × {study.gpu}"
    card = tune_card(study)
    sections = [Section("Tables", blocks=beside_card(report.blocks, card))]
    if drawings:
        sections.insert(0, Section("Predicted and measured", drawings))
    return Page(f"Tuning {study.model}", lead, sections, card=card)


def _times(study: TunedStudy) -> list[Pair]:
    return [
        Pair(f"{one.number}: {one.name}", one.predicted_s, one.measured_s)
        for one in study.trials
        if one.measured_s is not None
    ]


def _peaks(study: TunedStudy) -> list[Pair]:
    return [
        Pair(
            f"{one.number}: {one.name}",
            None if one.predicted_peak_bytes is None else one.predicted_peak_bytes / 2**30,
            one.peak_bytes / 2**30,
        )
        for one in study.trials
        if one.peak_bytes is not None
    ]
