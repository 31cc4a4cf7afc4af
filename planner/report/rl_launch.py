"""Report of `planner launch` for reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from planner.job.quantities import plural, seconds
from planner.job.written_folder import Replaced
from planner.launch.rl import RlLaunch
from planner.report.tables import Block, Facts, Notes, as_report, table
from planner.search.rl.result import RlPlan


@as_report
def rl_launch_report(
    path: Path,
    launch: RlLaunch,
    plan: RlPlan,
    files: Mapping[str, str],
    which: str,
    replaced: Replaced,
) -> Iterator[Block]:
    """The folder, what it starts and what to expect. `which`: the plan's number and how many
    there are."""
    job = launch.job
    yield Facts(
        (
            ("folder", f"{path}: {plural(len(files), 'file')}, plan {which}"),
            ("runs", f"{job.policy.name} by {job.algorithm.name} with {job.framework.name}"),
            ("placement", f"{plan.placement}, {plural(launch.layout.gpus, 'GPU')}"),
            (
                "step time",
                f"{seconds(plan.step_s)} ({seconds(plan.low_s)} to {seconds(plan.high_s)}, 80 % "
                f"interval), {plan.samples_per_s:,.3g} samples/s",
            ),
        )
    )
    listed = sorted(files.items())
    yield table("<file | lines", ((name, f"{len(text.splitlines()):,}") for name, text in listed))
    lines = [] if plan.fits else ["This plan DOES NOT FIT: see README.md."]
    lines += [f"{name} of the earlier launch is kept as {new}." for name, new in
              replaced.kept.items()]  # fmt: skip
    if replaced.removed:
        lines.append(f"Removed, as nobody edited them: {', '.join(replaced.removed)}.")
    yield Notes((*lines, "README.md says what to set, how to start it, and what to expect."))
