"""The compiled core's inputs as the runs of a cluster corrected them.

Each factor of `hardware.calibration.PARAMETERS` multiplies the figures that are proportional to it;
of hidden shares what it multiplies is the rest: exposed' = 1 - (1 - hidden) · factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from hardware.calibration import PARAMETERS, Parameter
from planner.job.job import Job

Inputs = TypeVar("Inputs", bound=tuple[Any, ...])
Table = Literal["gpu", "framework", "links"]
# Shares of a peak: no factor makes them more than all of it.
_SHARES = ("_efficiency",)

_BY_NAME = {parameter.name: parameter for parameter in PARAMETERS}


def learnt_factors(job: Job) -> dict[str, float]:
    """Factors of the job's cluster that hold for its framework; none without a calibration."""
    calibration = job.cluster.calibration
    return {} if calibration is None else calibration.of(job.framework.family or job.framework.name)


def calibrated(inputs: Inputs, table: Table, factors: Mapping[str, float]) -> Inputs:
    """The NamedTuple `inputs` with the fields of every parameter multiplied by its factor."""
    changed: dict[str, float] = {}
    for name, factor in factors.items():
        parameter = _BY_NAME[name]
        for field in getattr(parameter, table):
            changed[field] = _changed(parameter, field, getattr(inputs, field), factor)
        for field in parameter.inverse if table == "framework" else ():
            changed[field] = getattr(inputs, field) / factor
    return inputs._replace(**changed) if changed else inputs  # type: ignore[attr-defined]


def _changed(parameter: Parameter, field: str, value: float, factor: float) -> float:
    if parameter.exposed:
        return max(0.0, 1.0 - (1.0 - value) * factor)
    return min(1.0, value * factor) if field.endswith(_SHARES) else value * factor
