"""The cost model with some numbers of the hardware or the framework multiplied: what a change that
no catalogue entry describes is worth."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.tables import FrameworkInputs
from planner.job.job import Job
from planner.predict.cost_model import CostModel

# Factors on numbers of the cost core, by the name of the number.
Factors = Mapping[str, float]


class AlteredModel(CostModel):
    """The cost model with some numbers of GPU, links and framework multiplied."""

    def __init__(self, job: Job, factors: Factors, *, compiled: bool = True) -> None:
        super().__init__(job, compiled=compiled)
        self._factors = factors

    def of(self, job: Job) -> AlteredModel:
        """The model of another job with the same factors."""
        return AlteredModel(job, self._factors, compiled=self.compiled)

    @cached_property
    def gpu_inputs(self) -> GpuInputs:
        """Numbers of the GPU, multiplied."""
        plain = super().gpu_inputs
        return plain._replace(**self._multiplied(plain._asdict()))

    @cached_property
    def link_inputs(self) -> LinkInputs:
        """Numbers of the links, multiplied."""
        plain = super().link_inputs
        return plain._replace(**self._multiplied(plain._asdict()))

    @cached_property
    def framework_inputs(self) -> FrameworkInputs:
        """Numbers of the framework, multiplied."""
        plain = super().framework_inputs
        return plain._replace(**self._multiplied(plain._asdict()))

    def _multiplied(self, values: Mapping[str, float]) -> dict[str, Any]:
        return {name: values[name] * by for name, by in self._factors.items() if name in values}
