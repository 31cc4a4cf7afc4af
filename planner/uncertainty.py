"""How sure a prediction is: log-normal intervals from residuals on measured runs.

ln(measured / predicted) is taken as normal around zero with the spread of the nearest measured
family (framework, GPU architecture, inside one scale-up domain or beyond it, dense or MoE);
`planner/literature/residuals.toml` holds the spreads and says how they were fitted.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from math import exp, hypot, log
from statistics import NormalDist
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from planner.job import Job
from planner.plan import Interval

# An interval holds the true value with this probability.
COVERAGE = 0.80
_Z = NormalDist().inv_cdf(0.5 + COVERAGE / 2)

# Spread of what lies outside live tensors, which few of the measured peaks include: three
# published runs reserve 2.8, 3.0 and 6.5 % more than they allocate (SimuMax, B200), where one
# share is predicted; context and communication buffers differ by driver and library.
OUTSIDE_SPREAD = 0.02

# Added to a step time's spread on an architecture without a measured run. Assumed: kernel rates
# that were carried over from another architecture missed the measured ones by 10 to 20 %.
UNMEASURED_GPU_SPREAD = 0.15

Figure = Literal["time", "memory"]


class Residuals(BaseModel):
    """Residuals of one family; logarithms are natural, of measured over predicted.

    An empty key pools over all its values; a figure that was not measured has no rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    framework: str = ""
    architecture: str = ""
    nodes: str = ""
    model: str = ""
    spread_log_time: float = Field(0.0, ge=0)
    time_rows: int = Field(0, ge=0)
    spread_log_memory: float = Field(0.0, ge=0)
    memory_rows: int = Field(0, ge=0)
    sources: tuple[str, ...]

    def spread(self, figure: Figure) -> float:
        """Spread of one figure's log residuals; 0 without rows."""
        return self.spread_log_time if figure == "time" else self.spread_log_memory

    def rows(self, figure: Figure) -> int:
        """Measured runs behind one figure."""
        return self.time_rows if figure == "time" else self.memory_rows


class Spread(NamedTuple):
    """Spread of a log residual, and the family it comes from in words."""

    value: float
    family: str


@cache
def _table() -> dict[tuple[str, str, str, str], Residuals]:
    text = files("planner").joinpath("literature/residuals.toml").read_text(encoding="utf-8")
    families = [Residuals.model_validate(entry) for entry in tomllib.loads(text)["family"]]
    return {(own.framework, own.architecture, own.nodes, own.model): own for own in families}


def spread_of(job: Job, figure: Figure) -> Spread:
    """Spread of the narrowest measured family that the job belongs to, then of wider ones.

    What a step needs in memory is the framework's doing more than the GPU's, so for memory the
    same framework on other GPUs is nearer than other frameworks on this one.
    """
    for key, words in _families(job, figure):
        own = _table().get(key)
        if own is not None and own.rows(figure):
            value = hypot(own.spread(figure), _further_spread(job, figure, own))
            return Spread(value, f"{own.rows(figure)} runs, {words}")
    raise LookupError(f"literature/residuals.toml has no pooled family for {figure}")


def _further_spread(job: Job, figure: Figure, own: Residuals) -> float:
    """What the residuals of a family leave out, as the spread of an independent error."""
    if figure == "memory":
        return OUTSIDE_SPREAD
    same = own.architecture == job.cluster.gpu.architecture
    return 0.0 if same else UNMEASURED_GPU_SPREAD


def _families(job: Job, figure: Figure) -> Iterator[tuple[tuple[str, str, str, str], str]]:
    """Keys of the families of a job from the nearest on, each with its words."""
    name, architecture = job.framework.name, job.cluster.gpu.architecture
    inside = job.cluster.num_gpus <= job.cluster.scale_up_domain_gpus
    scale = "one domain" if inside else "several domains"
    model = "moe" if job.model.moe else "dense"
    yield (name, architecture, scale, model), f"{model}, {name} on {architecture}, {scale}"
    yield (name, architecture, "", model), f"{model}, {name} on {architecture}, any size"
    if figure == "memory":
        yield (name, "", "", model), f"{model}, {name} on other GPUs"
    yield (name, architecture, "", ""), f"{name} on {architecture}, other models"
    yield ("", architecture, "", model), f"{model}, other frameworks on {architecture}"
    yield ("", architecture, "", ""), f"other frameworks on {architecture}"
    yield (name, "", "", model), f"{model}, {name} on other GPUs"
    yield (name, "", "", ""), f"{name} on other GPUs"
    yield ("", "", "", ""), "all measured runs: nothing nearer was measured"


def step_time_interval(job: Job, step_time_s: float) -> Interval:
    """Where the true step time lies with 80 % probability, s."""
    return _interval(step_time_s, spread_of(job, "time"))


def peak_interval(job: Job, peak_bytes: float) -> Interval:
    """Where the true peak lies with 80 % probability, bytes."""
    return _interval(peak_bytes, spread_of(job, "memory"))


def _interval(value: float, spread: Spread) -> Interval:
    factor = exp(_Z * spread.value)
    return Interval(low=value / factor, high=value * factor, family=spread.family)


def fit_probability(job: Job, peak_bytes: float, limit_bytes: float) -> float:
    """Probability that the true peak stays within the limit."""
    if limit_bytes <= 0.0:
        return 0.0
    return NormalDist().cdf(log(limit_bytes / peak_bytes) / spread_of(job, "memory").value)
