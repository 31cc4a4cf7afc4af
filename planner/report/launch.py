"""What `planner launch` shows after it has written a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planner.job.quantities import gib, seconds
from planner.job.written_folder import Replaced
from planner.launch.contract import FOLDER, Launch, checkpoints_of
from planner.launch.folder import LaunchFolder
from planner.launch.launchers import how_to_start
from planner.predict.plan_text import configuration_text
from planner.report.tables import Block, Facts, Notes, as_report, table


@as_report
def launch_report(
    path: Path, launch: Launch, folder: LaunchFolder, replaced: Replaced, which: str
) -> Iterator[Block]:
    """The folder, what it starts, what to expect of it; `which`: the plan's number of how many."""
    job, plan, expected = launch.job, launch.plan, folder.expected
    framework, heaviest = job.framework.name, expected.heaviest
    costed = "" if framework == launch.target else f", plan costed as {framework}"
    yield Facts((
        ("written", f"{path}/ with {len(folder.files)} files"),
        ("plan", f"{which}: {configuration_text(plan)}"),
        ("starts", f"{job.model.name} on {job.cluster.describe()}"),
        ("with", f"{launch.target}, {job.precision}{costed}"),
        (
            "expect",
            f"{seconds(expected.step_time_s)} a step ({seconds(expected.step_time_low_s)} to "
            f"{seconds(expected.step_time_high_s)} with 80 % probability), "
            f"{expected.tokens_per_s_per_gpu:,.0f} tokens/s a GPU",
        ),
        (
            "memory",
            f"{gib(heaviest.total_bytes)} GiB ({gib(heaviest.total_low_bytes)} to "
            f"{gib(heaviest.total_high_bytes)}) of {gib(expected.usable_bytes)} on stage "
            f"{heaviest.stage}; torch allocates {gib(heaviest.allocated_bytes)}",
        ),
        (
            "checkpoints",
            f"{checkpoints_of(launch)} once the script is given data; {FOLDER} names another "
            "folder",
        ),
    ))  # fmt: skip
    files = sorted(folder.files.items())
    yield table("<file | lines", ((name, f"{len(text.splitlines()):,}") for name, text in files))
    lines = [] if plan.fits else ["This plan DOES NOT FIT its memory limit: see README.md."]
    lines += [f"NOT AS THE MODEL SAYS: {sentence}." for sentence in folder.departures]
    lines += _replaced_lines(replaced)
    lines += [
        "The run starts FROM SCRATCH, with random weights, unless PRETRAINED in the script names "
        "weights; learning rate and warm-up are placeholders that are yours to choose."
    ]
    lines += [f"{how_to_start(launch)}. README.md says what to check in the first ten steps."]
    yield Notes(tuple(lines))


def _replaced_lines(replaced: Replaced) -> Iterator[str]:
    """What became of the files of an earlier launch."""
    for name, new in replaced.kept.items():
        yield f"{name} of the earlier launch is kept as {new}."
    if replaced.removed:
        names = ", ".join(replaced.removed)
        yield f"Removed, as nobody edited them since an earlier launch: {names}."
