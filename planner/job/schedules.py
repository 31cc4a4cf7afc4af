"""Pipeline schedules by name: what each one is, and its conditions on a plan.

The closed forms are in `planner.cost.schedule`, the orders in `planner.predict.pipeline_simulator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hardware.files import shipped_toml
from planner.job.errors import unknown_name

USUAL = "1f1b"
# `constraints.rule.Placement`, which needs numpy.
Placement = Literal["straight", "folded", "mirrored"]


@dataclass(frozen=True)
class PipelineSchedule:
    """One schedule, a row of `schedules.toml`. `code`: SCHEDULE_* of `planner.cost.schedule`."""

    name: str
    code: int
    placement: Placement
    summary: str
    source: str
    aliases: Sequence[str] = ()

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights are computed apart from those of inputs."""
        return self.code >= 2


_ROWS = shipped_toml("planner.job", "schedules.toml").items()
SCHEDULES = {name: PipelineSchedule(name, **row) for name, row in _ROWS}


def schedule_name(text: str) -> str:
    """Name of a schedule with aliases resolved, ignoring case and `_`. UsageError if there is
    none."""
    wanted = text.strip().lower().replace("_", "-")
    for schedule in SCHEDULES.values():
        if wanted in (schedule.name, *schedule.aliases):
            return schedule.name
    raise unknown_name("schedule", text, SCHEDULES, "known: " + ", ".join(SCHEDULES))


def schedule_named(name: str | None) -> PipelineSchedule:
    """The schedule of that name; None gives 1F1B, interleaved if vpp > 1."""
    return SCHEDULES[name or USUAL]


def plan_schedule(name: str | None, pp: int, vpp: int) -> str:
    """The schedule that a plan runs; 1F1B for a pipeline of one stage."""
    if pp == 1:
        return USUAL
    if name is None or name in ("1f1b", "interleaved"):
        return "interleaved" if vpp > 1 else USUAL
    return name
