"""Causes of a difference between a measured run and its prediction, each costed by the model: the
same configuration, predicted again with one thing changed.

`hypotheses.toml` lists them, with strengths that are tried and how to test for each. Nothing here
is fitted to the measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from hardware.files import shipped_toml
from hardware.schema import Cluster
from hardware.transport import TransportSettings, over_sockets
from planner.job.errors import UsageError
from planner.job.frameworks.profile import FrameworkProfile, Tables, with_tables
from planner.job.frameworks.tables import Overlap
from planner.job.job import Job
from planner.predict.evaluate import Proposal, evaluated
from planner.predict.plan import Plan

_BYTES_PER_GBIT = 1e9 / 8
_RATE = "scale_out_bytes_per_s_per_gpu_per_direction"

Direction = Literal["slower", "faster", "memory"]


@dataclass(frozen=True)
class Cause:
    """A row of `hypotheses.toml`, which explains its fields."""

    kind: str
    what: str
    test: str
    levels: tuple[float, ...] = ()
    sets: str = ""
    factors: tuple[str, ...] = ()
    tables: Tables = field(default_factory=dict)
    exposed: bool = False
    request: Mapping[str, Any] = field(default_factory=dict)
    degrees: Mapping[str, int] = field(default_factory=dict)
    recompute: str | None = None
    zero: int | None = None

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The cause at each of its strengths."""
        return tuple(Hypothesis(self, level) for level in self.levels or (1.0,))


@dataclass(frozen=True)
class Hypothesis:
    """A cause at one strength."""

    cause: Cause
    level: float

    @property
    def words(self) -> str:
        """`links between nodes at 50% of their rate`."""
        return self.cause.what.format(level=self.level)

    @property
    def factors(self) -> dict[str, float]:
        """Factors on numbers of the cost core."""
        return dict.fromkeys(self.cause.factors, self.level)

    @property
    def target(self) -> tuple[str, str]:
        """What the level sets: `request` and its field, `transport` and its, `links`."""
        where, _, name = self.cause.sets.partition(".")
        return where, name


@cache
def causes(direction: Direction) -> tuple[Cause, ...]:
    """The causes of a step that is slower or faster than predicted, or of another peak."""
    rows = shipped_toml("planner.predict.diagnosis", "hypotheses.toml")[direction]
    listed = ("levels", "factors")
    return tuple(Cause(**row | {name: tuple(row.get(name, ())) for name in listed}) for row in rows)


def nothing_overlapped(profile: FrameworkProfile) -> FrameworkProfile:
    """The profile with every collective exposed."""
    shares = {name: 0.0 for name in Overlap.model_fields if "contention" not in name}
    return with_tables(profile, {"overlap": shares})


def predicted_under(proposal: Proposal, hypotheses: Sequence[Hypothesis]) -> Plan | None:
    """The configuration with all these things changed; None where one does not apply."""
    try:
        return _plan(proposal, hypotheses)
    except (UsageError, HardwareError, ConstraintError):
        return None


def _plan(proposal: Proposal, hypotheses: Sequence[Hypothesis]) -> Plan:
    factors = dict[str, float]()
    for one in hypotheses:
        cause = one.cause
        asked = dict(cause.request)
        if one.target[0] == "request":
            asked[one.target[1]] = one.level
        moved = dict(cause.degrees) | ({} if cause.zero is None else {"zero": cause.zero})
        proposal = proposal.changed(
            asked, proposal.degrees.model_copy(update=moved), cause.recompute
        )
        factors |= one.factors
    job = proposal.request.resolve()
    for one in hypotheses:
        job = _changed_job(job, one)
    return evaluated(proposal.of(job), factors)


def _changed_job(job: Job, hypothesis: Hypothesis) -> Job:
    """The job with what a hypothesis changes of its framework and its cluster."""
    cause, profile = hypothesis.cause, job.framework
    if cause.exposed:
        profile = nothing_overlapped(profile)
    cluster = _changed_cluster(job.cluster, hypothesis)
    return replace(job, framework=with_tables(profile, cause.tables), cluster=cluster)


def _changed_cluster(cluster: Cluster, hypothesis: Hypothesis) -> Cluster:
    where, name = hypothesis.target
    level = hypothesis.level
    match where:
        case "links":
            return cluster.model_copy(update={_RATE: getattr(cluster, _RATE) * level})
        case "sockets":
            return over_sockets(cluster, level * _BYTES_PER_GBIT)
        case "transport":
            value = int(level) if name == "nics" else bool(level)
            return TransportSettings(**{name: value}).applied(cluster)
    return cluster
