"""Errors of predictions against measured runs, as a report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from planner.evidence.runs.families import Family
from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.report import (
    FamilyReport,
    FitConfusion,
    Summary,
    comparison,
    family_report,
    family_reports,
    in_doubt,
    mean_of_sources,
    summary_of,
)
from planner.evidence.runs.worst import GOOD, MissedPick, missed_picks
from planner.job.job import SURE_TO_FIT
from planner.job.quantities import gib, plural, seconds, share, signed_share
from planner.predict.uncertainty.families import Figure
from planner.report.tables import Block, Notes, TableData, as_report, table

_NONE = "-"
_SHOWN_REFUSALS = 8
_SHOWN_PICKS = 12
# So many runs are also shown one by one.
_MOST_RUNS = 6


_TITLES: dict[str, Figure] = {"Step time": "time", "Peak memory": "memory"}
_LEFT_OUT, _IN_DOUBT = ", source left out", ", in doubt"


@as_report
def validation_report(
    predictions: Sequence[Prediction], family: Family, left_out: Sequence[Prediction] = ()
) -> Iterator[Block]:
    """Tables of time, memory, picks and fit by family, then what was refused and why; `left_out`:
    predictions with constants that were fitted without the rows' sources."""
    found = summary_of(predictions, family)
    means, halves = found.mean_of_sources, (found.stated, found.unstated)
    unseen = mean_of_sources(left_out)
    totals = (found.total, *(halves if all(half.rows for half in halves) else ()))
    parts = {
        words: (family_reports(some, family), (family_report("all of them", some),))
        for words, some in ((_LEFT_OUT, left_out), (_IN_DOUBT, in_doubt(predictions)))
        if some
    }
    errors = (
        one
        for title, figure in _TITLES.items()
        for one in (
            _errors(title, figure, found.families, totals, means),
            *(
                _errors(f"{title}{words}", figure, *part, unseen if words == _LEFT_OUT else None)
                for words, part in parts.items()
            ),
        )
    )
    tables = [
        *_runs(predictions),
        *errors,
        _picks(found.families, totals, means),
        _missed(missed_picks(predictions)),
        _fits([(one.family, one.fit) for one in (*found.families, *totals)]),
    ]
    yield from (one for one in tables if one.rows)
    yield Notes(tuple(_notes(found, parts)))


def _runs(predictions: Sequence[Prediction]) -> Iterator[TableData]:
    """Each of a few runs beside what was predicted of it."""
    compared = [
        (f"line {one.row.line}", figure, found, text)
        for one in predictions
        for figure, found, text in (
            ("step time", comparison(one, "time"), seconds),
            ("memory", comparison(one, "memory"), lambda size: f"{gib(size)} GiB"),
        )
        if found is not None
    ]
    rows = [
        (
            line,
            figure,
            text(one.predicted),
            f"{text(one.interval.low)} to {text(one.interval.high)}",
            text(one.measured),
            signed_share(one.error),
            "yes" if one.covered else "NO",
        )
        for line, figure, one, text in compared
    ]
    if 0 < len(predictions) <= _MOST_RUNS:
        titles = "~run | ~ | predicted | 80% interval | measured | error | inside"
        yield table(titles, rows, "Your runs")


def _errors(
    title: str,
    figure: Figure,
    families: Sequence[FamilyReport],
    totals: Sequence[FamilyReport],
    means: Mapping[str, float | None] | None = None,
) -> TableData:
    """Families by their median error, the largest first, then the totals."""
    rows = [
        (
            family,
            f"{item.rows:,}",
            share(item.median),
            share(item.mean),
            share(item.p90),
            signed_share(item.bias),
            _NONE if item.rank_correlation is None else f"{item.rank_correlation:.2f}",
            share(item.coverage, 0),
        )
        for family, item in _sorted(families, totals, figure, lambda item: -item.median)
    ]
    if rows and means is not None:
        names = (f"{figure}_{name}" for name in ("median", "mean", "coverage"))
        middle, mean, coverage = (share_text(means[name]) for name in names)
        rows.append(("mean of sources", "", middle, mean, "", "", "", coverage))
    titles = "~family | rows | median | mean | p90 | bias | rank | in 80%"
    return table(titles, rows, f"{title}: error of the prediction")


def _sorted(
    families: Sequence[FamilyReport],
    totals: Sequence[FamilyReport],
    figure: str,
    key: Callable[[Any], float],
) -> list[tuple[str, Any]]:
    """Summaries of a figure by a key, then those of the totals, each with its family."""
    found = (
        [(one.family, item) for one in some if (item := getattr(one, figure))]
        for some in (families, totals)
    )
    return [*sorted(next(found), key=lambda pair: key(pair[1])), *next(found)]


def share_text(value: float | None) -> str:
    """`12.3 %`, or a dash for nothing."""
    return _NONE if value is None else share(value)


def _picks(
    families: Sequence[FamilyReport],
    totals: Sequence[FamilyReport],
    means: Mapping[str, float | None],
) -> TableData:
    """Families by their mean pick, the worst first, then the totals."""
    rows = [
        (
            family,
            f"{item.groups:,}",
            share(item.mean),
            share(item.worst),
            f"{item.rank_correlation:.2f}",
        )
        for family, item in _sorted(families, totals, "picks", lambda item: item.mean)
    ]
    if rows and (ranks := means["rank_correlation"]) is not None:
        mean = share_text(means["pick_mean"])
        rows.append(("mean of sources", "", mean, "", f"{ranks:.2f}"))
    title = "Picks: measured throughput of the run ranked first, over the best"
    return table("~family | groups | mean pick | worst pick | rank", rows, title)


def _missed(missed: Sequence[MissedPick]) -> TableData:
    rows = (
        (item.group, share(item.share), item.picked, item.best, item.decided_by)
        for item in missed[:_SHOWN_PICKS]
    )
    title = f"Picks below {share(GOOD, 0)} of the best: what decided"
    return table("~group | pick | ~picked | ~best | ~decided by", rows, title)


def _fits(confusions: Sequence[tuple[str, FitConfusion]]) -> TableData:
    rows = (
        (
            family,
            f"{one.ran:,}",
            f"{one.ran_predicted_not_to_fit:,}",
            f"{one.out_of_memory:,}",
            f"{one.out_of_memory_predicted_to_fit:,}",
        )
        for family, one in confusions
        if one.ran or one.out_of_memory
    )
    title = "Fit: what the source says happened, and what was predicted wrongly"
    return table("~family | ran | called too large | ran out | called fitting", rows, title)


def _notes(shown: Summary, parts: Collection[str]) -> Iterator[str]:
    total = shown.total
    yield (
        "Errors are relative to the measured value; bias is their signed median; rank is "
        "Spearman's correlation. in 80%: rows inside their stated 80 % interval, which leaves "
        "the row's own source out."
    )
    if shown.stated.rows and shown.unstated.rows:
        yield (
            f"Stated: rows that say what they recompute and which attention kernel they run "
            f"({shown.stated.rows:,} of {total.rows:,}); the others took the usual ones."
        )
    if total.picks is not None:
        yield (
            f"Picks: {plural(total.picks.groups, 'group')} of one source, model, cluster, batch, "
            "precision and framework; a pick that ran out of memory counts 0. Of runs at least "
            f"{share(SURE_TO_FIT, 0)} sure to fit, as a search asks for, ranked by expected "
            "throughput: the step time, with the chance that memory is full where runs of the "
            "framework slowed down then (--json: predicted_expected_s)."
        )
    if _LEFT_OUT in parts:
        yield (
            "Source left out: predicted with constants that were fitted without the row's source "
            "(planner/evidence/data/held_out.toml), and without the framework's name where no "
            "other source has measured it, as somebody would whose runs nobody has seen; or as it "
            "was predicted before anything was changed for it, where that was kept."
        )
    if _IN_DOUBT in parts:
        yield (
            "In doubt: figures that the row's own source contradicts (column doubt); they are in "
            "no other table."
        )
    if shown.withdrawn_times:
        yield (
            f"Withdrawn: {plural(shown.withdrawn_times, 'step time')} that must not be used "
            "(`time withdrawn` in doubt)."
        )
    if total.refused:
        part = share(total.refused / total.rows, 2)
        yield f"Refused: {total.refused:,} of {total.rows:,} rows ({part})."
        for reason, count in islice(shown.refusals.items(), _SHOWN_REFUSALS):
            yield f"  {plural(count, 'row')}: {reason}"
