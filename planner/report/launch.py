"""Report of `planner launch`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planner.job.written_folder import Replaced
from planner.launch.contract import FOLDER, Launch, checkpoints_of
from planner.launch.folder import LaunchFolder
from planner.launch.launchers import how_to_start
from planner.launch.plans import starts_from_weights
from planner.report.said import facts, notes
from planner.report.tables import Block, Notes, as_report, table


@as_report
def launch_report(
    path: Path, launch: Launch, folder: LaunchFolder, replaced: Replaced, which: str
) -> Iterator[Block]:
    """The folder, what it starts and what to expect. `which`: the plan's number and how many
    there are."""
    job, plan, framework = launch.job, launch.plan, launch.job.framework.name
    yield facts(
        "launch.facts", launch, path=path, count=len(folder.files), which=which,
        cluster=job.cluster.describe(),
        costed="" if framework == launch.target else framework, expected=folder.expected,
        heaviest=folder.expected.heaviest, checkpoints=checkpoints_of(launch), folder=FOLDER,
    )  # fmt: skip
    files = sorted(folder.files.items())
    yield table("<file | lines", ((name, f"{len(text.splitlines()):,}") for name, text in files))
    lines = [] if plan.fits else ["This plan DOES NOT FIT its memory limit: see README.md."]
    lines += [f"NOT AS THE MODEL SAYS: {sentence}." for sentence in folder.departures]
    lines += _replaced_lines(replaced)
    yield Notes(
        (*lines, *notes("launch.notes", None, start=_start(launch), how=how_to_start(launch)))
    )


def _start(launch: Launch) -> str:
    """The weights from which the run starts."""
    if starts_from_weights(launch):
        return "The run starts from the published weights that PRETRAINED must name"
    scratch = "The run starts FROM SCRATCH, with random weights"
    return f"{scratch}, unless PRETRAINED in the script names weights"


def _replaced_lines(replaced: Replaced) -> Iterator[str]:
    for name, new in replaced.kept.items():
        yield f"{name} of the earlier launch is kept as {new}."
    if replaced.removed:
        names = ", ".join(replaced.removed)
        yield f"Removed, as nobody edited them since an earlier launch: {names}."
