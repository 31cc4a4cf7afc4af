"""Pipeline schedules by name: what each is, and what it demands of a plan.

The closed forms are in `planner.cost.schedule`, the orders in `planner.predict.pipeline_simulator`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.job.errors import unknown_name

USUAL = "1f1b"
# `constraints.rule.Placement`, which needs numpy.
Placement = Literal["straight", "folded", "mirrored"]


@dataclass(frozen=True)
class PipelineSchedule:
    """`code`: SCHEDULE_* of `planner.cost.schedule`; `summary`: bubble and memory in words."""

    name: str
    code: int
    placement: Placement
    summary: str
    source: str

    @property
    def splits_backward(self) -> bool:
        """Gradients of weights are made apart from those of inputs."""
        return self.code >= 2


_NARAYANAN = "Narayanan et al. 2021, arXiv 2104.04473"
_QI = "Qi et al. 2024, arXiv 2401.10241"
_DEEPSEEK = "DeepSeek-AI 2024, arXiv 2412.19437"

SCHEDULES = {
    item.name: item
    for item in (
        PipelineSchedule(
            "1f1b", 0, "straight", "one forward, one backward in turn", _NARAYANAN
        ),
        PipelineSchedule(
            "interleaved", 0, "straight", "1F1B over vpp chunks a stage: bubble / vpp", _NARAYANAN
        ),
        PipelineSchedule(
            "gpipe", 1, "straight", "all forward first: holds every micro-batch",
            "Huang et al. 2019, arXiv 1811.06965",
        ),
        PipelineSchedule(
            "zb-h1", 2, "straight", "weight gradients fill the bubble, memory of 1F1B", _QI
        ),
        PipelineSchedule(
            "zb-h2", 3, "straight", "smaller bubble still, twice the activations", _QI
        ),
        PipelineSchedule(
            "zb-v", 4, "folded", "two chunks a stage in a V, memory of 1F1B", _QI
        ),
        PipelineSchedule(
            "dualpipe", 5, "mirrored", "from both ends, two copies of the weights", _DEEPSEEK
        ),
        PipelineSchedule(
            "dualpipev", 6, "folded", "DualPipe folded into a V, one copy", _DEEPSEEK
        ),
    )
}  # fmt: skip
_ALIASES = {"afab": "gpipe", "all-forward-all-backward": "gpipe", "zb1p": "zb-h1", "zb2p": "zb-h2"}


def schedule_name(text: str) -> str:
    """Name of a schedule, aliases resolved, case and `_` ignored. UsageError if there is none."""
    wanted = text.strip().lower().replace("_", "-")
    wanted = _ALIASES.get(wanted, wanted)
    if wanted not in SCHEDULES:
        raise unknown_name("schedule", text, SCHEDULES, "known: " + ", ".join(SCHEDULES))
    return wanted


def schedule_named(name: str | None) -> PipelineSchedule:
    """A schedule; None: 1F1B, interleaved where vpp > 1."""
    return SCHEDULES[name or USUAL]


def plan_schedule(name: str | None, pp: int, vpp: int) -> str:
    """The schedule that a plan runs; 1F1B stands for a pipeline of one stage."""
    if pp == 1:
        return USUAL
    if name is None or name in ("1f1b", "interleaved"):
        return "interleaved" if vpp > 1 else USUAL
    return name
