"""Draws a scaling study as SVG, as an HTML page that needs nothing else, and as PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from html import escape
from typing import Any

from planner.report.scaling_figure import Figure, Panel, Series
from planner.report.svg import GREY, svg_line, svg_text

_WIDTH, _HEIGHT = 960, 430
_PLOT_W, _PLOT_H, _TOP = 380, 270, 78
_LEFTS = (70, 550)
_MOST_TICKS = 9


class _Axes:
    """Pixels of a panel: GPUs logarithmic to the right, values upwards."""

    def __init__(self, panel: Panel, left: float) -> None:
        counts = [count for own in panel.series for count, *_ in own.points] or [1, 2]
        values = [
            value
            for own in panel.series
            for _, *three in own.points
            for value in three
            if math.isfinite(value)
        ] + [value for _, value in panel.ideal]
        self.panel, self.left = panel, left
        self.counts = sorted(set(counts))
        self.low_x, self.high_x = min(counts) / 1.25, max(counts) * 1.25
        top = max(values, default=1.0)
        self.low_y = min(values, default=1.0) / 1.15 if panel.logarithmic else 0.0
        self.high_y = top * 1.15

    def x(self, count: float) -> float:
        """Place of a number of GPUs."""
        share = math.log(count / self.low_x) / math.log(self.high_x / self.low_x)
        return self.left + _PLOT_W * share

    def y(self, value: float) -> float:
        """Height of a value; what lies beyond the top is drawn at the top."""
        value = min(value, self.high_y)
        if self.panel.logarithmic:
            share = math.log(value / self.low_y) / math.log(self.high_y / self.low_y)
        else:
            share = value / self.high_y
        return _TOP + _PLOT_H * (1.0 - share)

    def ticks(self) -> list[float]:
        """Marks of the vertical axis: 1, 2 and 5 times powers of ten."""
        if self.panel.logarithmic:
            decades = range(
                math.floor(math.log10(self.low_y)), math.ceil(math.log10(self.high_y)) + 1
            )
            marks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
            return [mark for mark in marks if self.low_y <= mark <= self.high_y][:_MOST_TICKS]
        step = 10.0 ** math.floor(math.log10(self.high_y / 2))
        step *= next(factor for factor in (1, 2, 5, 10) if self.high_y / (step * factor) <= 6)
        return [step * number for number in range(int(self.high_y / step) + 1)]


def scaling_svg(figure: Figure) -> str:
    """The picture as an SVG document; a point tells its value when pointed at."""
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{_HEIGHT}' "
        f"viewBox='0 0 {_WIDTH} {_HEIGHT}' font-family='system-ui, sans-serif' role='img' "
        f"aria-label='{escape(figure.title, quote=True)}'>",
        f"<rect width='{_WIDTH}' height='{_HEIGHT}' fill='white'/>",
        svg_text(_LEFTS[0], 28, figure.title, size=17, weight="bold"),
    ]
    for panel, left in zip(figure.panels, _LEFTS, strict=True):
        parts += _panel(_Axes(panel, left))
    parts += _legend(figure.panels[0])
    parts += [svg_text(_LEFTS[0], _HEIGHT - 10, figure.note, size=11, colour=GREY), "</svg>"]
    return "\n".join(parts) + "\n"


def _panel(axes: _Axes) -> Iterator[str]:
    panel = axes.panel
    bottom, right = _TOP + _PLOT_H, axes.left + _PLOT_W
    yield svg_text(axes.left, _TOP - 14, f"{panel.title} ({panel.unit})", size=13, weight="bold")
    for mark in axes.ticks():
        y = axes.y(mark)
        yield svg_line(axes.left, y, right, y, "#dddddd")
        yield svg_text(axes.left - 8, y + 4, f"{mark:,g}", size=11, anchor="end")
    for count in axes.counts:
        yield svg_line(axes.x(count), bottom, axes.x(count), bottom + 5, GREY)
        yield svg_text(axes.x(count), bottom + 18, f"{count:,}", size=10, anchor="middle")
    yield svg_line(axes.left, bottom, right, bottom, GREY)
    yield svg_text(axes.left + _PLOT_W / 2, bottom + 36, "GPUs", size=12, anchor="middle")
    if panel.ideal:
        yield _path([(axes.x(n), axes.y(v)) for n, v in panel.ideal], "#999999", dashed=True)
    for own in panel.series:
        yield from _drawn(axes, own)


def _drawn(axes: _Axes, own: Series) -> Iterator[str]:
    yield _path([(axes.x(n), axes.y(v)) for n, v, _, _ in own.points], own.colour)
    for count, value, low, high in own.points:
        x, y = axes.x(count), axes.y(value)
        yield svg_line(x, axes.y(low), x, axes.y(high), own.colour, width=1.5)
        if count == own.knee:
            yield f"<circle cx='{x:.1f}' cy='{y:.1f}' r='9' fill='none' stroke='{own.colour}'/>"
        yield (
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{own.colour}'><title>"
            f"{escape(f'{count:,} GPUs, {own.name}: {value:,.4g} ({low:,.4g} to {high:,.4g})')}"
            "</title></circle>"
        )


def _legend(panel: Panel) -> Iterator[str]:
    for index, own in enumerate(panel.series):
        x = _LEFTS[0] + index * 200
        yield f"<circle cx='{x + 5}' cy='45' r='5' fill='{own.colour}'/>"
        yield svg_text(x + 16, 49, own.name, size=12)


def _path(points: list[tuple[float, float]], colour: str, *, dashed: bool = False) -> str:
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dash = " stroke-dasharray='5 4'" if dashed else ""
    return f"<path d='M{way}' fill='none' stroke='{colour}' stroke-width='2'{dash}/>"


def scaling_html(figure: Figure) -> str:
    """A page with the picture and its numbers, without scripts or other files."""
    rows = "\n".join(
        f"<tr><td>{escape(panel.title)}</td><td>{escape(own.name)}</td><td>{count:,}</td>"
        f"<td>{value:,.4g}</td><td>{low:,.4g}</td><td>{high:,.4g}</td></tr>"
        for panel in figure.panels
        for own in panel.series
        for count, value, low, high in own.points
    )
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        f"<title>{escape(figure.title)}</title>\n<style>\n"
        "body{font-family:system-ui,sans-serif;margin:24px;color:#222}\n"
        "svg{max-width:100%;height:auto}\n"
        "table{border-collapse:collapse;font-size:13px;margin:12px 0}\n"
        "td,th{padding:3px 10px;text-align:right;border-bottom:1px solid #ddd}\n"
        "td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}\n</style>\n</head>\n<body>\n"
        f"{scaling_svg(figure)}<table>\n<tr><th>figure</th><th>batch</th><th>GPUs</th>"
        f"<th>value</th><th>low</th><th>high</th></tr>\n{rows}\n</table>\n</body>\n</html>\n"
    )


def scaling_png(figure: Figure) -> bytes:
    """The picture as a PNG file. UsageError names the extra where matplotlib is missing."""
    from planner.report.memory_png import demand_matplotlib

    demand_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(9.6, 4.2), layout="constrained")
    FigureCanvasAgg(drawing)
    drawing.suptitle(figure.title, fontsize=11)
    for panel, axes in zip(figure.panels, drawing.subplots(1, 2), strict=True):
        _matplotlib_panel(panel, axes)
    drawing.supxlabel(figure.note, fontsize=7, color=GREY)
    stream = io.BytesIO()
    drawing.savefig(stream, format="png", dpi=150)
    return stream.getvalue()


def _matplotlib_panel(panel: Panel, axes: Any) -> None:
    for own in panel.series:
        counts = [count for count, *_ in own.points]
        values = [value for _, value, _, _ in own.points]
        below = [value - low for _, value, low, _ in own.points]
        above = [high - value if math.isfinite(high) else 0.0 for _, value, _, high in own.points]
        axes.errorbar(
            counts, values, yerr=[below, above], color=own.colour, marker="o", label=own.name
        )
        for count, value, *_ in own.points:
            if count == own.knee:
                axes.plot([count], [value], "o", ms=14, mfc="none", color=own.colour)
    if panel.ideal:
        axes.plot(*zip(*panel.ideal, strict=True), "--", color="#999999")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log" if panel.logarithmic else "linear")
    if panel.logarithmic:
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(lambda value, _place: f"{value:,.3g}" if value < 1000 else f"{value:,.0f}")
    if not panel.logarithmic:
        axes.set_ylim(bottom=0)
    ticks = sorted({count for own in panel.series for count, *_ in own.points})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
    axes.set_title(f"{panel.title} ({panel.unit})", fontsize=9, loc="left")
    axes.set_xlabel("GPUs", fontsize=8)
    axes.grid(axis="y", color="#dddddd")
    axes.legend(fontsize=8, frameon=False)
