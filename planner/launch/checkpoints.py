"""How long a run is and how often it saves: what loses least, as the goodput model has it."""

from __future__ import annotations

from planner.launch.contract import Launch, Variable

FOLDER = "CHECKPOINTS"
# Steps of a first run: enough to see memory settle and the step time repeat.
TRIAL_STEPS = 50
TRAIN_STEPS = Variable("TRAIN_STEPS", str(TRIAL_STEPS), "steps of the run; the default is a trial")


def save_steps(launch: Launch) -> int:
    """Steps between checkpoints."""
    # A search asks writers what they could not launch, and needs none of this.
    from planner.compare.goodput import goodput, run_of
    from planner.compare.settings import Settings

    interval_s = goodput(run_of(launch.job), Settings()).interval_s
    return max(1, round(interval_s / launch.plan.step_time_s))


def folder_variable(data: str) -> Variable:
    """Where checkpoints go: nowhere while `data`, a variable, is empty and the run a trial."""
    return Variable(
        FOLDER,
        f"${{{data}:+checkpoints}}",
        "folder of checkpoints on a disk of all nodes; a job that is started again goes on from "
        "the last; empty: none",
    )
