"""Lengths of samples as a report, a JSON record and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import floor, log
from pathlib import Path
from typing import Any

from planner.job.quantities import share
from planner.job.samples import Lengths
from planner.report.charts.drawing import Drawing, Specification, demand_plot, in_file, table
from planner.report.charts.templates import filled
from planner.report.pages.page import Card, Page, Section
from planner.report.tables import Block, Facts, Notes, TableData, as_report
from planner.report.tables import table as titled

_SHARES = (0.5, 0.9, 0.95, 0.99)
# Number of bars for each doubling of the length.
_BARS = 4
# Share of the samples that a proposed limit leaves whole.
_WHOLE = 0.99
_LIMITS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
_TITLE = "Lengths of samples"


@as_report
def lengths_report(lengths: Lengths, left_out: int, written: Path | None) -> Iterator[Block]:
    """The distribution of lengths. `left_out`: number of samples without tokens; `written`: the
    output file."""
    yield Facts(tuple(_facts(lengths)))
    yield _limits(lengths)
    name = written or "FILE.csv"
    lines = [
        f"Next: planner search --model 8b --gpus 8xH100 --gbs-tokens 256K --lengths {name}",
        *(f"{left_out:,} samples hold no token and are left out." for _ in range(bool(left_out))),
    ]
    yield Notes(tuple(reversed(lines)))


def _facts(lengths: Lengths) -> Iterator[tuple[str, str]]:
    yield "samples", lengths.origin
    yield "tokens", f"{lengths.mean:,.1f} of a sample on average; {_reach(lengths)}"
    quantiles = (f"{share(part, 0)} {lengths.quantile(part):,.0f}" for part in _SHARES)
    yield "up to", ", ".join(quantiles)
    yield (
        "attention",
        f"a token is in a sample of {lengths.attended:,.0f} on average, which its attention takes",
    )


def _reach(lengths: Lengths) -> str:
    return f"{lengths.shortest:,} to {lengths.longest:,}"


def _limits(lengths: Lengths) -> TableData:
    """A row for each usual length limit (in tokens), up to the first that cuts no sample: the share
    of samples that it cuts, the share of tokens that it keeps, and, for samples padded to the
    limit, the share of tokens that are not padding."""
    rows = []
    for limit in (one for one in _LIMITS if lengths.shortest < one):
        cut = lengths.cut(limit)
        kept = cut.mean / lengths.mean
        rows.append(
            (f"{limit:,}", share(lengths.above(limit)), share(kept), share(cut.mean / limit))
        )
        if limit >= lengths.longest:
            break
    titles = "limit | samples\ncut | tokens\nkept | of padded\ntokens count"
    return titled(titles, rows, "Samples cut at a limit")


def lengths_record(lengths: Lengths) -> dict[str, Any]:
    """The figures of the report; lengths in tokens."""
    return {
        "origin": lengths.origin,
        "mean": lengths.mean,
        "attended": lengths.attended,
        "shortest": lengths.shortest,
        "longest": lengths.longest,
        "quantiles": {f"{part:g}": lengths.quantile(part) for part in _SHARES},
    }


def bars(lengths: Lengths) -> list[Mapping[str, object]]:
    """Rows for the bars of the chart, two for each range of lengths: its share of the samples and
    its share of the tokens, in percent. There are `_BARS` ranges to each doubling of the length."""
    found: dict[int, list[float]] = {}
    for length, part in zip(lengths.tokens, lengths.shares, strict=True):
        sums = found.setdefault(floor(_BARS * log(length, 2)), [0.0, 0.0])
        sums[0] += part
        sums[1] += part * length / lengths.mean
    rows: list[Mapping[str, object]] = []
    for place, (samples, tokens) in sorted(found.items()):
        low, high = 2.0 ** (place / _BARS), 2.0 ** ((place + 1) / _BARS)
        text = f"{low:,.0f} to {high:,.0f} tokens"
        for kind, part in (("samples", samples), ("tokens", tokens)):
            rows.append(
                {
                    "low": low,
                    "high": high,
                    "kind": kind,
                    "share": 100.0 * part,
                    "text": f"{text}: {share(part)} of the {kind}",
                }
            )
    return rows


def lengths_chart(lengths: Lengths) -> Specification:
    """The chart: samples above, tokens below, over a logarithmic axis of lengths."""
    mean = {"mean": lengths.mean, "words": f"mean {lengths.mean:,.0f}"}
    return filled("lengths", bars=table(bars(lengths)), mean=table([mean]))


def plot_lengths(lengths: Lengths) -> Any:
    """The picture for a file. Raises UsageError if the extra `plot` is not installed."""
    demand_plot()
    return in_file(lengths_chart(lengths), _TITLE, lengths.origin)


def lengths_page(lengths: Lengths) -> Page:
    """The page of a distribution of lengths."""
    drawing = Drawing("lengths", "", lengths_chart(lengths))
    blocks = (Facts(tuple(_facts(lengths))), _limits(lengths))
    section = Section("Shares by length", (drawing,), blocks)
    return Page(_TITLE, lengths.origin, (section,), card=_card(lengths))


def _card(lengths: Lengths) -> Card:
    """The median length, and a limit that leaves nearly all samples whole: the power of two at or
    above the 99 % quantile. As the risk, the share of padding without packing."""
    limit = 1 << (int(lengths.quantile(_WHOLE)) - 1).bit_length()
    cut = lengths.cut(limit)
    padded = 1.0 - cut.mean / limit
    return Card(
        f"Half of the samples are shorter than {lengths.quantile(0.5):,.0f} tokens; a limit of "
        f"{limit:,} leaves {share(1.0 - lengths.above(limit))} of them whole.",
        facts=(
            ("risk", f"without packing, {share(padded)} of the tokens of a batch would be padding"),
            ("next", f"planner search --lengths FILE --seq {limit} --packing pack-varlen ..."),
        ),
    )
