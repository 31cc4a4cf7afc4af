"""The page of measured runs, and the drawing of predicted against measured."""

from __future__ import annotations

from xml.etree import ElementTree

from planner.evidence.runs.families import family_by
from planner.evidence.runs.predict import predict_rows
from planner.report.charts.drawing import specification, svg
from planner.report.charts.measured import RunPoint, scatter_chart
from planner.report.evidence import validation_report
from planner.report.pages.page import render
from planner.report.pages.studies import validation_page
from tests.evidence.runs.rows_for_tests import row
from tests.report import reading

BY_SOURCE = family_by("source")


def _page(*cells: dict[str, str]) -> str:
    predictions = predict_rows([row(**cell) for cell in cells])
    report = validation_report(predictions, BY_SOURCE)
    return render(validation_page(predictions, BY_SOURCE, report))


def test_the_page_draws_every_run_and_nothing_from_elsewhere() -> None:
    models = [f"model-{index}" for index in range(7)]
    page = _page(
        *({"model": name, "peak_mem_gib": "60"} for name in models),
        {"model": "LoRA", "tuning": "peft:adalora"},
    )
    text = reading.shown(page)
    assert "7 of 8 measured runs" in text
    assert "adapters of another kind than LoRA and DoRA are not modelled" in text
    assert reading.loads(page) == []
    for chart in reading.charts(page).values():
        assert sum(": measured" in line for line in reading.rows(chart)) == len(models)


def test_the_page_shows_cells_as_text() -> None:
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    page = _page({"model": hostile, "source": 'a"b<c', "peak_mem_gib": "60"})
    assert "<script>alert" not in page and "<img src=x" not in page
    assert 'a"b<c' in reading.shown(page)
    assert reading.loads(page) == []


def test_axes_are_alike_and_families_beyond_the_colours_are_grey() -> None:
    points = [RunPoint(1.0 + index, 2.0, f"f{index:02}", "x & y") for index in range(30)]
    chart = specification(scatter_chart([*points, RunPoint(0.0, 1.0, "off")], "Times", "s"))
    dots = next(layer for layer in chart["layer"] if layer["mark"]["type"] == "circle")
    x, y = (dots["encoding"][axis]["scale"] for axis in "xy")
    assert x == y and x["type"] == "log"
    names = dots["encoding"]["color"]["scale"]["domain"]
    assert names[-1] == "others (22)" and len(names) == 9
    assert sum(line.endswith("x & y") for line in reading.rows(chart)) == 30


def test_a_small_drawing_has_one_path_a_family() -> None:
    points = [RunPoint(1.0 + index, 2.0, f"f{index % 3}") for index in range(300)]
    small = svg(scatter_chart(points, "Times", "s", hover=False))
    root = ElementTree.fromstring(small)
    paths = [part.get("d", "") for part in root.iter() if part.tag.endswith("path")]
    assert sorted(path.count("M") for path in paths)[-3:] == [100, 100, 100]
    assert len(small) < 40_000
    assert ElementTree.fromstring(svg(scatter_chart([], "Times", "s"))) is not None
