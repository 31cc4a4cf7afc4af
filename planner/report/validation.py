"""Errors of predictions against measured runs, as a report."""

from __future__ import annotations

from collections.abc import Sequence

from planner.measured.ranking import GroupRanking
from planner.measured.report import ErrorSummary, FamilyReport, FitConfusion
from planner.report.tables import Column, Notes, Report, TableData

_ERROR_COLUMNS = (Column("rows"), Column("median"), Column("mean"), Column("p90"), Column("bias"))


def validation_report(
    families: Sequence[FamilyReport],
    total: FamilyReport,
    groups: Sequence[GroupRanking],
    refusals: Sequence[tuple[str, int]],
) -> Report:
    """Tables of time, memory and fit by family, then picks, then what was refused and why."""
    everything = [*families, total]
    tables = [
        _errors("Step time", [(own.family, own.time) for own in everything]),
        _errors("Peak memory", [(own.family, own.memory) for own in everything]),
        _fits([(own.family, own.fit) for own in everything]),
    ]
    blocks = [table for table in tables if table.rows]
    return Report((*blocks, _notes(total, groups, refusals)))


def _errors(title: str, summaries: Sequence[tuple[str, ErrorSummary | None]]) -> TableData:
    return TableData(
        (Column("family", "left", wrap=True), *_ERROR_COLUMNS),
        tuple(
            (
                family,
                f"{own.rows:,}",
                f"{own.median:.1%}",
                f"{own.mean:.1%}",
                f"{own.p90:.1%}",
                f"{own.bias:+.1%}",
            )
            for family, own in summaries
            if own is not None
        ),
        title=f"{title}: error of the prediction",
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
            (
                family,
                f"{own.ran:,}",
                f"{own.ran_predicted_not_to_fit:,}",
                f"{own.out_of_memory:,}",
                f"{own.out_of_memory_predicted_to_fit:,}",
            )
            for family, own in confusions
            if own.ran or own.out_of_memory
        ),
        title="Fit: what the source says happened, and what was predicted wrongly",
    )


def _notes(
    total: FamilyReport, groups: Sequence[GroupRanking], refusals: Sequence[tuple[str, int]]
) -> Notes:
    lines = [
        "Errors are relative to the measured value; bias is their signed median.",
    ]
    if groups:
        picks = [own.pick for own in groups]
        ranks = [own.rank_correlation for own in groups]
        lines.append(
            f"Picks: in {len(groups)} groups of one model, cluster and batch the run ranked first "
            f"reaches {sum(picks) / len(picks):.1%} of the best measured throughput on average, "
            f"{min(picks):.1%} at worst; rank correlation {sum(ranks) / len(ranks):.2f}."
        )
    if total.refused:
        lines.append(f"Refused: {total.refused:,} of {total.rows:,} rows.")
        lines += [f"  {count:,}: {reason}" for reason, count in refusals]
    return Notes(tuple(lines))
