"""Small tables of pages, and the links to data that stand in place of large ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import exp
from statistics import fmean, median
from typing import Any

from constraints.axes import AXES
from planner.evidence.runs.rows import FIRST_SIGHT, PUBLISHED, MeasuredRow, read_rows
from planner.job.written import markdown_table
from planner.predict.uncertainty.shipped import shipped_tables
from planner.report.replay import replay_report
from planner.report.tables import Notes, TableData

from page_accuracy import percent, shipped
from page_data import constants, frame_columns, options, replay_groups, replayed, sample_rules


def axes() -> str:
    """The degrees of a configuration: what each is, and what it divides."""
    rows = ((axis.name, axis.words, axis.divides) for axis in AXES.values())
    return markdown_table(("", "what it is", "what it divides"), rows) + "\n"


_PART_WORDS = {
    "work": "step time: the model's FLOP at the fastest rate that a step may have",
    "exposed": "exposed communication",
    "waiting": "waiting for the CPU",
    "rest": "the rest: slower kernels, recomputation, bubbles, the optimizer",
    "peak": "peak memory",
}


def error_parts() -> str:
    """Table of the errors of the parts of a prediction, and of what multiplies them."""
    tables = shipped_tables().values()
    parts = (
        (_PART_WORDS[part], *(f"{end * 100:.0f} %" for end in ends))
        for table in tables
        for part, ends in table.errors.parts.items()
    )
    kinds = (
        (f"{table.figure}, {kind}", *(f"times {exp(end):.2f}" for end in ends))
        for table in tables
        for kind, ends in table.errors.kinds.items()
    )
    return markdown_table(("", "down", "up"), (*parts, *kinds)) + "\n"


def error_shares() -> str:
    """Table of how the errors' variance divides between families, sources and runs."""
    shares = {figure: table.shares for figure, table in shipped_tables().items()}
    titles = ("", *(dict.fromkeys(level for one in shares.values() for level in one)))
    rows = (
        (figure, *(f"{one.get(level, 0.0) * 100:.0f} %" for level in titles[1:]))
        for figure, one in shares.items()
    )
    return markdown_table(titles, rows) + "\n"


def option_links() -> str:
    """The paragraph for the options of all commands."""
    return options().link("../") + "\n"


def sample_links() -> str:
    """The paragraph for what frameworks do with samples."""
    return sample_rules().link("../") + "\n"


def constant_links() -> str:
    """The paragraph for what every constant rests on."""
    return constants().link() + "\n"


def frame_links() -> str:
    """The paragraph for the columns of a frame."""
    return frame_columns().link() + "\n"


def replay_tables() -> str:
    """What a replay of `planner tune` on the shipped runs found; its groups as data."""
    parts = []
    for block in replay_report(replayed()).blocks:
        if isinstance(block, TableData) and block.title != "Groups":
            right = [at for at, column in enumerate(block.columns) if column.align == "right"]
            titles = [column.title for column in block.columns]
            parts.append(f"{block.title}:\n\n{markdown_table(titles, block.rows, right)}")
        elif isinstance(block, Notes):
            parts.append("\n".join(block.lines))
    return "\n\n".join((*parts, replay_groups().link("../"))) + "\n"


def first_sight() -> str:
    """Mean over a draw's sources of their median errors when the model met them first, and now."""
    now = {source["family"]: source for source in shipped()["source"]}
    rows = [
        (path.stem, str(len(errors)), *_first_cells(errors, now))
        for path in sorted(PUBLISHED.glob("*.csv"))
        if (errors := _first_errors(read_rows(path)))
    ]
    titles = ("draw", "sources", "runs", "time at first", "now", "memory at first", "now")
    return markdown_table(titles, rows) + "\n"


_FirstErrors = dict[str, dict[str, list[float]]]


def _first_errors(rows: Iterable[MeasuredRow]) -> _FirstErrors:
    """By source and figure, how far off what was first predicted is, where nothing is in doubt."""
    found: _FirstErrors = {}
    for row in rows:
        for figure, (measured, first) in FIRST_SIGHT.items():
            at, seen = row.number(measured), row.number(first)
            if at and seen and figure not in row.doubted:
                figures = found.setdefault(row.source, {name: [] for name in FIRST_SIGHT})
                figures[figure].append(abs(seen / at - 1.0))
    return found


def _first_cells(errors: _FirstErrors, now: Mapping[str, Any]) -> Iterator[str]:
    """Runs, then of each figure the mean over sources of their medians, at first and now."""
    yield f"{sum(max(map(len, figures.values())) for figures in errors.values()):,}"
    for figure in FIRST_SIGHT:
        medians = {one: median(of[figure]) for one, of in errors.items() if of[figure]}
        today = [now[one][figure]["median"] for one in medians if figure in now.get(one, {})]
        yield percent(fmean(medians.values())) if medians else ""
        yield percent(fmean(today)) if today else ""
