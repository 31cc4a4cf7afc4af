"""Predicted against measured as an SVG drawing: both axes logarithmic, one colour a family."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

# Okabe & Ito 2008, told apart by colour-blind readers too; the yellow is too light on white.
_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b4fa3", "#8c6d31",
    "#c23b22",
)  # fmt: skip
_OTHER_COLOUR = "#888888"
_OTHERS = "others"
# Around the diagonal: predictions within this share of the measured value.
BAND = 0.2
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 214.0, 34.0, 48.0
_SIDE = 420.0
_EDGE, _BASE = _LEFT + _SIDE, _TOP + _SIDE
WIDTH, HEIGHT = _LEFT + _SIDE + _RIGHT, _TOP + _SIDE + _BOTTOM
_LEGEND_LINE = 17.0
_TICKS = (1.0, 2.0, 5.0)
_MOST_TICKS = 11


@dataclass(frozen=True, slots=True)
class Point:
    """One run: what was measured and predicted, in one unit; its family; a text to hover on."""

    measured: float
    predicted: float
    family: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Logarithmic axis of `_SIDE` units of length, the same for both directions."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Distance from the low end, in drawing units."""
        return _SIDE * math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten, or powers of ten where those are many."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in (_TICKS, (1.0,)):
            marks = [step * 10.0**decade for decade in decades for step in steps]
            inside = [mark for mark in marks if self.low <= mark <= self.high]
            if len(inside) <= _MOST_TICKS:
                break
        return inside


def scatter_svg(points: Sequence[Point], title: str, unit: str, *, hover: bool = True) -> str:
    """The drawing. With `hover` each run is a circle with its text, else all runs of a family are
    one path: many times smaller. Runs that are not positive cannot be drawn and are left out."""
    drawn = [own for own in points if own.measured > 0.0 and own.predicted > 0.0]
    axis = _axis(drawn)
    legend = _legend(drawn)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
        f'width="{WIDTH:g}" height="{HEIGHT:g}" font-family="system-ui, sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH:g}" height="{HEIGHT:g}" fill="#ffffff"/>',
        f'<text x="{_LEFT:g}" y="20" font-size="14" font-weight="600" fill="#1a1a1a">'
        f"{escape(title)}</text>",
        *_frame(axis, unit),
        *_dots(drawn, axis, legend, hover),
        *_legend_entries(drawn, legend),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axis(points: Sequence[Point]) -> _Axis:
    """Both axes span all values, with a little room; a decade around 1 without any."""
    values = [value for own in points for value in (own.measured, own.predicted)] or [0.5, 5.0]
    low, high = min(values) / 1.15, max(values) * 1.15
    return _Axis(low, high)


def _legend(points: Sequence[Point]) -> dict[str, str]:
    """Colours of the largest families; the rest share one."""
    counts = Counter(own.family for own in points)
    largest = [family for family, _ in counts.most_common(len(_COLOURS))]
    colours = dict(zip(largest, _COLOURS, strict=False))
    return colours | ({_OTHERS: _OTHER_COLOUR} if len(counts) > len(colours) else {})


def _group(family: str, legend: dict[str, str]) -> str:
    return family if family in legend else _OTHERS


def _x(axis: _Axis, value: float) -> float:
    return _LEFT + axis.place(value)


def _y(axis: _Axis, value: float) -> float:
    return _TOP + _SIDE - axis.place(value)


def _frame(axis: _Axis, unit: str) -> Iterable[str]:
    """Grid, band, diagonal and labels."""
    yield from _grid(axis)
    yield _band(axis)
    yield (
        f'<path d="M{_LEFT:g} {_BASE:g}L{_EDGE:g} {_TOP:g}" stroke="#777" stroke-dasharray="4 3"/>'
        f'<rect x="{_LEFT:g}" y="{_TOP:g}" width="{_SIDE:g}" height="{_SIDE:g}" fill="none" '
        'stroke="#999"/>'
    )
    yield from _axis_titles(escape(unit))


def _grid(axis: _Axis) -> Iterable[str]:
    for mark in axis.ticks():
        x, y, label = _x(axis, mark), _y(axis, mark), f'fill="#444">{mark:g}</text>'
        yield (
            f'<path d="M{x:.1f} {_TOP:g}V{_BASE:g}M{_LEFT:g} {y:.1f}H{_EDGE:g}" '
            'stroke="#e4e4e4" fill="none"/>'
            f'<text x="{x:.1f}" y="{_BASE + 16:g}" text-anchor="middle" {label}'
            f'<text x="{_LEFT - 7:g}" y="{y + 4:.1f}" text-anchor="end" {label}'
        )


def _band(axis: _Axis) -> str:
    """Between -BAND and +BAND of the measured value, cut off at the frame."""
    above = axis.place(axis.low * (1.0 + BAND))
    below = -axis.place(axis.low * (1.0 - BAND))
    return (
        f'<path d="M{_LEFT:g} {_BASE:g}V{_BASE - above:.1f}L{_EDGE - above:.1f} {_TOP:g}H{_EDGE:g}'
        f'V{_TOP + below:.1f}L{_LEFT + below:.1f} {_BASE:g}Z" fill="#0072b2" fill-opacity="0.08"/>'
    )


def _axis_titles(unit: str) -> Iterable[str]:
    style = 'text-anchor="middle" fill="#1a1a1a"'
    middle = _TOP + _SIDE / 2
    yield f'<text x="{_LEFT + _SIDE / 2:g}" y="{_BASE + 38:g}" {style}>measured, {unit}</text>'
    yield (
        f'<text x="16" y="{middle:g}" {style} transform="rotate(-90 16 {middle:g})">'
        f"predicted, {unit}</text>"
    )


def _dots(
    points: Sequence[Point], axis: _Axis, legend: dict[str, str], hover: bool
) -> Iterable[str]:
    """The runs of each colour as a group; the grey ones first, so that they lie below."""
    groups: dict[str, list[Point]] = {family: [] for family in reversed(legend)}
    for own in points:
        groups[_group(own.family, legend)].append(own)
    for family, members in groups.items():
        colour, name = legend[family], escape(family, quote=True)
        if hover:
            yield f'<g class="dots" data-family="{name}" fill="{colour}" fill-opacity="0.55">'
            yield from (_circle(own, axis) for own in members)
            yield "</g>"
        else:
            marks = "".join(
                f"M{_x(axis, own.measured):.1f} {_y(axis, own.predicted):.1f}h0" for own in members
            )
            yield (
                f'<path d="{marks}" stroke="{colour}" stroke-opacity="0.5" stroke-width="4.5" '
                'stroke-linecap="round" fill="none"/>'
            )


def _circle(own: Point, axis: _Axis) -> str:
    return (
        f'<circle cx="{_x(axis, own.measured):.1f}" cy="{_y(axis, own.predicted):.1f}" r="3">'
        f"<title>{escape(own.text)}</title></circle>"
    )


def _legend_entries(points: Sequence[Point], legend: dict[str, str]) -> Iterable[str]:
    counts = Counter(_group(own.family, legend) for own in points)
    x = _LEFT + _SIDE + 14
    for line, (family, colour) in enumerate(legend.items()):
        y = _TOP + 8 + line * _LEGEND_LINE
        yield (
            f'<g class="legend" data-family="{escape(family, quote=True)}">'
            f'<circle cx="{x:g}" cy="{y:g}" r="4.5" fill="{colour}"/>'
            f'<text x="{x + 10:g}" y="{y + 4:g}" fill="#1a1a1a" font-size="11">'
            f"{escape(_shortened(family))} ({counts[family]:,})</text></g>"
        )
    y = _TOP + 16 + len(legend) * _LEGEND_LINE
    yield (f'<text x="{x - 4:g}" y="{y + 4:g}" fill="#666" font-size="11">band: ±{BAND:.0%}</text>')


def _shortened(family: str, longest: int = 22) -> str:
    return family if len(family) <= longest else f"{family[: longest - 1]}…"
