"""How sure a prediction is: log-normal intervals from residuals on measured runs.

ln(measured / predicted) is taken as normal with the mean and spread of the nearest measured
family (framework × GPU architecture); `planner/literature/residuals.toml` holds them.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from math import exp, log
from statistics import NormalDist

from pydantic import BaseModel, ConfigDict, Field

from planner.job import Job
from planner.plan import Interval

# An interval holds the true value with this probability.
COVERAGE = 0.80
_Z = NormalDist().inv_cdf(0.5 + COVERAGE / 2)


class Residuals(BaseModel):
    """Residuals of one family; logarithms are natural, of measured over predicted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    framework: str = ""
    architecture: str = ""
    label: str = ""
    bias_log_time: float = 0.0
    spread_log_time: float = Field(gt=0)
    bias_log_memory: float = 0.0
    spread_log_memory: float = Field(gt=0)
    rows: int = Field(ge=0)
    source: str

    @property
    def family(self) -> str:
        """What stands behind an interval, in words."""
        if self.label:
            return self.label
        return f"{self.rows} runs of {self.framework} on {self.architecture}"


@cache
def _table() -> tuple[Residuals, dict[tuple[str, str], Residuals]]:
    text = files("planner").joinpath("literature/residuals.toml").read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    families = [Residuals.model_validate(entry) for entry in raw.get("family", ())]
    return (
        Residuals.model_validate(raw["default"]),
        {(own.framework, own.architecture): own for own in families},
    )


def residuals(job: Job) -> Residuals:
    """Residuals of the job's family, or the default where it was not measured."""
    default, families = _table()
    return families.get((job.framework.name, job.cluster.gpu.architecture), default)


def step_time_interval(job: Job, step_time_s: float) -> Interval:
    """Where the true step time lies, s."""
    own = residuals(job)
    return _interval(step_time_s, own.bias_log_time, own.spread_log_time, own.family)


def peak_interval(job: Job, peak_bytes: float) -> Interval:
    """Where the true peak lies, bytes."""
    own = residuals(job)
    return _interval(peak_bytes, own.bias_log_memory, own.spread_log_memory, own.family)


def _interval(value: float, bias: float, spread: float, family: str) -> Interval:
    return Interval(
        low=value * exp(bias - _Z * spread), high=value * exp(bias + _Z * spread), family=family
    )


def fit_probability(job: Job, peak_bytes: float, limit_bytes: float) -> float:
    """Probability that the true peak stays within the limit."""
    if limit_bytes <= 0.0:
        return 0.0
    own = residuals(job)
    margin = log(limit_bytes / peak_bytes) - own.bias_log_memory
    return NormalDist().cdf(margin / own.spread_log_memory)
