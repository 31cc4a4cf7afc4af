"""Pages of studies (`planner compare`, `buy`, `scale`, `budget`), of a step's memory, and of
measured runs with their predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from planner.compare.budget import Budget
from planner.compare.buying import Buying
from planner.compare.results import Comparison, Scaling
from planner.evidence.runs.families import Family
from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.report import known
from planner.evidence.runs.worst import describe, worst_rows
from planner.job.quantities import GIB
from planner.predict.uncertainty.families import Figure
from planner.report.charts.curves import (
    CurvesFigure,
    budget_figure,
    buying_figure,
    comparison_figure,
    curves_panel,
    scaling_figure,
)
from planner.report.charts.drawing import Drawing
from planner.report.charts.measured import RunPoint, pairs_chart, scatter_chart
from planner.report.charts.memory import MemoryFigure, StagePanel, memory_panel_chart
from planner.report.comparison import comparison_report
from planner.report.pages.cards import (
    budget_card,
    decision_card,
    memory_card,
    pairs_card,
    validation_card,
)
from planner.report.pages.page import Page, Section, beside_card
from planner.report.said import table_of
from planner.report.studies import budget_report, buying_report, scaling_report
from planner.report.study_words import decision_facts
from planner.report.tables import Notes, Report
from planner.report.traced import Pair

_OF: dict[type, tuple[Callable[[Any], CurvesFigure], Callable[[Any], Report]]] = {
    Scaling: (scaling_figure, scaling_report),
    Comparison: (comparison_figure, comparison_report),
    Buying: (buying_figure, buying_report),
    Budget: (budget_figure, budget_report),
}

Study = Scaling | Comparison | Buying | Budget


def figure_of(study: Study) -> CurvesFigure:
    return _OF[type(study)][0](study)


def study_page(study: Study) -> Page:
    """The charts of a study above the tables of its report."""
    drawn, reported = _OF[type(study)]
    figure, report = drawn(study), reported(study)
    drawings = [
        Drawing(f"curves-{number}", panel.title, curves_panel(panel))
        for number, panel in enumerate(figure.panels, start=1)
    ]
    card = budget_card(study) if isinstance(study, Budget) else decision_card(study)
    blocks = list(report.blocks)
    if not isinstance(study, Budget) and study.decision is not None and study.decision.best:
        blocks.remove(decision_facts(study.decision, study.currency))
    sections = [Section("Tables", blocks=beside_card(blocks, card))]
    if drawings:
        side_by_side = len(drawings) > 1
        sections.insert(0, Section("Figures", drawings, (), side_by_side=side_by_side))
    return Page(figure.title, figure.note, sections, card=card)


def pairs_page(
    title: str, panels: Mapping[str, tuple[Sequence[Pair], str]], report: Report
) -> Page:
    """Predicted and measured bars above the report. `panels`: bars and their unit by title."""
    drawings = [
        Drawing(f"pairs-{number}", name, pairs_chart(pairs, unit))
        for number, (name, (pairs, unit)) in enumerate(panels.items(), start=1)
    ]
    patterns = [one for one in report.blocks if isinstance(one, Notes) and one.title == "Patterns"]
    card = pairs_card(panels, patterns[0].lines if patterns else ())
    tables = Section("Tables", blocks=beside_card(report.blocks, card))
    return Page(title, "", [Section("Figures", drawings), tables], card=card)


def memory_page(figure: MemoryFigure) -> Page:
    """The page of a step's memory, with a chart for every stage."""
    sections = [
        Section(panel.title, [memory_drawing(panel, f"stage-{number}")])
        for number, panel in enumerate(figure.panels, start=1)
    ]
    return Page(figure.title, figure.note, sections, card=memory_card(figure))


def memory_drawing(panel: StagePanel, name: str, title: str = "", note: str = "") -> Drawing:
    return Drawing(name, title, memory_panel_chart(panel), note)


# Name, title, unit and scale of the chart.
_DRAWN: dict[Figure, tuple[str, str, str, float]] = {
    "time": ("step_time_s", "Step time", "s", 1.0),
    "memory": ("peak_mem_gib", "Peak memory", "GiB", GIB),
}


def validation_page(predictions: Sequence[Prediction], family: Family, report: Report) -> Page:
    """The chart of predicted against measured runs above the tables of their report."""
    predicted = sum(one.error is None for one in predictions)
    lead = (
        f"{predicted:,} of {len(predictions):,} measured runs predicted from their configuration "
        "alone. One dot a run; point at it for its row."
    )
    card = validation_card(predictions)
    sections = (
        Section("Step time and peak memory", [*_drawings(predictions, family)], side_by_side=True),
        Section("Errors by family", blocks=beside_card(report.blocks, card)),
        Section(
            "Worst rows, and why", blocks=(table_of("validation.worst", worst_rows(predictions)),)
        ),
    )
    return Page("Predicted against measured", lead, sections, card=card)


def _drawings(predictions: Sequence[Prediction], family: Family) -> Iterator[Drawing]:
    for figure, (name, title, unit, size) in _DRAWN.items():
        points = []
        for one in predictions:
            if pair := known(one, figure):
                predicted, measured = (value / size for value in pair)
                text = (
                    f"{one.row.place}: {describe(one)}: measured {measured:.4g} {unit}, predicted "
                    f"{predicted:.4g} {unit} ({(predicted / measured - 1) * 100:+.1f} %)"
                )
                points.append(RunPoint(measured, predicted, family(one), text))
        if points:
            chart = scatter_chart(points, "", unit)
            yield Drawing(name, title, chart)


def time_chart(predictions: Sequence[Prediction]) -> Any:
    """Predicted against measured step times, with one colour for each framework profile."""
    points = [
        RunPoint(found[1], found[0], prediction.job.framework.name)
        for prediction in predictions
        if (found := known(prediction, "time")) is not None
    ]
    return scatter_chart(points, "Step time, by framework", "s", hover=False)
