"""Time limit and checkpoints of a batch job: when a run must save and end, so that the limit loses
no work."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from planner.launch.contract import STOP, Launch, Variable

if TYPE_CHECKING:
    from planner.compare.goodput import Goodput

# A limit that many clusters allow; the user can change it at the top of the script.
_USUAL_LIMIT_S = 4 * 3600
# How long before the limit Slurm signals the script.
SIGNAL_S = 300
_LEAST_MARGIN_S = 600
# Saves within a limit: a run that cannot be told to stop loses at most a quarter of it.
_SAVES = 4
# A job needs at least this many steps to be worth its start-up.
_LEAST_STEPS = 10


def is_limited(launch: Launch) -> bool:
    """Whether the launcher asks for a time limit."""
    return launch.nodes_as == "slurm"


def limit_minutes(launch: Launch) -> int:
    """The job's time limit in minutes: four hours, or more if ten slow steps need it."""
    least_s = _LEAST_STEPS * launch.plan.step_time.high + SIGNAL_S + _margin_s(launch)
    return math.ceil(max(_USUAL_LIMIT_S, least_s) / 60)


def limit_text(launch: Launch) -> str:
    """The job's time limit as Slurm writes it: `04:00:00`."""
    hours, minutes = divmod(limit_minutes(launch), 60)
    return f"{hours:02d}:{minutes:02d}:00"


def stop_minutes(launch: Launch) -> int:
    """Minutes after which a run saves and ends by itself. That is before Slurm's signal, with time
    for the current step, the next one and two saves (at least ten minutes)."""
    left_s = 60 * limit_minutes(launch) - SIGNAL_S - _margin_s(launch)
    return math.floor(left_s / 60)


def stop_variable(launch: Launch) -> Variable:
    """The variable for the minutes after which a run saves and ends by itself. Its default is empty
    (never) if the launcher has no time limit."""
    limited = is_limited(launch)
    minutes = str(stop_minutes(launch)) if limited else ""
    because = ", before the limit of #SBATCH --time" if limited else ""
    return Variable(STOP, minutes, f"minutes after which the run saves and ends{because}; "
                    "empty: never")  # fmt: skip


def _margin_s(launch: Launch) -> float:
    return max(_LEAST_MARGIN_S, 2 * launch.plan.step_time.high + 2 * _goodput(launch).write_s)


def save_steps(launch: Launch) -> int:
    """Steps between checkpoints, at least 1: the interval that loses the least time to saves and
    node failures. With a time limit, there are at least four checkpoints within it."""
    plan = launch.plan
    steps = _goodput(launch).interval_s / plan.step_time_s
    if is_limited(launch):
        steps = min(steps, 60 * stop_minutes(launch) / _SAVES / plan.step_time.high)
    return max(1, math.floor(steps))


def _goodput(launch: Launch) -> Goodput:
    # Searches import the writers for their refusals, and do not need this.
    from planner.compare.goodput import goodput, run_of
    from planner.compare.settings import Settings

    return goodput(run_of(launch.job), Settings())
