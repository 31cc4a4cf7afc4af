"""`planner trace`: profiler traces and memory snapshots beside the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planner.cli.output import check_plot, show, write_plot
from planner.cli.progress import watched
from planner.evidence.traces.findings import findings
from planner.evidence.traces.rank import RankTrace, read_rank
from planner.evidence.traces.snapshot import Snapshot, read_snapshot
from planner.job.errors import UsageError
from planner.report.traced import Pair, snapshot_pairs, snapshot_report, trace_pairs, trace_report
from planner.search.explanation import pick_plan
from planner.search.plan_file import read_plan


def run(paths: tuple[str, ...], **options: Any) -> None:
    plot = options["plot"]
    check_plot(plot, options["force"])
    plan = None
    if options["plan_file"] is not None:
        plan = pick_plan(*read_plan(Path(options["plan_file"]), options["plan"]))
    files = [Path(path) for path in paths]
    snapshots = [path for path in files if path.suffix in (".pickle", ".pkl")]
    if snapshots and len(snapshots) < len(files):
        raise UsageError("give traces or memory snapshots, not both at once")
    content: Any
    panels: dict[str, tuple[Sequence[Pair], str]]
    if snapshots:
        title, found = "Memory snapshots", [read_snapshot(path) for path in snapshots]
        content, report = _records(found), snapshot_report(found, plan)
        panels = {f"{one.path}, at the peak": (snapshot_pairs(one, plan), "GiB") for one in found}
    else:
        title, ranks = "Traced steps", _ranks(files, options["quiet"])
        patterns = findings(ranks)
        report = trace_report(ranks, patterns, plan)
        content = {"ranks": _records(ranks), "findings": [asdict(one) for one in patterns]}
        panels = {"Where the step goes (median rank)": (trace_pairs(ranks, plan), "ms a step")}
    if plot is not None:
        from planner.report.charts.measured import panels_chart
        from planner.report.pages.studies import pairs_page

        write_plot(plot, lambda: panels_chart(panels), lambda: pairs_page(title, panels, report))
    show(options["as_json"], lambda: content, lambda: report)


def _ranks(files: list[Path], quiet: bool) -> list[RankTrace]:
    ranks: list[RankTrace] = []
    with watched(quiet) as progress:
        for number, path in enumerate(files):
            progress(f"reading {path.name}", number, len(files))
            ranks.append(read_rank(path, number))
    return ranks


def _records(read: Sequence[RankTrace | Snapshot]) -> list[dict[str, Any]]:
    return [asdict(one) | {"path": str(one.path)} for one in read]
