"""Tables of how exact the predictions are, for the pages: from the figures that ship."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp
from pathlib import Path
from statistics import fmean, median
from typing import Any

from constraints.axes import AXES
from hardware.files import shipped_toml
from planner.evidence.runs.rows import FIRST_SIGHT, PUBLISHED, MeasuredRow, read_rows
from planner.job.written import markdown_table
from planner.predict.uncertainty.families import Figure
from planner.predict.uncertainty.shipped import shipped_tables
from planner.report.replay import replay_report
from planner.report.tables import Notes, TableData
from planner.tune.replay import ReplayReport
from pydantic import TypeAdapter
from tests.documents.data_tables import Column, DataTable
from tests.fit.accuracy import HELD_OUT
from tests.truth.accuracy import COUNTS, counted_accuracy, counted_tables
from tests.truth.tuning_accuracy import tuning_accuracy

ROOT = Path(__file__).resolve().parents[1]
# Written by tests.fit.accuracy.
ACCURACY = "planner/evidence/data/accuracy"


def _shipped() -> dict[str, Any]:
    return tomllib.loads((ROOT / f"{ACCURACY}.toml").read_text(encoding="utf-8"))


def headline() -> str:
    """Two numbers, each a mean over sources that weigh the same."""
    content = _shipped()
    means, held_out = content["mean_of_sources"], content["held_out_mean_of_sources"]
    time, memory = content["time"], content["memory"]
    rows = (
        (
            "step time, constants fitted without the source that judges",
            f"{time['rows']:,}",
            _percent(held_out["held_out_median"]),
            _percent(time["p90"]),
            _percent(means["time_coverage"]),
        ),
        (
            "peak memory",
            f"{memory['rows']:,}",
            _percent(means["memory_median"]),
            _percent(memory["p90"]),
            _percent(means["memory_coverage"]),
        ),
    )
    titles = (
        "",
        "runs",
        "median error, mean of sources",
        "9 of 10 runs within",
        "in 80 % interval",
    )
    return markdown_table(titles, rows) + "\n"


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


def sample_rules() -> str:
    """Table of what each framework does with samples, from samples.toml."""
    titles = ("", "`--packing`, the usual one first", "`--balance`", "from")
    rows = (
        (
            name,
            ", ".join(f"{rule} ({how})" if how != "none" else rule for rule, how in rules.items()),
            ", ".join(row.get("balances", ())) or "-",
            row["source"],
        )
        for name, row in shipped_toml("planner.job", "samples.toml").items()
        for rules in (row["packings"],)
    )
    return markdown_table(titles, rows) + "\n"


def accuracy() -> str:
    """Errors, coverage and picks by source, and the worst rows, from accuracy.toml."""
    content = _shipped()
    parts = (
        f"![Predicted against measured step time](../{ACCURACY}.svg)",
        f"Measured on {content['date']} by `{content['command']}`; "
        f"{content['rows'] - content['refused']:,} of {content['rows']:,} runs predicted.",
        _error_table(content, "time"),
        _error_table(content, "memory"),
        *(_bar_table(content.get("bars", {}), figure) for figure in FIRST_SIGHT),
        _reliability_table("stated to fit", content.get("fit_bin", ())),
        _reliability_table(
            "the same, of sources that list failures", content.get("open_fit_bin", ())
        ),
        _pick_table(content),
        _worst_table(content["worst"]),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def replay_tables() -> str:
    """What a replay of `planner tune` on the shipped runs found, from docs/replay.json."""
    text = (ROOT / "docs" / "replay.json").read_text(encoding="utf-8")
    report = replay_report(TypeAdapter(ReplayReport).validate_json(text))
    parts = []
    for block in report.blocks:
        if isinstance(block, TableData):
            right = [at for at, column in enumerate(block.columns) if column.align == "right"]
            titles = [column.title for column in block.columns]
            parts.append(f"{block.title}:\n\n{markdown_table(titles, block.rows, right)}")
        elif isinstance(block, Notes):
            parts.append("\n".join(block.lines))
    return "\n\n".join(parts) + "\n"


def memory_accuracy() -> str:
    """Errors of the memory model against the counts of a clone."""
    return counted_tables(*counted_accuracy(COUNTS))


def tuning_tables() -> str:
    """The same of models that are trained in part."""
    titles = "trained in part", "the same, of"
    return counted_tables(*tuning_accuracy(), titles=titles)


def constants() -> str:
    """What every constant of whole steps and peaks rests on, single sources first."""
    text = (ROOT / "planner/evidence/data/held_out_errors.toml").read_text(encoding="utf-8")
    found = sorted(
        tomllib.loads(text)["constant"].items(), key=lambda item: (len(item[1]["sources"]), item[0])
    )
    rows = [
        (
            name,
            one["figure"],
            *(f"{one[number]:.3g}" for number in ("value", "fitted", "prior", "shrunk")),
            ", ".join(one["sources"]) if len(one["sources"]) < 4 else str(len(one["sources"])),
        )
        for name, one in found
    ]
    titles = ("constant", "of", "ships", "best fit", "prior", "by the rule", "sources")
    return markdown_table(titles, rows) + "\n"


def first_sight() -> str:
    """Mean over a draw's sources of their median errors when the model met them first, and now."""
    now = {source["family"]: source for source in _shipped()["source"]}
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
        yield _percent(fmean(medians.values())) if medians else ""
        yield _percent(fmean(today)) if today else ""


def _totals(content: Mapping[str, Any], figure: str) -> list[Mapping[str, Any]]:
    """Sources that have the figure, worst first; then all rows, then all rows in two parts."""
    sources = [source for source in content["source"] if figure in source]
    sources.sort(key=lambda source: _goodness(source[figure]))
    parts = (content, content["stated"], content["unstated"])
    return [*sources, *(part for part in parts if figure in part)]


def _goodness(figures: Mapping[str, Any]) -> float:
    """Greater is better: of picks their mean, of errors less of their median."""
    return float(-figures["median"] if "median" in figures else figures["mean"])


_ERROR_COLUMNS = (
    Column("source", "Who measured the runs.", number=False),
    Column("rows", "Runs predicted."),
    Column("median", "Median absolute error, %."),
    Column("mean", "Mean absolute error, %."),
    Column("p90", "Absolute error that one run in ten exceeds, %."),
    Column("bias", "Median signed error, %; above 0: predicted too high."),
    Column("rank", "Rank correlation of predicted and measured; empty for one or two runs."),
    Column("covered", "Runs within their 80 % interval, %."),
    Column("width", "Mean width of the 80 % interval, as the logarithm of its ends' ratio."),
    Column("score", "Interval score; less is better."),
    Column("held_out_median", "Median absolute error with constants that leave the source out, %."),
)
_ERRORS: dict[Figure, str] = {"time": "step time", "memory": "peak memory"}


def accuracy_data() -> list[DataTable]:
    """Errors by source, worst first, of step time and of peak memory."""
    content = _shipped()
    return [_error_data(content, figure) for figure in _ERRORS]


def _error_data(content: Mapping[str, Any], figure: Figure) -> DataTable:
    sources = [one for one in content["source"] if figure in one]
    rows = [
        (one["family"], *_error_cells(one[figure]), _held_out_cell(one, figure))
        for one in sorted(sources, key=lambda one: _goodness(one[figure]))
    ]
    title = f"Errors of {_ERRORS[figure]} by source"
    return DataTable(f"accuracy-{figure}", title, _ERROR_COLUMNS, rows)


def _held_out_cell(total: Mapping[str, Any], figure: Figure) -> str:
    return _percent(total.get(HELD_OUT[figure], {}).get("median"))


def _error_table(content: Mapping[str, Any], figure: Figure) -> str:
    """Errors of all runs, of parts of them and of the mean source, above the link to the data."""
    key = HELD_OUT[figure]
    titles = (_ERRORS[figure], "rows", "median", "mean", "p90", "bias", "rank", "in 80 % interval",
              "width", "score", "held-out median")  # fmt: skip
    parts = (content, content["stated"], content["unstated"])
    rows = [
        (one["family"], *_error_cells(one[figure]), _held_out_cell(one, figure))
        for one in parts
        if figure in one
    ]
    means = content["mean_of_sources"]
    middle, mean, coverage = (
        _percent(means.get(f"{figure}_{name}")) for name in ("median", "mean", "coverage")
    )
    bars = _bar_cells({name: means.get(f"{figure}_{name}") for name in ("width", "score")})
    held_out = _percent(content[f"{key}_mean_of_sources"]["held_out_median"])
    rows.append(("mean of sources", "", middle, mean, "", "", "", coverage, *bars, held_out))
    return f"{markdown_table(titles, rows)}\n\n{_error_data(content, figure).link}"


def _bar_cells(mapping: Mapping[str, Any]) -> tuple[str, ...]:
    """Width and interval score, as far as they are known."""
    known = (mapping.get(name) for name in ("width", "score"))
    return tuple(f"{value:.2f}" for value in known if value is not None)


_VIEWS = {"known": "known", "left_out": "left out", "first_sight": "first sight"}
_OF_BARS = ("width", "in 80 %", "score")


def _bar_table(bars: Mapping[str, Any], figure: Figure) -> str:
    """Width, coverage and score of error bars by family in every view; empty without any."""
    words = {"time": "step time", "memory": "peak memory"}[figure]
    titles = [f"80 % intervals of {words}", "sources", "runs"]
    shown = {name: _by_family(bars[name].get(figure, ())) for name in _VIEWS if name in bars}
    for name in shown:
        first, *others = ("runs", *_OF_BARS) if name == "first_sight" else _OF_BARS
        titles += [f"{_VIEWS[name]}: {first}", *others]
    known = shown.get("known", {})
    lines = [(family, one, "of_runs") for family, one in known.items()]
    lines += [("mean of sources", one, "of_sources") for one in [*known.values()][-1:]]
    rows = [
        (
            title,
            f"{quality['sources']:,}",
            f"{quality['runs']:,}",
            *(
                cell
                for name, families in shown.items()
                for cell in _view_cells(name, families.get(quality["family"]), of)
            ),
        )
        for title, quality, of in lines
    ]
    return markdown_table(titles, rows) if rows else ""


def _by_family(families: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {one["family"]: one for one in families}


def _view_cells(name: str, quality: Mapping[str, Any] | None, of: str) -> tuple[str, ...]:
    """Cells of a family in one view; empty where it has no run there."""
    counted = name == "first_sight"
    if quality is None:
        return ("",) * (len(_OF_BARS) + counted)
    mean = quality[of]
    width, score = _bar_cells(mean)
    runs = (f"{quality['runs']:,}",) if counted else ()
    return (*runs, width, f"{mean['coverage'] * 100:.0f} %", score)


def _error_cells(mapping: Mapping[str, Any]) -> tuple[str, ...]:
    rank = mapping.get("rank_correlation")
    return (
        f"{mapping['rows']:,}",
        *(_percent(mapping[name]) for name in ("median", "mean", "p90")),
        f"{mapping['bias'] * 100:+.1f} %",
        "-" if rank is None else f"{rank:.2f}",
        f"{mapping['coverage'] * 100:.0f} %",
        *_bar_cells(mapping),
    )


def _reliability_table(title: str, bins: Sequence[Mapping[str, Any]]) -> str:
    """Stated probabilities of fitting against the share of runs that ran; empty without any."""
    rows = (
        (
            f"{item['low'] * 100:.0f} to {item['high'] * 100:.0f} %",
            f"{item['rows']:,}",
            _percent(item["stated"]),
            _percent(item["ran"]),
        )
        for item in bins
    )
    return markdown_table((title, "rows", "mean stated", "ran"), rows) if bins else ""


def _pick_table(content: Mapping[str, Any]) -> str:
    rows = (
        (
            total["family"],
            f"{picks['groups']:,}",
            _percent(picks["mean"]),
            _percent(picks["worst"]),
            f"{picks['rank_correlation']:.2f}",
        )
        for total in _totals(content, "picks")
        if (picks := total["picks"])
    )
    return markdown_table(("picks", "groups", "mean", "worst", "rank"), rows)


def _worst_table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = (
        (
            f"{row['source']}: {row['description']}",
            f"{row['measured_s']:.3g} s",
            f"{row['predicted_s']:.3g} s",
            row["why"],
        )
        for row in rows
    )
    return markdown_table(("worst rows", "measured", "predicted", "why"), cells)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"
