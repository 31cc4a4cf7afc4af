"""The README of a folder that starts reinforcement learning: instructions and predictions."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.quantities import gib, seconds
from planner.launch.quoting import markdown_text
from planner.launch.rl import Asked, RlLaunch
from planner.predict.rl.step import RlStep, rl_step


def readme(
    launch: RlLaunch, script: str, asked: Asked, version: str, more: tuple[str, ...] = ()
) -> str:
    """The README as Markdown. `version`: releases that the files are written for; `more`: further
    paragraphs."""
    step = rl_step(launch.job, launch.layout)
    lines = [
        f"# {markdown_text(launch.name)}",
        "",
        f"Written for {version}.",
        "",
        *_start(launch, script, asked),
        *(line for text in more for line in ("", text)),
        "",
        "## What to expect",
        "",
        *_expected(launch, step),
        "",
        "Check the files with `planner check . --gpus ...`; teach the planner from the run's log "
        "with `planner calibrate`.",
    ]
    return "\n".join(lines) + "\n"


def _start(launch: RlLaunch, script: str, asked: Asked) -> Iterator[str]:
    """Lines on the variables to set and on joining nodes to Ray."""
    yield "Set these, then start the script:"
    yield ""
    for name, (default, meaning) in asked.items():
        said = f" (default `{default}`)" if default else ""
        yield f"* `{name}`: {markdown_text(meaning)}{said}"
    yield ""
    total = launch.layout.gpus
    nodes, _ = launch.nodes_of(total)
    if nodes > 1 and launch.job.framework.name != "trl":
        yield (
            f"The plan takes {nodes} nodes: start Ray on all of them (`ray start --head` on the "
            "first, `ray start --address=FIRST:6379` on the others), then the script on the first."
        )
        yield ""
    yield f"    bash {script}"


def _expected(launch: RlLaunch, step: RlStep) -> Iterator[str]:
    rollout = launch.job.rollout
    yield (
        f"* A step of {rollout.samples:,} samples takes {seconds(step.step_s)} "
        f"({seconds(step.low_s)} to {seconds(step.high_s)}, 80 % interval), where samples are as "
        f"long as `--lengths` said: {markdown_text(rollout.prompt.origin)} and "
        f"{markdown_text(rollout.response.origin)}."
    )
    for side, phase in step.peaks.items():
        usable = step.usable_bytes[side]
        yield (
            f"* GPUs of the {side} hold {gib(phase.peak_bytes)} GiB of {gib(usable)} at most, in "
            f"phase `{phase.name}`."
        )
    yield ""
    yield "| phase | side | seconds | GiB |"
    yield "|---|---|---:|---:|"
    for phase in step.phases:
        yield f"| {phase.name} | {phase.side} | {phase.seconds:.3g} | {gib(phase.peak_bytes)} |"
