"""What the library shows: one line, tables, charts, and a typed table with units."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import get_args

import pytest

import planner
from planner import Request, SearchResult, find_plans
from planner.job.errors import UsageError
from planner.predict.plan_text import step_time_text
from planner.report.charts.drawing import svg
from planner.report.plots import PlanFigure
from planner.search.frame import COLUMNS, csv_text

DOCUMENT = Path(planner.__file__).parents[1] / "docs" / "data" / "frame-columns.csv"


@pytest.fixture(scope="module")
def result() -> SearchResult:
    """A search with a pipeline."""
    return find_plans(Request(model="llama-3-8b", gpus="8xH100", gbs=64, limits={"pp": (2, 4)}))


def test_reprs_are_one_line(result: SearchResult) -> None:
    line = repr(result)
    assert line.startswith("SearchResult(llama-3-8b on 8 H100-SXM5-80GB: ")
    assert repr(result.plans[result.recommended - 1]) in line and "\n" not in line
    assert len(repr(result.plans[0])) < 200 and str(result.plans[0]) == repr(result.plans[0])


def test_notebooks_get_a_table_with_the_recommended_plan_in_bold(result: SearchResult) -> None:
    html = result._repr_html_()
    assert "<td><b>→" in html and f"{result.recommended}</b></td>" in html
    assert html.count("<tr>") == 1 + len(result.shown)
    assert step_time_text(result.plans[0]) in result.plans[0]._repr_html_()


def test_texts_in_tables_are_escaped(result: SearchResult) -> None:
    hostile = result.model_copy(update={"job": result.job.model_copy(update={"model": "<script>"})})
    assert "<script>" not in hostile._repr_html_()


@pytest.mark.parametrize("figure", get_args(PlanFigure))
def test_plans_are_plotted(result: SearchResult, figure: PlanFigure) -> None:
    drawing = svg(result.plans[0].plot(figure))
    assert "<svg" in drawing and "NaN" not in drawing
    titles = {"memory": "Memory of each", "time": "Time of a step", "schedule": "Schedule of"}
    for name, title in titles.items():
        assert (title in drawing) == (figure in ("all", name))


def test_every_stage_has_its_bar(result: SearchResult) -> None:
    """A bar whose width a renderer cannot work out is not drawn at all."""
    plan = result.plans[0]
    drawing = svg(plan.plot("memory"))
    widths = [
        float(one) for one in re.findall(r'stage \d+, weights[^>]*? d="M[^h]*h([\d.]+)', drawing)
    ]
    assert len(widths) == plan.degrees.pp and min(widths) > 10.0


def test_searches_are_plotted(result: SearchResult) -> None:
    assert "tokens/s of a GPU" in svg(result.plot())
    assert "pp 4" in svg(result.plot("heat"))


def test_what_cannot_be_plotted_is_said(result: SearchResult) -> None:
    with pytest.raises(UsageError, match=r"unknown figure 'tim'.*Did you mean 'time'"):
        result.plans[0].plot("tim")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown figure"):
        result.plot("memory")  # type: ignore[arg-type]
    flat = result.plans[0].model_copy(
        update={"degrees": result.plans[0].degrees.model_copy(update={"pp": 1})}
    )
    with pytest.raises(UsageError, match="no schedule to draw"):
        flat.plot("schedule")


def test_the_frame_has_lists_and_units(result: SearchResult) -> None:
    frame = result.to_frame()
    assert list(frame.columns) == list(COLUMNS)
    for row, plan in zip(frame.itertuples(), result.plans, strict=True):
        assert row.layers_per_stage == list(plan.layout.stage_layers)
        assert row.stage_gpus == [] and row.cp_sizes == []
    units = frame.attrs["units"]
    assert units["step_time_s"] == "s" and units["peak_bytes"] == "B" and "tp" not in units
    for name in COLUMNS:
        suffix = {"_s": "s", "_bytes": "B", "_tokens": "tokens"}
        for end, unit in suffix.items():
            if name.endswith(end) and not name.endswith("s_per_s"):
                assert units[name] == unit, name


def test_every_column_is_documented() -> None:
    """If this fails: python examples/refresh_readme.py docs/library.md."""
    with DOCUMENT.open(encoding="utf-8", newline="") as file:
        documented = {row["column"]: (row["unit"], row["meaning"]) for row in csv.DictReader(file)}
    assert documented == COLUMNS


def test_lists_stand_in_one_cell_of_csv(result: SearchResult) -> None:
    text = csv_text(result.to_frame())
    layers = "/".join(str(n) for n in result.plans[0].layout.stage_layers)
    assert f",{layers}," in text and "[" not in text
