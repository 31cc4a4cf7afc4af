"""A measurement beside the prediction: does it agree, and if not, what could explain the gap.

Explanations are predictions of the same model with one thing changed (a collective no longer
hidden, kernels issued twice as slowly, links at half their rate, …): those that come near the
measurement are named, with what they predict. Nothing here is fitted to the measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from hardware.files import shipped_toml
from planner.job.errors import UsageError
from planner.job.frameworks.profile import Tables, with_tables
from planner.job.job import Job
from planner.job.quantities import share
from planner.launch.check.request import nothing_overlapped
from planner.predict.memory.option_changes import Setup
from planner.predict.plan import Interval, Plan

GIB = 2.0**30

# An explanation is near where it predicts the measurement within this share.
NEAR = 0.1
# One that moves the prediction by less than this share of the gap explains nothing.
LEAST_MOVE = 0.15
MOST_EXPLANATIONS = 5
# A stated MFU and a step time agree on a convention within this share.
SAME_MFU = 0.03
# Sparse peaks of datasheets: twice the dense ones (2:4 structured sparsity).
SPARSE_OVER_DENSE = 2.0

Figure = Literal["step time", "peak memory"]


@dataclass(frozen=True)
class Measured:
    """What the user measured: seconds a step, MFU as a share, peak GiB on the heaviest GPU."""

    step_time_s: float | None = None
    mfu: float | None = None
    memory_gib: float | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("step-time", self.step_time_s),
            ("mfu", self.mfu),
            ("memory", self.memory_gib),
        ):
            if value is not None and value <= 0.0:
                raise UsageError(f"--measured-{name} {value:g}: must be positive")
        if self.mfu is not None and self.mfu > 1.0:
            raise UsageError(f"--measured-mfu {self.mfu:g}: a share of 0 to 1, or as 41%")

    @property
    def is_given(self) -> bool:
        """Whether anything was measured."""
        return any(item is not None for item in (self.step_time_s, self.mfu, self.memory_gib))


@dataclass(frozen=True)
class MeasuredComparison:
    """A measured figure beside its prediction; both in seconds or bytes."""

    figure: Figure
    measured: float
    predicted: float
    interval: Interval

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted

    @property
    def agrees(self) -> bool:
        """Whether it lies in the prediction's 80 % interval."""
        return self.interval.low <= self.measured <= self.interval.high


@dataclass(frozen=True)
class GapExplanation:
    """`what` could be different, and the figure that the model then predicts."""

    figure: Figure
    what: str
    predicted: float
    near: bool


@dataclass(frozen=True)
class Convention:
    """A way to count MFU, and the step time that the stated one then means."""

    name: str
    step_time_s: float
    plausible: bool


@dataclass(frozen=True)
class Findings:
    """Comparisons, explanations of those that disagree, and what a stated MFU means."""

    comparisons: tuple[MeasuredComparison, ...] = ()
    explanations: tuple[GapExplanation, ...] = ()
    conventions: tuple[Convention, ...] = ()
    verdicts: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Hypothesis:
    """Something that may differ: of the profile's tables, the request or the cluster."""

    what: str
    tables: Tables = field(default_factory=dict)
    exposed: bool = False
    request: Mapping[str, object] = field(default_factory=dict)
    recompute: str | None = None
    links: float = 1.0
    zero: int | None = None


def _hypotheses(kind: str) -> list[_Hypothesis]:
    """Those for a measurement that is `slower`, `faster`, or of `memory`."""
    tables = shipped_toml("planner.launch.check", "hypotheses.toml")
    return [_Hypothesis(**one) for one in tables[kind]]


# Rates of a GPU that is throttled, or shared, over the fitted ones.
_GPU_RATES = (0.9, 0.75, 0.6)
# Multiples of the profile's time to issue a kernel.
_ISSUE_FACTORS = (2.0, 4.0)


def findings_of(setup: Setup, job: Job, plan: Plan, measured: Measured) -> Findings:
    """Each measurement against the prediction, with explanations where it disagrees."""
    comparisons = list(_comparisons(plan, measured))
    explanations = [
        item
        for comparison in comparisons
        if not comparison.agrees
        for item in explain_gap(setup, job, plan, comparison)
    ]
    conventions = _conventions(plan, job, measured) if measured.mfu is not None else ()
    verdicts = _verdicts(plan, measured, conventions)
    return Findings(tuple(comparisons), tuple(explanations), conventions, tuple(verdicts))


def _comparisons(plan: Plan, measured: Measured) -> Iterator[MeasuredComparison]:
    seconds = measured.step_time_s
    if seconds is None and measured.mfu is not None:
        seconds = plan.step_time_s * plan.mfu / measured.mfu
    if seconds is not None:
        yield MeasuredComparison("step time", seconds, plan.step_time_s, plan.step_time)
    if measured.memory_gib is not None:
        size = measured.memory_gib * GIB
        yield MeasuredComparison("peak memory", size, plan.peak_bytes, plan.peak_interval)


def explain_gap(
    setup: Setup, job: Job, plan: Plan, comparison: MeasuredComparison
) -> tuple[GapExplanation, ...]:
    """What could explain a gap, nearest first: at most five."""
    kind = "slower" if comparison.ratio > 1.0 else "faster"
    hypotheses = _hypotheses("memory" if comparison.figure == "peak memory" else kind)
    if comparison.figure == "step time" and comparison.ratio > 1.0:
        hypotheses += _launch_bound(job)
    found = []
    for hypothese in hypotheses:
        predicted = _figure(setup, hypothese, comparison.figure)
        if predicted is not None and _moves(predicted, comparison):
            near = abs(predicted / comparison.measured - 1.0) <= NEAR
            found.append(GapExplanation(comparison.figure, hypothese.what, predicted, near))
    if comparison.figure == "step time" and comparison.ratio > 1.0:
        found += _throttled(plan, comparison)
    found.sort(key=lambda convention: abs(convention.predicted - comparison.measured))
    return tuple(found[:MOST_EXPLANATIONS])


def _throttled(plan: Plan, comparison: MeasuredComparison) -> Iterator[GapExplanation]:
    """Compute that takes longer by the rate of the GPU, everything else as predicted."""
    compute_s = plan.time.compute_s + plan.time.recompute_s
    for rate in _GPU_RATES:
        predicted = plan.step_time_s + compute_s * (1.0 / rate - 1.0)
        if _moves(predicted, comparison):
            near = abs(predicted / comparison.measured - 1.0) <= NEAR
            what = f"GPUs at {rate * 100:.0f} % of their rate (power, heat, or one slow GPU)"
            yield GapExplanation("step time", what, predicted, near)


def _moves(predicted: float, comparison: MeasuredComparison) -> bool:
    """Whether a hypothesis closes a part of the gap."""
    gap = comparison.measured - comparison.predicted
    moved = (predicted - comparison.predicted) / gap
    overshoots = abs(predicted - comparison.measured) > abs(gap)
    return moved >= LEAST_MOVE and not overshoots


def _launch_bound(job: Job) -> Iterator[_Hypothesis]:
    kernels = job.framework.kernels
    for factor in _ISSUE_FACTORS:
        times = {"issue_s": kernels.issue_s * factor, "launch_s": kernels.launch_s * factor}
        what = f"CPU issues kernels {factor:g} times as slowly (launch-bound)"
        yield _Hypothesis(what, {"kernels": times})


def _figure(setup: Setup, hypothesis: _Hypothesis, figure: Figure) -> float | None:
    """The figure under a hypothesis; None where it does not apply."""
    try:
        plan = _changed(setup, hypothesis).plan()
    except (UsageError, HardwareError, ConstraintError):
        return None
    return plan.step_time_s if figure == "step time" else plan.peak_bytes


def _changed(setup: Setup, hypothesis: _Hypothesis) -> Setup:
    profile = setup.request.find_framework()
    if hypothesis.exposed:
        profile = nothing_overlapped(profile)
    profile = with_tables(profile, hypothesis.tables)
    hypothesis_fields = {**hypothesis.request, "profile": profile, "links": hypothesis.links}
    request = setup.request.model_copy(update=hypothesis_fields)
    changed = replace(setup, request=request)
    if hypothesis.zero is not None:
        changed = replace(
            changed, degrees=setup.degrees.model_copy(update={"zero": hypothesis.zero})
        )
    if hypothesis.recompute is not None:
        changed = replace(changed, recompute=hypothesis.recompute, recomputed=None)
    return changed


# --- a stated MFU ---------------------------------------------------------------------------------


def _conventions(plan: Plan, job: Job, measured: Measured) -> tuple[Convention, ...]:
    """Step time that the stated MFU means under each way to count it."""
    stated = measured.mfu or 0.0
    sparse = 1.0 / SPARSE_OVER_DENSE
    ways = {
        "full attention square and dense 16-bit peak": plan.mfu,
        "causal attention and dense 16-bit peak": plan.mfu_causal,
        "full attention square and sparse 16-bit peak (2:4)": plan.mfu * sparse,
        "causal attention and sparse 16-bit peak (2:4)": plan.mfu_causal * sparse,
        "recomputed FLOP (HFU) and dense 16-bit peak": plan.hfu,
    }
    if job.precision not in ("bf16", "fp16"):
        ways[f"full attention square and dense {job.precision} peak"] = plan.mfu_precision
        ways[f"full attention square and sparse {job.precision} peak (2:4)"] = (
            plan.mfu_precision * sparse
        )
    found: dict[str, Convention] = {}
    for name, way in ways.items():
        seconds = plan.step_time_s * way / stated
        if any(abs(other.step_time_s / seconds - 1.0) < 1e-3 for other in found.values()):
            continue
        if measured.step_time_s is not None:
            plausible = abs(seconds / measured.step_time_s - 1.0) <= SAME_MFU
        else:
            plausible = plan.step_time.low <= seconds <= plan.step_time.high
        found[name] = Convention(name, seconds, plausible)
    return tuple(found.values())


def _verdicts(plan: Plan, measured: Measured, conventions: tuple[Convention, ...]) -> Iterator[str]:
    """What a stated MFU turns out to be: certain beside a step time, likely without."""
    if measured.mfu is None:
        return
    stated, first = share(measured.mfu), conventions[0]
    fitting = [convention.name for convention in conventions if convention.plausible]
    named = " or ".join(fitting)
    if measured.step_time_s is not None:
        value = plan.mfu * plan.step_time_s / measured.step_time_s
        here = f"counted with the {first.name}, the measured step time is {share(value)}"
        if not fitting:
            yield f"MFU {stated} follows from the measured step time in no usual way; {here}"
        elif not first.plausible:
            yield f"MFU {stated} is counted with the {named}; {here}"
    elif not fitting:
        yield f"MFU {stated}: counted in any usual way, the run is not as predicted"
    elif not first.plausible:
        ratio = first.step_time_s / plan.step_time_s
        yield (
            f"MFU {stated} makes sense of a run as predicted only if counted with the {named}. "
            f"Counted with the {first.name} it means a step {ratio:.2f} times as long as "
            "predicted: give --measured-step-time to tell"
        )
