"""Elements that the SVG pictures share: text, text over bars, straight lines."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

GREY = "#555555"


def svg_text(
    x: float,
    y: float,
    text: str,
    *,
    size: int,
    weight: str = "normal",
    anchor: str = "start",
    colour: str = "#222",
) -> str:
    """Text at (x, y), pixels; `anchor` says which of its ends lies there."""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' font-weight='{weight}' "
        f"text-anchor='{anchor}' fill='{colour}'>{escape(text)}</text>"
    )


def svg_haloed(x: float, y: float, text: str, **style: Any) -> Iterator[str]:
    """Text over other drawing: itself above its white outline."""
    outline = svg_text(x, y, text, **style | {"colour": "white"})
    yield outline.replace("<text ", "<text aria-hidden='true' stroke='white' stroke-width='4' ")
    yield svg_text(x, y, text, **style)


def svg_line(
    x1: float, y1: float, x2: float, y2: float, colour: str, *, width: float = 1.0, dash: str = ""
) -> str:
    """A line from (x1, y1) to (x2, y2), pixels; `dash` as stroke-dasharray takes it."""
    dashes = f" stroke-dasharray='{dash}'" if dash else ""
    return (
        f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' "
        f"stroke-width='{width:g}'{dashes}/>"
    )
