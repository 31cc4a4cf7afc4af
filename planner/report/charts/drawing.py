"""What all charts share: colours, configuration, and the way to SVG, PNG and pages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

from planner.job.errors import demand_installed
from planner.job.written import csv_text

# Okabe & Ito 2008, told apart by the colour-blind too; three more after them.
PALETTE = (
    "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#f0e442", "#d55e00", "#cc79a7", "#999999",
    "#7b4fa3", "#8c6d31",
)  # fmt: skip
BLUE, VERMILION, GREY = PALETTE[0], PALETTE[5], PALETTE[7]
LIMIT_DASH = [6, 4]
# Of a file, pixels; charts of a page are as wide as their place.
FILE_WIDTH = 860
_SCALE_OF_PNG = 2.0
_FILE_INK = "#1a1a1a"

Width = int | Literal["container"]
Specification = dict[str, Any]
Row = Mapping[str, object]


def demand_plot() -> None:
    """UsageError if nothing can be drawn; before any work is done."""
    demand_installed("pictures and pages need", "plot", "altair", "vl_convert", "jinja2")


def table(rows: Iterable[Row]) -> Any:
    """Rows as a chart's data: text in CSV, the smallest that a page can hold."""
    import altair as alt

    records = list(rows)
    titles = list(records[0]) if records else ["empty"]
    cells = ({name: _cell(value) for name, value in row.items()} for row in records)
    parse = {name: _type(records[0][name]) for name in titles} if records else {}
    return alt.InlineData(
        values=csv_text(titles, cells, guarded=False),
        format=alt.CsvDataFormat(type="csv", parse=parse),
    )


def _cell(value: object) -> object:
    """A value as Vega reads it from CSV."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else value


def _type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else "string"


def colours(names: Sequence[str], palette: Sequence[str] = PALETTE) -> Any:
    """A scale that gives names their colours, in order."""
    import altair as alt

    return alt.Scale(
        domain=list(names), range=[palette[i % len(palette)] for i in range(len(names))]
    )


def in_file(chart: Any, title: str, subtitle: str = "") -> Any:
    """The chart under its title, in the look of files and notebooks."""
    import altair as alt

    words = alt.TitleParams(title, subtitle=subtitle) if subtitle else alt.TitleParams(title)
    return chart.properties(title=words, config=_config(_FILE_INK), background="white")


def specification(chart: Any, ink: str = "currentColor") -> Specification:
    """The chart as Vega-Lite for a page, whose text takes the page's colour."""
    document: Specification = json.loads(chart.to_json(validate=False))
    document["config"] = _config(ink)
    return document


def svg(chart: Any) -> str:
    """The chart as an SVG document on white."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(_on_white(chart))) + "\n"


def png(chart: Any) -> bytes:
    """The chart as a PNG file on white."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(_on_white(chart), scale=_SCALE_OF_PNG))


@cache
def script() -> str:
    """Vega, Vega-Lite and Vega-Embed, all that a page with charts needs."""
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return "(() => {" + str(bundle) + "})();"


def _on_white(chart: Any) -> Specification:
    return specification(chart, ink=_FILE_INK) | {"background": "white", "padding": 16}


def _config(ink: str) -> Specification:
    """Text and axes in one colour, a legend below, nothing that hides behind something."""
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": 11, "titleFontSize": 12}
    return {
        "background": "transparent",
        "font": "system-ui, Liberation Sans, Arial, sans-serif",
        "view": {"stroke": None},
        "axis": {
            **text, "domainColor": GREY, "tickColor": GREY, "gridColor": GREY, "gridOpacity": 0.25,
            "titleFontWeight": "normal",
        },
        "legend": {
            **text, "orient": "bottom", "columns": 4, "symbolType": "square",
            "titleFontWeight": "normal", "labelLimit": 240,
        },
        "header": text,
        "title": {
            "color": ink, "subtitleColor": ink, "anchor": "start", "frame": "group",
            "fontSize": 15, "subtitleFontSize": 12, "offset": 14,
        },
        **{mark: {"color": ink} for mark in ("text", "rule", "tick")},
    }  # fmt: skip
