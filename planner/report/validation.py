"""Errors of predictions against measured runs, as a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from planner.evidence.runs.families import Family
from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.repeats import RepeatNoise, repeat_noise
from planner.evidence.runs.report import (
    ErrorSummary,
    FamilyReport,
    FitConfusion,
    PickSummary,
    SourceMean,
    family_report,
    is_stated,
    mean_of_sources,
    report,
)
from planner.job.quantities import plural
from planner.report.tables import Block, Column, Notes, Report, TableData

_ERROR_COLUMNS = tuple(
    Column(title) for title in ("rows", "median", "mean", "p90", "bias", "rank", "in 80%")
)
_NONE = "-"
_SHOWN_REFUSALS = 8


@dataclass(frozen=True, slots=True)
class Validation:
    """What is shown: families, then everything in four ways."""

    families: Sequence[FamilyReport]
    total: FamilyReport
    stated: FamilyReport
    unstated: FamilyReport
    sources: SourceMean
    refusals: Sequence[tuple[str, int]]
    withdrawn_times: int = 0
    repeats: Sequence[RepeatNoise] = ()

    @property
    def lines(self) -> tuple[FamilyReport, ...]:
        """Rows of every table: families, all rows, and all rows in two parts if both exist."""
        parts = (self.stated, self.unstated) if self.stated.rows and self.unstated.rows else ()
        return (*self.families, self.total, *parts)


def validation(predictions: Sequence[Prediction], family: Family) -> Validation:
    """Errors of predictions by family and in total."""
    refused = Counter(
        prediction.error for prediction in predictions if prediction.error is not None
    )
    stated = [prediction for prediction in predictions if is_stated(prediction)]
    unstated = [prediction for prediction in predictions if not is_stated(prediction)]
    return Validation(
        families=report(predictions, family),
        total=family_report("all rows", predictions),
        stated=family_report("all rows, stated", stated),
        unstated=family_report("all rows, not stated", unstated),
        sources=mean_of_sources(predictions),
        refusals=refused.most_common(_SHOWN_REFUSALS),
        withdrawn_times=sum(prediction.row.withdraws_time for prediction in predictions),
        repeats=repeat_noise(predictions),
    )


def validation_report(shown: Validation) -> Report:
    """Tables of time, memory, picks and fit by family, then what was refused and why."""
    lines, means = shown.lines, shown.sources
    tables = [
        _errors(
            "Step time",
            [(line.family, line.time) for line in lines],
            (means.time_median, means.time_mean, means.time_coverage),
        ),
        _errors(
            "Peak memory",
            [(line.family, line.memory) for line in lines],
            (means.memory_median, means.memory_mean, means.memory_coverage),
        ),
        _picks([(line.family, line.picks) for line in lines], means),
        _fits([(line.family, line.fit) for line in lines]),
        _repeats(shown.repeats),
    ]
    blocks: list[Block] = [table for table in tables if table.rows]
    return Report((*blocks, _notes(shown)))


def _errors(
    title: str,
    summaries: Sequence[tuple[str, ErrorSummary | None]],
    means: tuple[float | None, float | None, float | None],
) -> TableData:
    rows = [(family, *error_cells(summary)) for family, summary in summaries if summary is not None]
    if rows:
        middle, mean, coverage = (share_text(value) for value in means)
        rows.append(("mean of sources", "", middle, mean, "", "", "", coverage))
    return TableData(
        (Column("family", "left", wrap=True), *_ERROR_COLUMNS),
        tuple(rows),
        title=f"{title}: error of the prediction",
    )


def error_cells(summary: ErrorSummary) -> tuple[str, ...]:
    """Rows, median, mean, p90, bias, rank correlation and interval coverage."""
    rank = summary.rank_correlation
    return (
        f"{summary.rows:,}",
        f"{summary.median:.1%}",
        f"{summary.mean:.1%}",
        f"{summary.p90:.1%}",
        f"{summary.bias:+.1%}",
        _NONE if rank is None else f"{rank:.2f}",
        f"{summary.coverage:.0%}",
    )


def share_text(value: float | None) -> str:
    """`12.3%`, or a dash for nothing."""
    return _NONE if value is None else f"{value:.1%}"


def _picks(picks: Sequence[tuple[str, PickSummary | None]], means: SourceMean) -> TableData:
    rows = [(family, *pick_cells(pick)) for family, pick in picks if pick is not None]
    if rows and means.rank_correlation is not None:
        ranks = f"{means.rank_correlation:.2f}"
        rows.append(("mean of sources", "", share_text(means.pick_mean), "", ranks))
    return TableData(
        (
            Column("family", "left", wrap=True),
            Column("groups"),
            Column("mean pick"),
            Column("worst pick"),
            Column("rank"),
        ),
        tuple(rows),
        title="Picks: measured throughput of the run ranked first, over the best",
    )


def pick_cells(summary: PickSummary) -> tuple[str, ...]:
    """Groups, mean and worst pick, mean rank correlation."""
    return (
        f"{summary.groups:,}",
        f"{summary.mean:.1%}",
        f"{summary.worst:.1%}",
        f"{summary.rank_correlation:.2f}",
    )


def _fits(confusions: Sequence[tuple[str, FitConfusion]]) -> TableData:
    return TableData(
        (
            Column("family", "left", wrap=True),
            Column("ran"),
            Column("called too large"),
            Column("ran out"),
            Column("called fitting"),
        ),
        tuple(
            (family, *fit_cells(confusion))
            for family, confusion in confusions
            if confusion.ran or confusion.out_of_memory
        ),
        title="Fit: what the source says happened, and what was predicted wrongly",
    )


def fit_cells(confusion: FitConfusion) -> tuple[str, ...]:
    """Ran, of them called too large; ran out of memory, of them called fitting."""
    return (
        f"{confusion.ran:,}",
        f"{confusion.ran_predicted_not_to_fit:,}",
        f"{confusion.out_of_memory:,}",
        f"{confusion.out_of_memory_predicted_to_fit:,}",
    )


def _repeats(repeats: Sequence[RepeatNoise]) -> TableData:
    return TableData(
        (
            Column("source, scale", "left", wrap=True),
            Column("settings"),
            Column("median"),
            Column("p90"),
            Column("worst"),
            Column("pick"),
            Column("rank"),
        ),
        tuple((f"{repeat.source}, {repeat.scale}", *repeat_cells(repeat)) for repeat in repeats),
        title="Repeats: slowest over fastest run of one setting; picks of a perfect prediction",
    )


def repeat_cells(noise: RepeatNoise) -> tuple[str, ...]:
    """Settings, median, p90 and worst spread, mean pick and rank of a perfect prediction."""
    rank = noise.rank_correlation
    spreads = (f"{value:+.1%}" for value in (noise.median, noise.p90, noise.worst))
    ranked = _NONE if rank is None else f"{rank:.2f}"
    return (f"{noise.settings:,}", *spreads, share_text(noise.pick), ranked)


def _notes(shown: Validation) -> Notes:
    total = shown.total
    lines = [
        "Errors are relative to the measured value; bias is their signed median; rank is "
        "Spearman's correlation. in 80%: rows inside their stated 80 % interval, which leaves "
        "the row's own source out.",
    ]
    if shown.stated.rows and shown.unstated.rows:
        lines.append(
            f"Stated: rows that say what they recompute and which attention kernel they run "
            f"({shown.stated.rows:,} of {total.rows:,}); the others took the usual ones."
        )
    if total.picks is not None:
        lines.append(
            f"Picks: {plural(total.picks.groups, 'group')} of one source, model, cluster, batch, "
            "precision and framework; a pick that ran out of memory counts 0. Ranked by expected "
            "throughput: the step time, with the chance that memory is full where runs of the "
            "framework slowed down then (--json: predicted_expected_s)."
        )
    if shown.repeats:
        lines.append(
            "Repeats: runs equal in every column but the measurements; pick and rank are what "
            "a prediction of undisturbed times would reach, were every second run slowed like "
            "the slower ones of these."
        )
    if shown.withdrawn_times:
        lines.append(
            f"Withdrawn: {plural(shown.withdrawn_times, 'step time')} that their sources ask not "
            "to use (`use memory only` in notes)."
        )
    if total.refused:
        share = total.refused / total.rows
        lines.append(f"Refused: {total.refused:,} of {total.rows:,} rows ({share:.2%}).")
        lines += [f"  {count:,}: {reason}" for reason, count in shown.refusals]
    return Notes(tuple(lines))
