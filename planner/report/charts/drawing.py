"""Shared by all charts: their data and colours, and their output as SVG, PNG, pages and
notebooks."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner.job.errors import demand_installed
from planner.job.quantities import GIB, gib
from planner.job.written import csv_text
from planner.report.charts.templates import PALETTE, filled

_SCALE_OF_PNG = 2.0
BAR_HEIGHT = 24
# Width of a letter of a subtitle, and of a chart that does not set its own width, in pixels.
_LETTER, _WIDTH = 6.4, 860
_FILE_INK = "#1a1a1a"
_INK_BY_THEME = (
    f"svg {{ color: {_FILE_INK}; }} "
    "@media (prefers-color-scheme: dark) { svg { color: #e8e8e8; } }"
)
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.4.1.json"

Specification = dict[str, Any]
Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart for a page or a file, with its title and a sentence about it."""

    name: str
    title: str
    chart: Specification
    note: str = ""


def demand_plot() -> None:
    """Raise UsageError, before any work is done, if the packages for charts are missing."""
    demand_installed("pictures and pages need", "plot", "altair", "vl_convert", "jinja2")


def table(rows: Iterable[Row]) -> Specification:
    """Rows as the data of a chart, in CSV, the shortest form for a page."""
    records = list(rows)
    titles = list(records[0]) if records else ["empty"]
    cells = ({name: _cell(value) for name, value in row.items()} for row in records)
    parse = {name: _type(records[0][name]) for name in titles} if records else {}
    return {
        "values": csv_text(titles, cells, guarded=False),
        "format": {"type": "csv", "parse": parse},
    }


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else value


def _type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else "string"


def colours(names: Sequence[object], palette: Sequence[str] = PALETTE) -> Specification:
    """A Vega-Lite scale that assigns colours to names, in order."""
    return {
        "domain": list(names), "range": [palette[i % len(palette)] for i in range(len(names))]
    }  # fmt: skip


def in_file(chart: Specification, title: str, subtitle: str = "") -> Any:
    """The chart with its title, styled for files and notebooks, as an Altair object."""
    import altair as alt

    words: dict[str, object] = {"text": title}
    if subtitle:
        words["subtitle"] = subtitle_lines(subtitle, chart.get("width", _WIDTH))
    document = specification(chart | {"title": words}, _FILE_INK) | {"background": "white"}
    kinds: dict[str, Any] = {"layer": alt.LayerChart, "vconcat": alt.VConcatChart}
    kind = next((kinds[key] for key in kinds if key in document), alt.Chart)
    return kind.from_dict(document, validate=False)


def subtitle_lines(text: str, width: float = _WIDTH) -> list[str]:
    """The subtitle as lines that fit the chart below it. `width`: the width of the chart in
    pixels."""
    return textwrap.wrap(text, int(width / _LETTER))


def on_page(chart: Specification) -> Specification:
    """The chart, as wide as its container and in the text colour of the page."""
    return specification(chart | {"width": "container"})


def specification(chart: Specification, ink: str = "currentColor") -> Specification:
    """The chart as Vega-Lite with text in one colour. Its tables are moved to `datasets`, each only
    once."""
    datasets: Specification = {}
    document: Specification = _named_tables(chart, datasets)
    look = filled("look", ink=ink)
    return {"$schema": _SCHEMA, **document, "config": look, "datasets": datasets}


def _named_tables(node: Any, datasets: Specification) -> Any:
    """The node with its tables replaced by names; the tables move to `datasets`."""
    match node:
        case {"values": str(text), "format": form}:
            name = "data-" + hashlib.sha256(json.dumps(text).encode()).hexdigest()[:32]
            datasets[name] = text
            return {"name": name, "format": form}
        case dict():
            return {key: _named_tables(item, datasets) for key, item in node.items()}
        case list():
            return [_named_tables(item, datasets) for item in node]
    return node


def svg(chart: Any) -> str:
    """The chart as an SVG document on a white background."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(_on_white(chart))) + "\n"


def svg_for_pages(chart: Any) -> str:
    """The chart as an SVG document for a page with a light or dark theme: the background is
    transparent, and the text takes the colour of the theme."""
    drawn = svg(chart).replace(f'"{_FILE_INK}"', '"currentColor"')
    ground = re.compile(r"<rect [^>]*fill=\"white\"/>")
    return ground.sub(f"<style>{_INK_BY_THEME}</style>", drawn, count=1)


def png(chart: Any) -> bytes:
    """The chart as a PNG file on a white background."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(_on_white(chart), scale=_SCALE_OF_PNG))


@cache
def script() -> str:
    """The JavaScript of Vega, Vega-Lite and Vega-Embed, which a page with charts needs."""
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return "(() => {" + str(bundle) + "})();"


def _on_white(chart: Any) -> Specification:
    """The specification for a white background, from a chart of this package or from the result of
    `in_file`."""
    drawn_here = isinstance(chart, dict)
    document = specification(chart, _FILE_INK) if drawn_here else chart.to_dict(validate=False)
    return document | {"background": "white", "padding": 16}


def limit_line(limit_bytes: float, channel: str) -> Specification:
    """The dashed line at the memory limit, with its label."""
    words = f"HBM that may be used: {gib(limit_bytes)} GiB"
    place = table([{"limit": limit_bytes / GIB, "text": words}])
    return filled("limit", place=place, channel=channel)
