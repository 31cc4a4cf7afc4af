"""The page of `planner validate --html`: one self-contained file, no network, no library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from planner.evidence.runs.rows import MeasuredRow
from planner.report.scatter import Point, scatter_svg

Record = dict[str, Any]

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 1240px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
p.note { color: #555; max-width: 75ch; }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; }
.card { border: 1px solid #ddd; border-radius: 6px; padding: .5rem .9rem; }
.card b { display: block; font-size: 1.35rem; font-weight: 600; }
.card span { color: #555; font-size: .85rem; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; }
.plots svg { flex: 1 1 500px; min-width: 0; max-width: 700px; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .7rem; text-align: right; border-bottom: 1px solid #eee;
  vertical-align: top; }
th { border-bottom: 2px solid #bbb; white-space: nowrap; position: sticky; top: 0;
  background: #fff; }
td { white-space: nowrap; }
th.text, td.text { text-align: left; } td.text { white-space: normal; }
tr.total td { font-weight: 600; background: #f6f6f6; }
.bar { display: inline-block; position: relative; width: 8rem; height: .7rem;
  background: #eee; vertical-align: middle; }
.bar i { position: absolute; left: 0; top: 0; bottom: 0; background: #0072b2; }
.bar u { position: absolute; left: 75%; width: 10%; top: -2px; bottom: -2px;
  border: 1px solid #333; box-sizing: border-box; }
.legend { cursor: pointer; } .legend.off { opacity: .3; } .dots.off { display: none; }
circle:hover { stroke: #000; stroke-width: 1.5; fill-opacity: 1; }
input { font: inherit; padding: .2rem .5rem; margin-bottom: .5rem; width: 22rem; }
summary { cursor: pointer; margin: .6rem 0; }
""".strip()

_SCRIPT = """
for (const entry of document.querySelectorAll('.legend'))
  entry.addEventListener('click', () => {
    const off = entry.classList.toggle('off');
    for (const dots of entry.closest('svg').querySelectorAll('.dots'))
      if (dots.dataset.family === entry.dataset.family) dots.classList.toggle('off', off);
  });
const filter = document.getElementById('filter');
filter.addEventListener('input', () => {
  const wanted = filter.value.toLowerCase();
  for (const row of document.querySelectorAll('#rows tbody tr'))
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
});
""".strip()

_ERROR_TITLES = ("rows", "median", "mean", "p90", "bias", "rank", "in 80 %")
_SHOWN_GROUPS = 30


def validation_page(content: Record, families: Sequence[str], labels: Sequence[str]) -> str:
    """The page for a document of `planner.evidence.runs.document`; `families` and `labels` name the
    family of each of its rows, and where the row stands."""
    rows, summary = content["rows"], content["summary"]
    body = [
        "<h1>Predicted against measured</h1>",
        f'<p class="note">{escape(_lead(summary))}</p>',
        _cards(summary),
        "<h2>Step time and peak memory</h2>",
        '<p class="note">One dot a run; hover for its row, click a family to hide it.</p>',
        f'<div class="plots">{"".join(_plots(rows, families, labels))}</div>',
        "<h2>Step time by family</h2>",
        _errors(summary, "time"),
        "<h2>Peak memory by family</h2>",
        _errors(summary, "memory"),
        "<h2>Worst rows, and why</h2>",
        _worst(summary["worst"]),
        "<h2>Coverage of the 80 % interval</h2>",
        '<p class="note">Share of rows in their interval, which leaves the row\'s own source out. '
        "The box marks 75 to 85 %.</p>",
        _coverage(summary),
        "<h2>Picks</h2>",
        _picks(summary),
        _repeats(summary["repeats"]),
        "<h2>Fit</h2>",
        _fits(summary),
        "<h2>Refused</h2>",
        _refused(summary),
        "<h2>All rows</h2>",
        _all_rows(rows, families, labels),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Predicted against measured</title>\n<style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + f"\n<script>{_SCRIPT}</script>\n</body></html>\n"
    )


def _lead(summary: Record) -> str:
    predicted = summary["rows"] - summary["refused"]
    return (
        f"{predicted:,} of {summary['rows']:,} measured runs predicted from their configuration "
        "alone. Errors are relative to the measured value; bias is their signed median; rank is "
        "Spearman's correlation."
    )


def _percent(value: float | None, digits: int = 1, *, signed: bool = False) -> str:
    if value is None:
        return "–"
    return f"{value * 100:{'+' if signed else ''}.{digits}f} %"


def _cards(summary: Record) -> str:
    means, time, memory = summary["mean_of_sources"], summary["time"], summary["memory"]
    cards = []
    for name, own in (("step time", time), ("peak memory", memory)):
        if own is not None:
            cards += [
                (_percent(own["median"]), f"{name}: median error"),
                (_percent(own["mean"]), f"{name}: mean error"),
                (_percent(own["coverage"], 0), f"{name}: rows in the 80 % interval"),
            ]
    cards.append((_percent(means["time_mean"]), "step time: mean error, sources weigh the same"))
    if summary["picks"] is not None:
        cards.append((_percent(summary["picks"]["mean"]), "of the best throughput: mean pick"))
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card"><b>{value}</b><span>{escape(text)}</span></div>'
            for value, text in cards
        )
        + "</div>"
    )


def _number(row: Record, column: str) -> float | None:
    """A measurement as a number; None where empty, and for a refused row."""
    return None if row["error"] else MeasuredRow("", 0, row).measurement(column)


def _plots(rows: Sequence[Record], families: Sequence[str], labels: Sequence[str]) -> Iterable[str]:
    for title, measured, predicted, unit in (
        ("Step time", "step_time_s", "predicted_step_time_s", "s"),
        ("Peak memory", "peak_mem_gib", "predicted_peak_mem_gib", "GiB"),
    ):
        points = []
        for row, family, label in zip(rows, families, labels, strict=True):
            value, own = _number(row, measured), row[predicted]
            if value and own:
                text = (
                    f"{label}\nmeasured {value:.4g} {unit}, predicted {own:.4g} {unit} "
                    f"({_percent(own / value - 1, signed=True)})"
                )
                points.append(Point(value, own, family, text))
        if points:
            yield scatter_svg(points, title, unit)


def _table(
    titles: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], texts: Sequence[int] = (0,)
) -> str:
    """A table; a row has a class and cells; `texts` are the columns that are left-aligned."""
    head = "".join(
        f"<th{_text_class(index, texts)}>{escape(title)}</th>" for index, title in enumerate(titles)
    )
    lines = []
    for kind, cells in rows:
        own = "".join(
            f"<td{_text_class(index, texts)}>{cell}</td>" for index, cell in enumerate(cells)
        )
        lines.append(f"<tr{f' class={kind}' if kind else ''}>{own}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>'
        + "\n".join(lines)
        + "</tbody></table></div>"
    )


def _text_class(index: int, texts: Sequence[int]) -> str:
    return ' class="text"' if index in texts else ""


def _lines(summary: Record) -> list[tuple[str, Record]]:
    """Families, then the totals."""
    totals = [summary, summary["stated"], summary["unstated"]]
    return [("", own) for own in summary["families"]] + [("total", own) for own in totals]


def _errors(summary: Record, figure: str) -> str:
    rows = [
        (kind, (escape(own["family"]), *_error_cells(own[figure])))
        for kind, own in _lines(summary)
        if own[figure] is not None
    ]
    means = summary["mean_of_sources"]
    if rows:
        middle, mean, coverage = (
            _percent(means[f"{figure}_{name}"]) for name in ("median", "mean", "coverage")
        )
        rows.append(("total", ("mean of sources", "", middle, mean, "", "", "", coverage)))
    if not rows:
        return '<p class="note">No run measured it.</p>'
    return _table(("family", *_ERROR_TITLES), rows)


def _error_cells(own: Record) -> tuple[str, ...]:
    rank = own["rank_correlation"]
    return (
        f"{own['rows']:,}",
        *(_percent(own[name]) for name in ("median", "mean", "p90")),
        _percent(own["bias"], signed=True),
        "–" if rank is None else f"{rank:.2f}",
        _percent(own["coverage"], 0),
    )


def _worst(rows: Sequence[Record]) -> str:
    return _table(
        ("run", "measured s", "predicted s", "error", "why"),
        [
            (
                "",
                (
                    f"{escape(own['description'])}<br><small>{escape(own['source'])}, "
                    f"{escape(own['file'])} line {own['line']}</small>",
                    f"{own['measured_s']:.4g}",
                    f"{own['predicted_s']:.4g}",
                    _percent(own["error"], signed=True),
                    escape(own["why"]),
                ),
            )
            for own in rows
        ],
        (0, 4),
    )


def _coverage(summary: Record) -> str:
    return _table(
        ("family", "step time", "", "peak memory", ""),
        [
            (kind, (escape(own["family"]), *_bars(own["time"]), *_bars(own["memory"])))
            for kind, own in _lines(summary)
            if own["time"] is not None or own["memory"] is not None
        ],
        (0, 2, 4),
    )


def _bars(own: Record | None) -> tuple[str, str]:
    if own is None:
        return "–", ""
    share = own["coverage"]
    bar = f'<span class="bar"><i style="width:{share * 100:.0f}%"></i><u></u></span>'
    return f"{_percent(share, 0)} of {own['rows']:,}", bar


def _picks(summary: Record) -> str:
    by_family = [
        (kind, (escape(own["family"]), *_pick_cells(own["picks"])))
        for kind, own in _lines(summary)
        if own["picks"] is not None
    ]
    if not by_family:
        return "<p>No group has five measured runs.</p>"
    groups = sorted(summary["groups"], key=lambda own: own["pick"])[:_SHOWN_GROUPS]
    worst = [
        (
            "",
            (
                escape(own["group"]),
                f"{own['runs']:,}",
                _percent(own["pick"]),
                f"{own['rank_correlation']:.2f}",
            ),
        )
        for own in groups
    ]
    return (
        '<p class="note">Measured throughput of the run that is ranked first, over the best of its '
        "group (one source, model, GPU type and count, sequence length, batch, precision and "
        "framework); a pick that ran out of memory counts 0.</p>"
        + _table(("family", "groups", "mean pick", "worst pick", "rank"), by_family)
        + "<h3>Groups, worst first</h3>"
        + _table(("group", "runs", "pick", "rank"), worst)
    )


def _repeats(repeats: Sequence[Record]) -> str:
    """Spread of repeated runs, nothing without any."""
    if not repeats:
        return ""
    rows = [
        (
            "",
            (
                escape(f"{own['source']}, {own['scale']}"),
                f"{own['settings']:,}",
                *(_percent(own[name], signed=True) for name in ("median", "p90", "worst")),
                _percent(own["pick"]),
                "–" if own["rank_correlation"] is None else f"{own['rank_correlation']:.2f}",
            ),
        )
        for own in repeats
    ]
    return (
        '<h3>Repeats</h3><p class="note">Slowest over fastest run of one setting, and what a '
        "prediction of undisturbed times would reach on the groups, were every second run slowed "
        "like the slower ones of these.</p>"
        + _table(("source, scale", "settings", "median", "p90", "worst", "pick", "rank"), rows)
    )


def _pick_cells(own: Record) -> tuple[str, ...]:
    return (
        f"{own['groups']:,}",
        _percent(own["mean"]),
        _percent(own["worst"]),
        f"{own['rank_correlation']:.2f}",
    )


def _fits(summary: Record) -> str:
    names = ("ran", "ran_predicted_not_to_fit", "out_of_memory", "out_of_memory_predicted_to_fit")
    return _table(
        ("family", "ran", "called too large", "ran out of memory", "called fitting"),
        [
            (kind, (escape(own["family"]), *(f"{own['fit'][name]:,}" for name in names)))
            for kind, own in _lines(summary)
            if own["fit"]["ran"] or own["fit"]["out_of_memory"]
        ],
    )


def _refused(summary: Record) -> str:
    if not summary["refused"]:
        return "<p>None.</p>"
    share = _percent(summary["refused"] / summary["rows"], 2)
    return f"<p>{summary['refused']:,} rows ({share}).</p>" + _table(
        ("why", "rows"),
        [("", (escape(why), f"{count:,}")) for why, count in summary["refusals"].items()],
    )


def _all_rows(rows: Sequence[Record], families: Sequence[str], labels: Sequence[str]) -> str:
    lines = [
        ("", _row_cells(row, family, label))
        for row, family, label in zip(rows, families, labels, strict=True)
    ]
    titles = (
        "row", "family", "measured s", "predicted s", "80 % interval", "error", "measured GiB",
        "predicted GiB", "error", "fits", "assumed, or why refused",
    )  # fmt: skip
    return (
        f"<details><summary>{len(rows):,} rows</summary>"
        '<input id="filter" placeholder="show rows that contain …" aria-label="filter">'
        f'<div id="rows">{_table(titles, lines, (0, 1, 10))}</div></details>'
    )


def _row_cells(row: Record, family: str, label: str) -> tuple[str, ...]:
    seconds, gibibytes = _number(row, "step_time_s"), _number(row, "peak_mem_gib")
    own_s, own_gib = row["predicted_step_time_s"], row["predicted_peak_mem_gib"]
    interval = f"{row['predicted_low_s']:.4g}–{row['predicted_high_s']:.4g}" if own_s else ""
    fits = {True: "yes", False: "no", None: ""}[row["predicted_fits"]]
    return (
        escape(label),
        escape(family),
        *_pair(seconds, own_s)[:2],
        interval,
        _pair(seconds, own_s)[2],
        *_pair(gibibytes, own_gib),
        fits,
        escape(row["error"] or ", ".join(row["assumed"])),
    )


def _pair(measured: float | None, predicted: float | None) -> tuple[str, str, str]:
    """Measured, predicted and error, empty where unknown."""
    error = _percent(predicted / measured - 1, signed=True) if measured and predicted else ""
    return (
        f"{measured:.4g}" if measured else "",
        f"{predicted:.4g}" if predicted else "",
        error,
    )
