"""Labels next to dots, placed so that they cover no other labels, whiskers or dots.

A chart is as wide as its container, so each label is placed twice: the full text for a wide page,
and a short one for a phone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log10

from planner.report.charts.drawing import Specification
from planner.report.charts.templates import filled

# Width and height of the plot in pixels, by the prefix of the label's columns; then the size of a
# letter, a line and a dot.
_VIEWS = {"": (800.0, 330.0), "phone_": (270.0, 330.0)}
_LETTER, _LINE, _DOT = 7.0, 14.0, 5.0
# Share of an axis that is left free at each end.
_AROUND = 0.03
# Places for a label: pixels to the right of the dot and below it. The nearest place is tried first.
_SPOTS = [(sign * 10, dy) for dy in (-11, 13, -27, 29, -43, 45) for sign in (1, -1)]

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Labelled:
    """A dot at `x` and `y`. `words`: its label, empty for none; `brief`: the label on a phone;
    `ends`: the ends of its whiskers: left, right, low and high."""

    x: float
    y: float
    words: str = ""
    brief: str = ""
    ends: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """An axis from the smallest to the largest of `values`, with a little space at both ends."""

    values: Sequence[float]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """The position of a value on the axis, as a share of its length."""
        low, high, at = map(self._scaled, (min(self.values), max(self.values), value))
        return _AROUND + (1.0 - 2.0 * _AROUND) * (at - low) / (high - low or 1.0)

    def _scaled(self, value: float) -> float:
        return log10(value) if self.logarithmic else value


def label_columns(dots: Sequence[Labelled], x: Span, y: Span) -> list[Mapping[str, object]]:
    """For each dot, the columns of its label: `words`, and its position `dx`, `dy` and `align`; and
    the same columns for a phone. Earlier dots choose their place first. A label that finds no free
    place is left out."""
    placed = ([*_placed(dots, x, y, size, prefix)] for prefix, size in _VIEWS.items())
    return [desk | phone for desk, phone in zip(*placed, strict=True)]


def words_beside(
    dots: Specification, x: str, y: str, is_phone: str = "width < 560"
) -> Specification:
    """The layer of labels for `dots`, a table with the columns of `label_columns`, `bold`, and the
    fields `x` and `y`. `is_phone`: a Vega expression that is true if the short labels are shown."""
    return filled("labels", dots=dots, x=x, y=y, phone=is_phone)


def _placed(
    dots: Sequence[Labelled], x: Span, y: Span, size: tuple[float, float], prefix: str
) -> Iterator[dict[str, object]]:
    lines = [line for dot in dots for line in _lines(dot, x, y, size)]
    taken: list[Box] = []
    for dot in dots:
        words = dot.brief if prefix else dot.words
        boxes = {spot: _box(_point(dot, x, y, size), spot, words) for spot in _SPOTS}
        spot = min(boxes, key=lambda spot: _cost(boxes[spot], taken, lines, size))
        is_free = not any(_meet(boxes[spot], other) for other in taken)
        if words and is_free:
            taken.append(boxes[spot])
        columns = {
            "words": words if is_free else "", "dx": spot[0], "dy": spot[1],
            "align": "left" if spot[0] > 0 else "right",
        }  # fmt: skip
        yield {prefix + name: value for name, value in columns.items()}


def _point(dot: Labelled, x: Span, y: Span, size: tuple[float, float]) -> tuple[float, float]:
    """The position of a dot in pixels, from the upper left corner of the plot."""
    return x.share(dot.x) * size[0], (1.0 - y.share(dot.y)) * size[1]


def _lines(dot: Labelled, x: Span, y: Span, size: tuple[float, float]) -> Iterator[Box]:
    """The dot and its whiskers as boxes."""
    at, down = _point(dot, x, y, size)
    yield at - _DOT, at + _DOT, down - _DOT, down + _DOT
    if dot.ends is not None:
        left, right, low, high = dot.ends
        yield x.share(left) * size[0], x.share(right) * size[0], down - 1, down + 1
        yield at - 1, at + 1, (1.0 - y.share(high)) * size[1], (1.0 - y.share(low)) * size[1]


def _box(point: tuple[float, float], spot: tuple[int, int], words: str) -> Box:
    near, y = point[0] + spot[0], point[1] + spot[1]
    far = near + (1 if spot[0] > 0 else -1) * _LETTER * len(words)
    return min(near, far), max(near, far), y - _LINE / 2, y + _LINE / 2


def _cost(
    box: Box, taken: Sequence[Box], lines: Sequence[Box], size: tuple[float, float]
) -> tuple[int, bool, int]:
    """How bad a place for a label is; lower is better. The number of labels that it covers counts
    first, then whether it leaves the picture, then the number of dots and whiskers that it covers.
    """
    beyond = box[0] < 0.0 or box[1] > size[0] or box[2] < 0.0 or box[3] > size[1]
    on_words = sum(_meet(box, other) for other in taken)
    return on_words, beyond, sum(_meet(box, line) for line in lines)


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]
