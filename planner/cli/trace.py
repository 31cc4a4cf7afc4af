"""`planner trace`: profiler traces and memory snapshots beside the prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planner.cli.output import check_plot, show, write_plot
from planner.cli.progress import watched
from planner.evidence.traces.findings import findings
from planner.evidence.traces.rank import RankTrace, read_rank
from planner.evidence.traces.snapshot import Snapshot, read_snapshot
from planner.job.errors import UsageError
from planner.predict.plan import Plan
from planner.report.tables import Report
from planner.report.traced import Pair, snapshot_pairs, snapshot_report, trace_pairs, trace_report
from planner.search.explanation import pick_plan
from planner.search.plan_file import read_plan


def run(paths: tuple[str, ...], **options: Any) -> None:
    check_plot(options["plot"], options["force"])
    plan = _plan(options)
    files = [Path(path) for path in paths]
    snapshots = [path for path in files if path.suffix in (".pickle", ".pkl")]
    if snapshots and len(snapshots) < len(files):
        raise UsageError("give traces or memory snapshots, not both at once")
    if snapshots:
        _show_snapshots(snapshots, plan, options)
    else:
        _show_traces(files, plan, options)


def _plan(options: dict[str, Any]) -> Plan | None:
    if options["plan_file"] is None:
        return None

    return pick_plan(*read_plan(Path(options["plan_file"]), options["plan"]))


def _show_traces(files: list[Path], plan: Plan | None, options: dict[str, Any]) -> None:
    ranks: list[RankTrace] = []
    with watched(options["quiet"]) as progress:
        for number, path in enumerate(files):
            progress(f"reading {path.name}", number, len(files))
            ranks.append(read_rank(path, number))
    found = findings(ranks)
    report = trace_report(ranks, found, plan)
    panels = {"Where the step goes (median rank)": (trace_pairs(ranks, plan), "ms a step")}
    _draw(options["plot"], "Traced steps", panels, report)
    content = {"ranks": _records(ranks), "findings": [asdict(one) for one in found]}
    show(options["as_json"], lambda: content, lambda: report)


def _show_snapshots(files: list[Path], plan: Plan | None, options: dict[str, Any]) -> None:
    found: list[Snapshot] = [read_snapshot(path) for path in files]
    report = snapshot_report(found, plan)
    panels = {f"{one.path}, at the peak": (snapshot_pairs(one, plan), "GiB") for one in found}
    _draw(options["plot"], "Memory snapshots", panels, report)
    show(options["as_json"], lambda: _records(found), lambda: report)


def _records(read: Sequence[RankTrace | Snapshot]) -> list[dict[str, Any]]:
    return [asdict(one) | {"path": str(one.path)} for one in read]


def _draw(
    path: Path | None, title: str, panels: Mapping[str, tuple[Sequence[Pair], str]], report: Report
) -> None:
    """Write the picture that was asked for."""
    if path is None:
        return
    from planner.report.charts.pairs import panels_chart
    from planner.report.pages.studies import pairs_page

    write_plot(path, lambda: panels_chart(panels), lambda: pairs_page(title, panels, report))
