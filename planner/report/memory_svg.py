"""Draws the picture of a step's memory as SVG, and as an HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import ceil, log10

from planner.job.quantities import GIB, gib
from planner.report.memory_figure import GROUPS, Bar, Figure, Panel
from planner.report.svg import GREY, svg_haloed, svg_line, svg_text

_WIDTH, _LEFT, _RIGHT = 960, 64, 24
_HEAD, _PANEL, _PLOT = 66, 440, 250
_LEGEND_ROW = 20
_FONT = "font-family='system-ui, sans-serif'"
_LEGEND_COLUMNS = 4


def memory_svg(figure: Figure) -> str:
    """The picture as an SVG document; a bar's part tells its size when pointed at."""
    height = _HEAD + _PANEL * len(figure.panels) + 30
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height}' "
        f"viewBox='0 0 {_WIDTH} {height}' {_FONT} role='img'>",
        f"<rect width='{_WIDTH}' height='{height}' fill='white'/>",
        svg_text(_LEFT, 26, figure.title, size=17, weight="bold"),
        svg_text(_LEFT, 48, figure.subtitle, size=13),
    ]
    for index, panel in enumerate(figure.panels):
        parts += _panel(panel, _HEAD + index * _PANEL)
    parts += [svg_text(_LEFT, height - 12, figure.note, size=11, colour=GREY), "</svg>"]
    return "\n".join(parts) + "\n"


def memory_html(figure: Figure) -> str:
    """A page with the picture and its numbers, without scripts or other files."""
    tables = "\n".join(_table(panel) for panel in figure.panels)
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        f"<title>{escape(figure.title)}</title>\n<style>\n"
        "body{font-family:system-ui,sans-serif;margin:24px;color:#222}\n"
        "svg{max-width:100%;height:auto}\n"
        "table{border-collapse:collapse;font-size:13px;margin:12px 0}\n"
        "td,th{padding:3px 10px;text-align:right;border-bottom:1px solid #ddd}\n"
        "td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}\n"
        "tr.peak{font-weight:bold}\n</style>\n</head>\n<body>\n"
        f"{memory_svg(figure)}{tables}\n</body>\n</html>\n"
    )


def _panel(panel: Panel, top: float) -> Iterator[str]:
    scale = Scale(panel, top + 34)
    yield svg_text(_LEFT, top + 20, panel.title, size=14, weight="bold")
    yield from _axis(scale)
    for index, bar in enumerate(panel.bars):
        yield from _bar(panel, bar, index, scale)
    yield from _steps(panel, scale)
    yield from _limit(panel, scale)
    yield from _legend(panel, top + _PANEL - 46)


class Scale:
    """Pixels of a panel: bytes to heights, bars to places; a gap parts the two steps."""

    def __init__(self, panel: Panel, top: float) -> None:
        self.step = nice_step(panel.top_bytes / GIB)
        self.most = self.step * ceil(panel.top_bytes / GIB / self.step * 1.02)
        self.top, self.bottom = top, top + _PLOT
        self.first = sum(bar.step == panel.bars[0].step for bar in panel.bars)
        self.pitch = (_WIDTH - _LEFT - _RIGHT) / (len(panel.bars) + 0.8)
        self.width = self.pitch * 0.72

    def y(self, size_bytes: float) -> float:
        """Height on the page."""
        return self.bottom - size_bytes / GIB / self.most * (self.bottom - self.top)

    def x(self, index: int) -> float:
        """Left edge of a bar."""
        gap = 0.8 if index >= self.first else 0.0
        return _LEFT + (index + gap + 0.14) * self.pitch


def nice_step(top: float) -> float:
    """Distance of the axis's marks: 1, 2 or 5 times a power of ten, about five to the top."""
    power: float = 10.0 ** int(log10(top / 5) // 1)
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= top / 6)


def _axis(scale: Scale) -> Iterator[str]:
    count = round(scale.most / scale.step)
    for mark in range(count + 1):
        value = mark * scale.step
        y = scale.y(value * GIB)
        yield svg_line(_LEFT, y, _WIDTH - _RIGHT, y, "#ddd")
        yield svg_text(_LEFT - 8, y + 4, f"{value:g}", size=11, anchor="end")
    middle = (scale.top + scale.bottom) / 2
    yield (
        f"<text transform='translate(18,{middle:.1f}) rotate(-90)' font-size='12' "
        "text-anchor='middle'>GiB</text>"
    )


def _bar(panel: Panel, bar: Bar, index: int, scale: Scale) -> Iterator[str]:
    x, reached = scale.x(index), 0.0
    for group, size in zip(GROUPS, bar.sizes, strict=True):
        if not size:
            continue
        y, low = scale.y(reached + size), scale.y(reached)
        reached += size
        yield (
            f"<rect x='{x:.1f}' y='{y:.2f}' width='{scale.width:.1f}' height='{low - y:.2f}' "
            f"fill='{group.colour}' stroke='white' stroke-width='0.5'><title>"
            f"{escape(f'{bar.step}, {bar.phase}: {group.name} {gib(size, 2)} GiB')}</title></rect>"
        )
    middle = x + scale.width / 2
    weight = "bold" if bar.is_peak else "normal"
    yield (
        f"<text transform='translate({middle + 4:.1f},{scale.bottom + 14:.1f}) rotate(-35)' "
        f"font-size='11' font-weight='{weight}' text-anchor='end'>{escape(panel.labels[index])}"
        "</text>"
    )
    if bar.is_peak:
        yield from _peak(panel, bar, middle, scale)


def _peak(panel: Panel, bar: Bar, middle: float, scale: Scale) -> Iterator[str]:
    """The whisker of the interval, and the total beside it."""
    y = scale.y(bar.total_bytes)
    if panel.interval is not None:
        low, high = (scale.y(size) for size in panel.interval)
        yield svg_line(middle, low, middle, high, "#000")
        for end in (low, high):
            yield svg_line(middle - 5, end, middle + 5, end, "#000")
        y = high
    text = f"{gib(bar.total_bytes)} GiB"
    yield from svg_haloed(middle, y - 6, text, size=12, weight="bold", anchor="middle")


def _steps(panel: Panel, scale: Scale) -> Iterator[str]:
    """Names of the two steps above their bars."""
    for start, name in ((0, panel.bars[0].step), (scale.first, panel.bars[-1].step)):
        yield svg_text(scale.x(start), scale.top - 2, name, size=12, colour=GREY)


def _limit(panel: Panel, scale: Scale) -> Iterator[str]:
    y = scale.top
    if panel.shows_limit:
        y = scale.y(panel.limit_bytes)
        yield svg_line(_LEFT, y, _WIDTH - _RIGHT, y, "#c00", width=1.5, dash="6 4")
    place, anchor = (_LEFT + 4, "start") if panel.shows_limit else (_WIDTH - _RIGHT, "end")
    yield from svg_haloed(place, y - 5, panel.limit_text, size=12, colour="#c00", anchor=anchor)


def _legend(panel: Panel, top: float) -> Iterator[str]:
    pitch = (_WIDTH - _LEFT - _RIGHT) / _LEGEND_COLUMNS
    for place, index in enumerate(panel.used):
        row, column = divmod(place, _LEGEND_COLUMNS)
        x, y = _LEFT + column * pitch, top + row * _LEGEND_ROW
        colour = GROUPS[index].colour
        yield f"<rect x='{x:.0f}' y='{y:.0f}' width='12' height='12' fill='{colour}'/>"
        yield svg_text(x + 18, y + 11, GROUPS[index].name, size=12)


def _table(panel: Panel) -> str:
    """The numbers of a panel."""
    head = "".join(f"<th>{escape(GROUPS[index].name)}</th>" for index in panel.used)
    rows = "\n".join(
        f"<tr{' class=peak' if bar.is_peak else ''}><td>{escape(bar.step)}</td>"
        f"<td>{escape(bar.phase)}{' (peak)' if bar.is_peak else ''}</td>"
        + "".join(f"<td>{gib(bar.sizes[index], 2)}</td>" for index in panel.used)
        + f"<td>{gib(bar.total_bytes, 2)}</td></tr>"
        for bar in panel.bars
    )
    return (
        f"<h3>{escape(panel.title)}, GiB</h3>\n<table>\n<tr><th>step</th><th>phase</th>{head}"
        f"<th>total</th></tr>\n{rows}\n</table>"
    )
