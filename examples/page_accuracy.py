"""Tables of the page on accuracy: from the figures that ship, and from counts of frameworks."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from planner.job.written import markdown_table
from planner.predict.uncertainty.families import Figure
from tests.documents.data_tables import Column, DataTable
from tests.fit.accuracy import HELD_OUT
from tests.truth.accuracy import COUNTS, Errors, counted_accuracy, counted_tables
from tests.truth.tuning_accuracy import tuning_accuracy

ROOT = Path(__file__).resolve().parents[1]
# Written by tests.fit.accuracy.
ACCURACY = "planner/evidence/data/accuracy"
_WORDS: dict[Figure, str] = {"time": "step time", "memory": "peak memory"}


@cache
def shipped() -> dict[str, Any]:
    """The figures that ship, as `accuracy.toml` has them."""
    return tomllib.loads((ROOT / f"{ACCURACY}.toml").read_text(encoding="utf-8"))


def headline() -> str:
    """How far predictions are off, and how often their error bars hold."""
    content = shipped()
    means = content["mean_of_sources"]
    half = {
        "time": content["held_out_mean_of_sources"]["held_out_median"],
        "memory": content["memory_held_out_mean_of_sources"]["held_out_median"],
    }
    rows = [
        (
            words,
            f"{content[figure]['rows']:,}",
            percent(half[figure]),
            percent(content[figure]["p90"]),
            percent(means[f"{figure}_coverage"]),
            percent([*_views(content, figure)["first_sight"].values()][-1]["of_runs"]["coverage"]),
        )
        for figure, words in _WORDS.items()
    ]
    titles = (
        "",
        "runs",
        "half of an unknown source's runs within",
        "9 of 10 of all runs within",
        "inside their ±, mean of sources",
        "inside it at first sight",
    )
    return markdown_table(titles, rows) + "\n"


def accuracy() -> str:
    """Errors, error bars and picks over all sources, with links to the tables by source."""
    content = shipped()
    by_source = {table.name: table.link() for table in accuracy_data()}
    parts = (
        f"![Predicted against measured step time](../{ACCURACY}.svg)",
        f"Measured on {content['date']} by `{content['command']}`; "
        f"{content['rows'] - content['refused']:,} of {content['rows']:,} runs predicted.",
        _error_table(content, "time"),
        by_source["accuracy-time"],
        _error_table(content, "memory"),
        by_source["accuracy-memory"],
        _bar_table(content),
        by_source["accuracy-bars"],
        _reliability_table("stated to fit", content.get("fit_bin", ())),
        _reliability_table(
            "the same, of sources that list failures", content.get("open_fit_bin", ())
        ),
        _pick_table(content),
        by_source["accuracy-picks"],
        by_source["accuracy-worst"],
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def accuracy_data() -> list[DataTable]:
    """Errors, picks and error bars by source or family, the worst runs first, and the counts."""
    content = shipped()
    return [
        *(_error_data(content, figure) for figure in _WORDS),
        _bar_data(content),
        _pick_data(content),
        _worst_data(content),
        counted_data(),
    ]


def memory_accuracy() -> str:
    """Errors of the memory model against the counts of a clone."""
    return counted_tables(_counted()[0], titles=("counted",))


def tuning_tables() -> str:
    """The same of models that are trained in part, and all families as data."""
    table = counted_tables(_tuned()[0], titles=("trained in part",))
    return f"{table}\n{counted_data().link()}\n"


_counted = cache(lambda: counted_accuracy(COUNTS))
_tuned = cache(tuning_accuracy)

_COUNT_COLUMNS = (
    Column("trained", "Whether all weights of the model are trained, or a part.", number=False),
    Column("family", "Family of the model: the name that transformers has for it.", number=False),
    Column("figures", "Counted parameters and bytes that are compared."),
    Column("median", "Median absolute error, %."),
    Column("p95", "Absolute error that one figure in twenty exceeds, %."),
    Column("worst", "The largest error, %; above 0: predicted too high."),
    Column("where", "The figure with the largest error.", number=False),
)


@cache
def counted_data() -> DataTable:
    """Errors against counts, by family of the model."""
    families = {"in full": _counted()[1], "in part": _tuned()[1]}
    rows = [
        (trained, family, *_count_cells(errors))
        for trained, found in families.items()
        for family, errors in found.items()
    ]
    title = "Errors against counted bytes, by family of the model"
    return DataTable("counted-families", title, _COUNT_COLUMNS, rows)


def _count_cells(errors: Errors) -> tuple[str, ...]:
    """An error of less than a part in ten thousand is shown as none, and its figure not named."""
    shares = [f"{100 * one:.2f}" for one in (errors.median, errors.p95, errors.worst)]
    where = errors.worst_row if float(shares[-1]) else ""
    return str(errors.figures), *(share if float(share) else "0" for share in shares), where


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


def _error_data(content: Mapping[str, Any], figure: Figure) -> DataTable:
    sources = [one for one in content["source"] if figure in one]
    rows = [
        (one["family"], *_error_cells(one[figure]), _held_out_cell(one, figure))
        for one in sorted(sources, key=lambda one: -float(one[figure]["median"]))
    ]
    title = f"Errors of {_WORDS[figure]} by source"
    return DataTable(f"accuracy-{figure}", title, _ERROR_COLUMNS, rows)


def _held_out_cell(total: Mapping[str, Any], figure: Figure) -> str:
    return percent(total.get(HELD_OUT[figure], {}).get("median"))


def _error_table(content: Mapping[str, Any], figure: Figure) -> str:
    """Errors of all runs, of parts of them and of the mean source."""
    titles = (_WORDS[figure], "rows", "median", "mean", "p90", "bias", "rank", "in 80 % interval",
              "width", "score", "held-out median")  # fmt: skip
    parts = (content, content["stated"], content["unstated"])
    rows = [
        (one["family"], *_error_cells(one[figure]), _held_out_cell(one, figure))
        for one in parts
        if figure in one
    ]
    means = content["mean_of_sources"]
    middle, mean, coverage = (
        percent(means.get(f"{figure}_{name}")) for name in ("median", "mean", "coverage")
    )
    bars = _bar_cells({name: means.get(f"{figure}_{name}") for name in ("width", "score")})
    held_out = percent(content[f"{HELD_OUT[figure]}_mean_of_sources"]["held_out_median"])
    rows.append(("mean of sources", "", middle, mean, "", "", "", coverage, *bars, held_out))
    return markdown_table(titles, rows)


def _error_cells(mapping: Mapping[str, Any]) -> tuple[str, ...]:
    rank = mapping.get("rank_correlation")
    return (
        f"{mapping['rows']:,}",
        *(percent(mapping[name]) for name in ("median", "mean", "p90")),
        f"{mapping['bias'] * 100:+.1f} %",
        "-" if rank is None else f"{rank:.2f}",
        f"{mapping['coverage'] * 100:.0f} %",
        *_bar_cells(mapping),
    )


def _bar_cells(mapping: Mapping[str, Any]) -> tuple[str, ...]:
    """Width and interval score, as far as they are known."""
    known = (mapping.get(name) for name in ("width", "score"))
    return tuple(f"{value:.2f}" for value in known if value is not None)


_VIEWS = {"known": "known", "left_out": "left out", "first_sight": "first sight"}
_OF_BARS = ("width", "covered", "score")
_BAR_COLUMNS = (
    Column("figure", "What the interval is of.", number=False),
    Column("family", "Framework, architecture, one or several NVLink domains, kind of model.",
           number=False),
    Column("sources", "Sources of the runs."),
    Column("runs", "Runs."),
    *(
        Column(f"{view}_{name}", f"{meaning} {seen}")
        for view, seen in (
            ("known", "as predicted today."),
            ("left_out", "with constants fitted without the run's source."),
            ("first_sight", "as predicted before anything was changed for the run."),
        )
        for name, meaning in (
            ("runs", "Runs,"),
            ("width", "Mean width of the 80 % interval, ln(upper / lower end),"),
            ("covered", "Runs within the interval, %,"),
            ("score", "Interval score (less is better),"),
        )
        if (view, name) not in {("known", "runs"), ("left_out", "runs")}
    ),
)  # fmt: skip


def _bar_data(content: Mapping[str, Any]) -> DataTable:
    """Error bars by family; the last family of the figures that ship is all runs together."""
    rows = [
        (words, *_bar_row(quality["family"], quality, shown, "of_runs"))
        for figure, words in _WORDS.items()
        for shown in (_views(content, figure),)
        for quality in [*shown["known"].values()][:-1]
    ]
    return DataTable("accuracy-bars", "80 % intervals by family of runs", _BAR_COLUMNS, rows)


def _bar_table(content: Mapping[str, Any]) -> str:
    """Error bars of all runs, and of the mean source, in every view."""
    titles = ["80 % intervals", "sources", "runs"]
    for view, words in _VIEWS.items():
        first, *others = ("runs",) * (view == "first_sight") + ("width", "in 80 %", "score")
        titles += [f"{words}: {first}", *others]
    rows = []
    for figure, words in _WORDS.items():
        shown = _views(content, figure)
        quality = [*shown["known"].values()][-1]
        for title, of in (("all runs", "of_runs"), ("mean of sources", "of_sources")):
            rows.append(_bar_row(f"{words}, {title}", quality, shown, of))
    return markdown_table(titles, rows)


def _views(content: Mapping[str, Any], figure: str) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Of each view the quality of the bars by family."""
    return {
        view: {one["family"]: one for one in content["bars"][view].get(figure, ())}
        for view in _VIEWS
    }


def _bar_row(
    title: str,
    quality: Mapping[str, Any],
    shown: Mapping[str, Mapping[str, Mapping[str, Any]]],
    of: str,
) -> tuple[str, ...]:
    return (
        title,
        f"{quality['sources']:,}",
        f"{quality['runs']:,}",
        *(
            cell
            for view, families in shown.items()
            for cell in _view_cells(view, families.get(quality["family"]), of)
        ),
    )


def _view_cells(view: str, quality: Mapping[str, Any] | None, of: str) -> tuple[str, ...]:
    """Cells of a family in one view; empty where it has no run there."""
    counted = view == "first_sight"
    if quality is None:
        return ("",) * (len(_OF_BARS) + counted)
    width, score = _bar_cells(quality[of])
    runs = (f"{quality['runs']:,}",) if counted else ()
    return (*runs, width, f"{quality[of]['coverage'] * 100:.0f} %", score)


def _reliability_table(title: str, bins: Sequence[Mapping[str, Any]]) -> str:
    """Stated probabilities of fitting against the share of runs that ran; empty without any."""
    rows = (
        (
            f"{item['low'] * 100:.0f} to {item['high'] * 100:.0f} %",
            f"{item['rows']:,}",
            percent(item["stated"]),
            percent(item["ran"]),
        )
        for item in bins
    )
    return markdown_table((title, "rows", "mean stated", "ran"), rows) if bins else ""


_PICK_COLUMNS = (
    Column("source", "Who measured the runs.", number=False),
    Column("groups", "Groups of five runs or more that differ in the plan alone."),
    Column("mean", "Measured throughput of the plan ranked first, over the best: the mean, %."),
    Column("worst", "The same of the worst group, %."),
    Column("rank", "Mean rank correlation of predicted and measured within a group."),
)


def _pick_data(content: Mapping[str, Any]) -> DataTable:
    sources = [one for one in content["source"] if one.get("picks")]
    sources.sort(key=lambda one: float(one["picks"]["mean"]))
    return DataTable("accuracy-picks", "Picks by source", _PICK_COLUMNS, [*_pick_rows(sources)])


def _pick_table(content: Mapping[str, Any]) -> str:
    parts = [content, content["stated"], content["unstated"]]
    rows = _pick_rows([part for part in parts if part.get("picks")])
    return markdown_table(("picks", "groups", "mean", "worst", "rank"), rows)


def _pick_rows(totals: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for total in totals:
        picks = total["picks"]
        yield (
            total["family"],
            f"{picks['groups']:,}",
            percent(picks["mean"]),
            percent(picks["worst"]),
            f"{picks['rank_correlation']:.2f}",
        )


_WORST_COLUMNS = (
    Column("source", "Who measured the run.", number=False),
    Column("run", "Model, GPUs, framework and plan.", number=False),
    Column("measured_s", "Measured step time, s."),
    Column("predicted_s", "Predicted step time, s."),
    Column("why", "What the prediction is made of, and what had to be assumed.", number=False),
)


def _worst_data(content: Mapping[str, Any]) -> DataTable:
    rows = [
        (row["source"], row["description"], f"{row['measured_s']:.3g}",
         f"{row['predicted_s']:.3g}", row["why"])
        for row in content["worst"]
    ]  # fmt: skip
    return DataTable("accuracy-worst", "The runs predicted worst", _WORST_COLUMNS, rows)


def percent(share: float | None) -> str:
    """A share as `4.5 %`; a dash for none."""
    return "-" if share is None else f"{share * 100:.1f} %"
