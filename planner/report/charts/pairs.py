"""Draws what was predicted beside what was measured, a pair of bars a term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from planner.report.charts.drawing import BLUE, FILE_WIDTH, VERMILION, Width, colours, table
from planner.report.traced import Pair

_BAND = 34


def pairs_chart(pairs: Sequence[Pair], unit: str, width: Width) -> Any:
    """Bars in reading order."""
    kinds = ["predicted", "measured"]
    rows = [
        {
            "label": pair.label, "kind": kind, "value": value,
            "text": f"{pair.label}, {kind}: {value:,.2f} {unit}",
        }
        for pair in pairs
        for kind, value in zip(kinds, (pair.predicted, pair.measured), strict=True)
        if value is not None
    ]  # fmt: skip
    kinds = [kind for kind in kinds if any(row["kind"] == kind for row in rows)]
    palette = (BLUE, VERMILION)[-len(kinds) :]
    return (
        alt.Chart(table(rows))
        .mark_bar()
        .encode(
            x=alt.X("value:Q", title=unit),
            y=alt.Y("label:N", sort=[pair.label for pair in pairs], title=None,
                    axis=alt.Axis(labelLimit=220)),
            yOffset=alt.YOffset("kind:N", sort=kinds),
            color=alt.Color("kind:N", title=None, scale=colours(kinds, palette)),
            tooltip=alt.Tooltip("text:N", title="term"),
        )
        .properties(width=width, height=_BAND * len(pairs))
    )  # fmt: skip


def panels_chart(panels: Mapping[str, tuple[Sequence[Pair], str]]) -> Any:
    """Bars and their unit by title, one below the other, for a file."""
    drawn = [
        pairs_chart(pairs, unit, FILE_WIDTH).properties(title=title)
        for title, (pairs, unit) in panels.items()
    ]
    return alt.vconcat(*drawn, spacing=36)
