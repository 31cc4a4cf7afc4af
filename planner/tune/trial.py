"""A short run as a folder: the files of `planner launch` with few steps and no checkpoints, and a
script that starts it once.

Data and weights are the user's if the driver's environment names them, as for `planner launch`;
otherwise mock data and random weights. All values are fixed in the folder, so that a later driver
starts the same run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hardware.plain_text import demand_plain
from planner.job.errors import UsageError
from planner.launch.contract import (
    FOLDER,
    PRETRAINED,
    RUN,
    STOP,
    TRAIN_STEPS,
    WARMUP_STEPS,
    Launch,
    Variable,
)
from planner.launch.folder import launch_folder
from planner.launch.launchers import CLAIM, IMAGE, start_script
from planner.launch.plans import writer_of
from planner.launch.quoting import Code
from planner.launch.registry import targets
from planner.launch.settings_text import filled
from planner.tune.runners.process import TRIAL_SCRIPT
from planner.tune.runners.slurm import BATCH

# Most steps of a short run; it ends earlier once its step time is known.
MOST_STEPS = 50
# Warm-up steps of the learning rate, if a run has more.
_WARMUP_STEPS = 5
# Lines of a batch script that the driver decides.
_OURS = ("--job-name", "--time", "--signal", "--requeue", "--open-mode", "--output")


@dataclass(frozen=True, slots=True)
class ShortRun:
    """Limits of a short run: at most `steps`, and at most `limit_s` seconds after its start."""

    steps: int = MOST_STEPS
    limit_s: float = 1800.0


def short_launch(launch: Launch, short: ShortRun, job_name: str) -> Launch:
    """A launch as a short run under a job's name. UsageError for values that no text file can
    hold."""
    named = replace(launch, name=job_name)
    return replace(named, given=_given(named, short, job_name))


def _given(launch: Launch, short: ShortRun, job_name: str) -> dict[str, str]:
    """Values of a short run's variables."""
    found = dict(_from_environment(launch))
    return found | {
        RUN: job_name,
        FOLDER: "",
        TRAIN_STEPS.name: str(short.steps),
        WARMUP_STEPS.name: str(min(_WARMUP_STEPS, short.steps - 1)),
        STOP: str(math.ceil(short.limit_s / 60)),
    }


def _from_environment(launch: Launch) -> Iterator[tuple[str, str]]:
    """Values of variables from the driver's environment. UsageError for a value that no text file
    can hold."""
    asked = [entry.name for entry in _variables(launch) if entry.needed or entry.name != PRETRAINED]
    for name in (*asked, *((IMAGE, CLAIM) if launch.nodes_as == "k8s" else ())):
        if value := os.environ.get(name):
            try:
                demand_plain(value, f"the variable {name}")
            except ValueError as error:
                raise UsageError(str(error)) from None
            yield name, value


def _variables(launch: Launch) -> tuple[Variable, ...]:
    return writer_of(targets()[launch.target]).command(launch).variables


def missing_settings(launch: Launch) -> list[str]:
    """Settings that the run needs and the environment lacks, one sentence each."""
    lacking = [
        f"set {entry.name}: {entry.meaning}"
        for entry in _variables(launch)
        if entry.needed and not launch.given.get(entry.name)
    ]
    if launch.nodes_as == "k8s":
        wanted = {IMAGE: "the container's image", CLAIM: "the claim of a disk that all nodes share"}
        lacking += [
            f"set {name}: {what}" for name, what in wanted.items() if name not in launch.given
        ]
    return lacking


def trial_files(launch: Launch) -> Mapping[str, str]:
    """All files of a short run's folder."""
    files, script = dict(launch_folder(launch).files), start_script(launch)
    if launch.nodes_as == "slurm":
        files[BATCH] = batch_script(script, files[script])
    else:
        files[TRIAL_SCRIPT] = once_script()
    return files


def once_script() -> str:
    """A script that runs the command in its arguments, but only once."""
    return filled(f"{TRIAL_SCRIPT}.txt", place=(), command=Code('"$@"'))


def batch_script(script: str, asking: str) -> str:
    """A batch script that runs a script of the folder once, with the `#SBATCH` requests of the
    script text `asking`."""
    place, command = Code('cd "${SLURM_SUBMIT_DIR}" || exit 2'), Code(f"bash {script}")
    body = filled(f"{TRIAL_SCRIPT}.txt", place=[place], command=command)
    return _with_header(body, asking)


def _with_header(body: str, script: str) -> str:
    """The batch script `body`, with the `#SBATCH` lines of another script added after its first
    line, except those for options that the driver sets."""
    asked = [line for line in script.splitlines() if line.startswith("#SBATCH ")]
    kept = [line for line in asked if not line.split()[1].startswith(_OURS)]
    first, rest = body.split("\n", 1)
    return "\n".join((first, *kept, rest))
