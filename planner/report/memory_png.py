"""Draws the picture of a step's memory as PNG with matplotlib, an optional library."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from planner.job.errors import UsageError
from planner.job.quantities import GIB, gib
from planner.report.memory_figure import GROUPS, Figure, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL_INCHES = (9.6, 4.6)


def memory_png(figure: Figure) -> bytes:
    """The picture as a PNG file. UsageError names the extra where matplotlib is missing."""
    drawing = _matplotlib_figure(figure)
    stream = io.BytesIO()
    drawing.savefig(stream, format="png", dpi=150)
    return stream.getvalue()


def demand_matplotlib() -> None:
    """UsageError if PNG files cannot be drawn; before any work is done."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError(
            "a .png needs matplotlib, which is not installed: pip install 'trainplan[plot]'; or "
            "write .svg or .html, which need nothing"
        ) from None


def _matplotlib_figure(figure: Figure) -> Any:
    demand_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    width, height = _PANEL_INCHES
    drawing = Drawing(figsize=(width, height * len(figure.panels) + 0.6), layout="constrained")
    FigureCanvasAgg(drawing)
    drawing.suptitle(f"{figure.title}\n{figure.subtitle}", fontsize=10)
    axes = drawing.subplots(len(figure.panels), 1, squeeze=False)[:, 0]
    for panel, own in zip(figure.panels, axes, strict=True):
        _panel(panel, own)
    drawing.supxlabel(figure.note, fontsize=7, color="#555555")
    return drawing


def _panel(panel: Panel, axes: Axes) -> None:
    first = sum(bar.step == panel.bars[0].step for bar in panel.bars)
    places = [index + (0.8 if index >= first else 0.0) for index in range(len(panel.bars))]
    reached = [0.0] * len(panel.bars)
    for index in panel.used:
        sizes = [bar.sizes[index] / GIB for bar in panel.bars]
        group = GROUPS[index]
        axes.bar(places, sizes, 0.72, bottom=reached, color=group.colour, label=group.name)
        reached = [low + size for low, size in zip(reached, sizes, strict=True)]
    _peak(panel, places, axes)
    _limit(panel, axes)
    axes.set_xticks(places, panel.labels, rotation=35, ha="right", fontsize=8)
    axes.set_ylim(0, panel.top_bytes / GIB * 1.12)
    axes.set_ylabel("GiB")
    axes.set_title(panel.title, fontsize=9, loc="left")
    axes.set_xlabel(
        f"left: {panel.bars[0].step}; right: {panel.bars[-1].step}", fontsize=8, color="#555555"
    )
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _limit(panel: Panel, axes: Axes) -> None:
    """The line of the limit, or a word at the top if it lies beyond."""
    colour = "#cc0000"
    if not panel.shows_limit:
        axes.text(
            0.01, 0.97, panel.limit_text, color=colour, fontsize=8, ha="left", va="top",
            transform=axes.transAxes,
        )  # fmt: skip
        return
    limit = panel.limit_bytes / GIB
    axes.axhline(limit, color=colour, linestyle="--", linewidth=1.2)
    axes.text(
        0.01, limit, panel.limit_text, color=colour, fontsize=8, ha="left", va="bottom",
        transform=axes.get_yaxis_transform(),
        bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
    )  # fmt: skip


def _peak(panel: Panel, places: list[float], axes: Axes) -> None:
    """The total of the heaviest bar, with the whisker of its interval."""
    index = next(number for number, bar in enumerate(panel.bars) if bar.is_peak)
    total = panel.bars[index].total_bytes
    top = total
    if panel.interval is not None:
        low, top = panel.interval
        errors = [[(total - low) / GIB], [(top - total) / GIB]]
        axes.errorbar([places[index]], [total / GIB], yerr=errors, color="black", capsize=4)
    axes.text(
        places[index], top / GIB, f"{gib(total)} GiB", ha="center", va="bottom", fontsize=8,
        weight="bold",
    )  # fmt: skip
