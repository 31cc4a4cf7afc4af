"""Cost of a layout whose stages live on different GPUs.

Every stage is costed by the model of its part, alone; the step is composed from the stages as
`planner.cost.step.evaluate_step` composes it for GPUs of one type (1F1B and interleaved):

    T = ((m - 1/v)·max + sum/v + exposed transfers + exposed traffic + optimizer + host)·s

with m = grad_acc, v = vpp and s the largest slowdown by stragglers of any part. Transfers go at
the speed of the slower part's network, and a stage's gradient reduction waits for nobody during the
drain of the stages before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.cost import fields as f
from planner.cost.tables import Array
from planner.job.job import Job
from planner.predict.cost_model import Columns, CostedShapes, CostModel, KernelLayout

_OF_SLOWEST = (
    f.STEP_ISSUE,
    f.STEP_COMPUTE,
    f.STEP_RECOMPUTE,
    f.STEP_TP,
    f.STEP_CP,
    f.STEP_EP,
    f.STEP_FSDP,
)


@dataclass(frozen=True)
class CostedPool:
    """The same shapes costed on every part; `modes`: index of each shape's recompute mode."""

    parts: tuple[CostedShapes, ...]
    modes: NDArray[np.int64]


class PoolModel:
    """Costs shapes and layouts of one job on the parts of a pool.

    `jobs`: the job on each part, all but the cluster alike (`Pool.worlds`).
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = tuple(jobs)

    @cached_property
    def models(self) -> tuple[CostModel, ...]:
        """One cost model a part."""
        return tuple(CostModel(job) for job in self.jobs)

    def cost_shapes(self, columns: Columns) -> CostedPool:
        """Shapes in their even layouts, on each part."""
        parts = tuple(model.cost_shapes(columns) for model in self.models)
        return CostedPool(parts, columns["recompute"])

    def cost_layout(
        self, costed: CostedPool, row: int, layout: KernelLayout, parts: Sequence[int]
    ) -> tuple[Array, Array]:
        """([STEP_*] vector, [pp, STAGE_*] matrix) of a layout; `parts`: part of each stage.

        STEP_PEAK_BYTES is of the stage that uses the largest share of its GPU's memory.
        """
        alone = [
            self.models[part].cost_layout(costed.parts[part], row, only_stage(layout, stage))
            for stage, part in enumerate(parts)
        ]
        steps = np.array([step for step, _ in alone])
        stages = np.array([rows[stage] for stage, (_, rows) in enumerate(alone)])
        shape = costed.parts[0].shapes[row]
        step = compose(
            steps, stages, float(shape[f.SHAPE["grad_acc"]]), float(shape[f.SHAPE["vpp"]])
        )
        limits = np.array([self.jobs[part].hbm_limit_bytes for part in parts])
        heaviest = int(np.argmax(stages[:, f.STAGE_PEAK] / limits))
        step[f.STEP_PEAK_STAGE] = heaviest
        step[f.STEP_PEAK_BYTES] = stages[heaviest, f.STAGE_PEAK]
        step[f.STEP_ALLOCATED_BYTES] = stages[heaviest, f.STAGE_ALLOCATED]
        return step, stages


def only_stage(layout: KernelLayout, stage: int) -> KernelLayout:
    """The layout with nothing on the other stages."""
    counts, recomputed = np.zeros_like(layout.counts), np.zeros_like(layout.recomputed)
    counts[..., stage] = layout.counts[..., stage]
    recomputed[..., stage] = layout.recomputed[..., stage]
    return KernelLayout(counts, recomputed, layout.mtp_standalone)


def compose(steps: Array, stages: Array, grad_acc: float, vpp: float) -> Array:
    """One step from the steps of its stages alone, [pp, STEP_*], and their [pp, STAGE_*] rows."""
    seconds = stages[:, f.STAGE_FORWARD_S] + stages[:, f.STAGE_BACKWARD_S]
    slowest = int(np.argmax(seconds))
    step = np.zeros(steps.shape[1])
    step[list(_OF_SLOWEST)] = steps[slowest, list(_OF_SLOWEST)]
    span = (grad_acc - 1.0 / vpp) * seconds[slowest] + seconds.sum() / vpp
    drained = np.concatenate(([0.0], np.cumsum(stages[:-1, f.STAGE_BACKWARD_S]))) / vpp
    step[f.STEP_PP] = steps[:, f.STEP_PP].max()
    step[f.STEP_BUBBLE] = span - grad_acc * seconds[slowest]
    step[f.STEP_DP] = max(0.0, float((steps[:, f.STEP_DP] - drained).max()))
    step[f.STEP_OPTIMIZER] = steps[:, f.STEP_OPTIMIZER].max()
    step[f.STEP_HOST] = steps[:, f.STEP_HOST].max()
    tail = [f.STEP_PP, f.STEP_DP, f.STEP_OPTIMIZER, f.STEP_HOST]
    alike = span + float(step[tail].sum())
    times, waits = steps[:, f.STEP_TIME], steps[:, f.STEP_STRAGGLER]
    step[f.STEP_TIME] = alike * float((times / (times - waits)).max())
    step[f.STEP_STRAGGLER] = step[f.STEP_TIME] - alike
    return step
