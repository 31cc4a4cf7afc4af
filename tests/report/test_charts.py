"""Charts as files: equal each time, well formed, readable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from planner.job.request import Request
from planner.predict.plan import Degrees
from planner.report.charts.curves import CurvePoint, CurvesFigure, Panel, curves_chart
from planner.report.charts.drawing import png, specification, svg
from planner.report.charts.memory import memory_chart, memory_figure
from planner.report.charts.templates import filled
from tests.configurations import memory_footprint

CURVES = CurvesFigure(
    "a <title> & more",
    "a note",
    (
        Panel(
            "Days", "GPUs", "days",
            (
                CurvePoint("one", 8, 4, 3, 5, "a"),
                CurvePoint("one", 16, 2, 1, float("inf"), "b", True),
            ),
            (True, True), ((8, 4), (16, 2)), whole_numbers=True,
        ),
        Panel(
            "Cost", "days", "USD",
            (CurvePoint("two", 1, 2, 1, 3, "c", label="x"),), joined="one",
        ),
    ),
)  # fmt: skip


def _memory() -> Any:
    request = Request(model="llama-3-8b", gpus="8xH100", gbs=8)
    footprint = memory_footprint(request, Degrees(pp=2, dp=4, mbs=1, grad_acc=2))
    return memory_chart(memory_figure(footprint, footprint.stages))


CHARTS: dict[str, Callable[[], Any]] = {"memory": _memory, "curves": lambda: curves_chart(CURVES)}


@pytest.mark.parametrize("name", CHARTS)
def test_files_are_equal_each_time(name: str) -> None:
    chart = CHARTS[name]
    assert svg(chart()) == svg(chart())
    assert png(chart()) == png(chart())
    assert specification(chart()) == specification(chart())


@pytest.mark.parametrize("name", CHARTS)
def test_titles_lie_above_legends(name: str) -> None:
    root = ElementTree.fromstring(svg(CHARTS[name]()))
    places = {
        kind: [y for element, y in _placed(root) if element.get("class") == f"mark-text {kind}"]
        for kind in ("role-title-text", "role-legend-label")
    }
    assert max(places["role-title-text"]) + 20 < min(places["role-legend-label"])


def _placed(element: ElementTree.Element, above: float = 0.0) -> list[tuple[Any, float]]:
    """Elements with their heights: sums of the translations around them."""
    words = element.get("transform", "").removeprefix("translate(").split(")")[0].split(",")
    here = above + (float(words[1]) if len(words) == 2 else 0.0)
    return [(element, here), *(pair for child in element for pair in _placed(child, here))]


def test_texts_are_escaped_and_infinite_ends_left_out() -> None:
    drawing = svg(curves_chart(CURVES))
    assert "a &lt;title&gt; &amp; more" in drawing
    assert "inf" not in str(specification(curves_chart(CURVES))["datasets"])
    assert "NaN" not in drawing and "undefined" not in drawing


def test_templates_leave_out_what_is_not_there() -> None:
    values = {"bars": {}, "unit": "$x_title", "labels": [], "kinds": [], "colours": {}}
    chart = filled("pairs", width=1, height=2, title=None, **values)
    assert "title" not in chart and chart["height"] == 2
    assert chart["encoding"]["x"]["title"] == "$x_title"  # what is filled in is no template
    assert chart["encoding"]["y"]["title"] is None
    with pytest.raises(KeyError, match="title"):
        filled("pairs", width=1, height=2, **values)
