"""Ranked causes of a measured run that is slower, faster or heavier than predicted.

Each cause is one change to the configuration (`hypotheses.toml`), costed by the model; nothing is
fitted to the measurement. Causes are ranked by how close they bring the prediction to the
measurement: single causes or, if no single cause comes close, pairs. They are listed even for a run
within the error bar, because such a run may still lose time for a reason that can be fixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from typing import Any, Literal

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from hardware.files import shipped_toml
from hardware.schema import Cluster
from hardware.transport import TransportSettings, over_sockets
from planner.cost.terms import TIME_WORDS
from planner.job.errors import UsageError
from planner.job.frameworks.profile import FrameworkProfile, Tables, with_tables
from planner.job.frameworks.tables import Overlap
from planner.job.job import Job
from planner.predict.diagnosis.measured import (
    Convention,
    Figure,
    Measured,
    MeasuredComparison,
    comparisons,
    conventions,
    verdicts,
)
from planner.predict.evaluate import Proposal, evaluated
from planner.predict.plan import Plan

_BYTES_PER_GBIT = 1e9 / 8
_RATE = "scale_out_bytes_per_s_per_gpu_per_direction"

Direction = Literal["slower", "faster", "memory"]


@dataclass(frozen=True)
class Cause:
    """A row of `hypotheses.toml`; that file explains the fields."""

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
    """A cause at one strength: `level` is one of the cause's `levels`, or 1 if it lists none."""

    cause: Cause
    level: float

    @property
    def words(self) -> str:
        """The cause and its strength in words, for example `links between nodes at 50% of their
        rate`."""
        return self.cause.what.format(level=self.level)

    @property
    def factors(self) -> dict[str, float]:
        """Names of the cost core's numbers that the hypothesis multiplies, each with its factor,
        the level; empty if it multiplies none."""
        return dict.fromkeys(self.cause.factors, self.level)

    @property
    def target(self) -> tuple[str, str]:
        """The setting that takes the level, as a pair: the group (`request`, `transport`, `links`
        or `sockets`) and the field in it. The field is empty for `links` and `sockets`; both are
        empty if the cause sets nothing."""
        where, _, name = self.cause.sets.partition(".")
        return where, name


@cache
def causes(direction: Direction) -> tuple[Cause, ...]:
    """The causes of a slower step, of a faster step, or of another peak."""
    rows = shipped_toml("planner.predict.diagnosis", "hypotheses.toml")[direction]
    listed = ("levels", "factors")
    return tuple(Cause(**row | {name: tuple(row.get(name, ())) for name in listed}) for row in rows)


def nothing_overlapped(profile: FrameworkProfile) -> FrameworkProfile:
    """The framework's profile in which no communication overlaps with computation."""
    shares = {name: 0.0 for name in Overlap.model_fields if "contention" not in name}
    return with_tables(profile, {"overlap": shares})


def predicted_under(proposal: Proposal, hypotheses: Sequence[Hypothesis]) -> Plan | None:
    """The plan predicted with all hypotheses applied to the proposal; None if one of them does not
    apply to it."""
    try:
        return _plan(proposal, hypotheses)
    except (UsageError, HardwareError, ConstraintError):
        return None


def _plan(proposal: Proposal, hypotheses: Sequence[Hypothesis]) -> Plan:
    factors = dict[str, float]()
    for hypothesis in hypotheses:
        cause = hypothesis.cause
        request_changes = dict(cause.request)
        if hypothesis.target[0] == "request":
            request_changes[hypothesis.target[1]] = hypothesis.level
        degree_changes = dict(cause.degrees) | ({} if cause.zero is None else {"zero": cause.zero})
        proposal = proposal.changed(
            request_changes, proposal.degrees.model_copy(update=degree_changes), cause.recompute
        )
        factors |= hypothesis.factors
    job = proposal.request.resolve()
    for hypothesis in hypotheses:
        job = _changed_job(job, hypothesis)
    return evaluated(proposal.of(job), factors)


def _changed_job(job: Job, hypothesis: Hypothesis) -> Job:
    """The job with a hypothesis applied to its framework and its cluster."""
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


# A gap below this share needs no explanation.
SAME = 0.02
MOST_CAUSES = 8
# If no single cause comes near: number of causes that are tried in pairs, and number of pairs
# listed.
_COMBINED, _MOST_PAIRS = 6, 3
# Losses below this share of the predicted step are not listed.
_LEAST_LOSS = 0.02

OUTSIDE = "the GPUs wait for something outside the step as modelled: data, logging, checkpoints"
_OUTSIDE_TEST = (
    "time steps on synthetic data, without checkpoints and evaluation; planner trace: gaps between "
    "steps"
)


@dataclass(frozen=True)
class GapExplanation:
    """A possible difference between the run and the prediction in words (`what`), and the figure
    that the model predicts with it (`predicted`), in seconds or bytes.

    `effect`: `predicted` over the original prediction, minus one; `near`: whether it comes close to
    the measurement; `test`: how to find out whether it applies; `any_gap`: it explains a gap of any
    size, so `predicted` is the measurement.
    """

    figure: Figure
    what: str
    predicted: float
    near: bool
    effect: float
    kinds: tuple[str, ...] = ()
    test: str = ""
    any_gap: bool = False


@dataclass(frozen=True)
class Loss:
    """A part of the predicted step that is not the model's arithmetic at the GPU's peak rate:
    seconds, and share of the step."""

    label: str
    seconds: float
    share: float


@dataclass(frozen=True)
class Findings:
    """The result of comparing a run with its prediction: the comparison of each figure,
    explanations of the gaps, losses of the predicted step, and the ways in which a stated MFU may
    have been counted, with verdicts on them."""

    comparisons: tuple[MeasuredComparison, ...] = ()
    explanations: tuple[GapExplanation, ...] = ()
    losses: tuple[Loss, ...] = ()
    conventions: tuple[Convention, ...] = ()
    verdicts: tuple[str, ...] = ()


def findings_of(proposal: Proposal, job: Job, plan: Plan, measured: Measured) -> Findings:
    """Each measurement against its prediction, with explanations of the gap."""
    found = tuple(comparisons(plan, measured))
    explanations = [item for one in found for item in explain_gap(proposal, plan, one)]
    ways = conventions(plan, job, measured)
    timed = any(one.figure == "step time" for one in found)
    return Findings(
        found,
        tuple(explanations),
        losses_of(plan) if timed else (),
        ways,
        tuple(verdicts(plan, measured, ways)),
    )


def losses_of(plan: Plan) -> tuple[Loss, ...]:
    """Time that the predicted step takes beyond the model's arithmetic at peak rate, by cause,
    largest first; causes with a small share of the step (`_LEAST_LOSS`) are left out."""
    total = plan.step_time_s
    ideal_s = min(plan.mfu * total, plan.time.compute_s)
    amounts = {TIME_WORDS[name]: value for name, value in plan.time.model_dump().items()}
    amounts[TIME_WORDS["compute_s"]] -= ideal_s
    amounts["kernels below the GPU's peak"] = amounts.pop(TIME_WORDS["compute_s"])
    found = [Loss(label, amount, amount / total) for label, amount in amounts.items()]
    found = [loss for loss in found if loss.share >= _LEAST_LOSS]
    return tuple(sorted(found, key=lambda loss: -loss.seconds))


# A cause, and the plan at each of its strengths that can be applied.
CostedCause = tuple[Cause, tuple[tuple[Hypothesis, Plan], ...]]


def costed_causes(proposal: Proposal, direction: Direction) -> tuple[CostedCause, ...]:
    """Every cause of a direction, with the strengths that apply to the proposal and the plan
    predicted at each."""
    return tuple(
        (
            cause,
            tuple(
                (one, plan)
                for one in cause.hypotheses()
                if (plan := predicted_under(proposal, [one])) is not None
            ),
        )
        for cause in causes(direction)
    )


def direction_of(comparison: MeasuredComparison) -> Direction:
    """Direction of a gap, which selects the causes to try: `slower` or `faster` for a step time,
    `memory` for a peak."""
    if comparison.figure == "peak memory":
        return "memory"
    return "slower" if comparison.ratio > 1.0 else "faster"


def explain_gap(
    proposal: Proposal,
    plan: Plan,
    comparison: MeasuredComparison,
    costed: Sequence[CostedCause] | None = None,
) -> tuple[GapExplanation, ...]:
    """Explanations of a gap, nearest to the measurement first; empty if the ratio differs from one
    by no more than `SAME`. A slower step also gets, as the last, time outside the model. `costed`:
    the result of `costed_causes` for the gap's direction; None: it is computed here."""
    if abs(comparison.ratio - 1.0) <= SAME:
        return ()
    direction = direction_of(comparison)
    if costed is None:
        costed = costed_causes(proposal, direction)
    tried = [one for _, plans in costed if (one := _best(plans, comparison))]
    tried.sort(key=lambda one: comparison.distance(one[1]))
    found = [_explanation(comparison, [one], figure) for one, figure in tried]
    if not any(one.near for one in found):
        found += _pairs(proposal, tried[:_COMBINED], comparison)
    found.sort(key=lambda one: comparison.distance(one.predicted))
    found = found[:MOST_CAUSES]
    if direction == "slower":
        found.append(_outside(plan, comparison))
    return tuple(found)


_Tried = tuple[Hypothesis, float]


def _best(
    plans: Sequence[tuple[Hypothesis, Plan]], comparison: MeasuredComparison
) -> _Tried | None:
    """The strength of a cause whose predicted figure comes nearest to the measurement, with that
    figure; only strengths that close part of the gap count. None if none does."""
    figures = [(one, comparison.figure_of(plan)) for one, plan in plans]
    found = [(one, figure) for one, figure in figures if comparison.moves(figure)]
    return min(found, key=lambda one: comparison.distance(one[1]), default=None)


def _explanation(
    comparison: MeasuredComparison, hypotheses: Sequence[Hypothesis], figure: float
) -> GapExplanation:
    return GapExplanation(
        comparison.figure,
        ", and ".join(hypothesis.words for hypothesis in hypotheses),
        figure,
        comparison.is_near(figure),
        figure / comparison.predicted - 1.0,
        tuple(hypothesis.cause.kind for hypothesis in hypotheses),
        "; ".join(hypothesis.cause.test for hypothesis in hypotheses),
    )


def _pairs(
    proposal: Proposal, tried: Sequence[_Tried], comparison: MeasuredComparison
) -> Iterator[GapExplanation]:
    """Pairs of causes of different kinds that explain more together than either does by itself."""
    found = []
    for (first, first_alone), (second, second_alone) in combinations(tried, 2):
        if first.cause.kind == second.cause.kind:
            continue
        together = predicted_under(proposal, [first, second])
        if together is None:
            continue
        figure = comparison.figure_of(together)
        if comparison.distance(figure) < min(map(comparison.distance, (first_alone, second_alone))):
            found.append(_explanation(comparison, [first, second], figure))
    found.sort(key=lambda item: comparison.distance(item.predicted))
    yield from found[:_MOST_PAIRS]


def _outside(plan: Plan, comparison: MeasuredComparison) -> GapExplanation:
    """Time outside the model, which can explain any slower step and is therefore listed last."""
    return GapExplanation(
        "step time",
        OUTSIDE,
        comparison.measured,
        near=False,
        effect=comparison.measured / plan.step_time_s - 1.0,
        kinds=("outside",),
        test=_OUTSIDE_TEST,
        any_gap=True,
    )
