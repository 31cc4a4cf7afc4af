"""What `planner launch` shows after it has written a folder."""

from __future__ import annotations

from pathlib import Path

from planner.job.quantities import gib, seconds
from planner.launch.contract import Launch
from planner.launch.expect import Expectations
from planner.launch.folder import LaunchFolder
from planner.launch.launchers import how_to_start
from planner.report.tables import Block, Facts, Notes, Report, TableData, headings


def launch_report(path: Path, launch: Launch, folder: LaunchFolder) -> Report:
    """The folder, what it starts, what to expect of it."""
    job, plan, expected = launch.job, launch.plan, folder.expected
    framework = job.framework.name
    costed = "" if framework == launch.target else f", plan costed as {framework}"
    facts = [
        ("written", f"{path}/ with {len(folder.files)} files"),
        ("starts", f"{job.model.name} on {job.cluster.describe()}"),
        ("with", f"{launch.target}, {job.precision}{costed}"),
        ("expect", _time(expected)),
        ("memory", _memory(expected)),
    ]
    lines = [] if plan.fits else ["This plan DOES NOT FIT its memory limit: see README.md."]
    lines += [f"NOT AS THE MODEL SAYS: {sentence}." for sentence in folder.departures]
    lines += [f"{how_to_start(launch)}. README.md says what to check in the first ten steps."]
    rows = tuple(
        (name, f"{len(text.splitlines()):,}") for name, text in sorted(folder.files.items())
    )
    blocks: list[Block] = [
        Facts(tuple(facts)),
        TableData(headings("<file | lines"), rows),
        Notes(tuple(lines)),
    ]
    return Report(tuple(blocks))


def _time(expected: Expectations) -> str:
    return (
        f"{seconds(expected.step_time_s)} a step ({seconds(expected.step_time_low_s)} to "
        f"{seconds(expected.step_time_high_s)} with 80 % probability), "
        f"{expected.tokens_per_s_per_gpu:,.0f} tokens/s a GPU"
    )


def _memory(expected: Expectations) -> str:
    heaviest = expected.heaviest
    return (
        f"{gib(heaviest.total_bytes)} GiB ({gib(heaviest.total_low_bytes)} to "
        f"{gib(heaviest.total_high_bytes)}) of {gib(expected.usable_bytes)} on stage "
        f"{heaviest.stage}; torch allocates {gib(heaviest.allocated_bytes)}"
    )
