"""Uncertainty of a prediction: 80 % intervals from the errors of measured runs.

ln(measured / predicted) is modelled as two halves of a distribution with the tails of Student's t
that meet at the prediction. Their half widths come from the parts of the prediction
(`planner.predict.uncertainty.residuals`); if runs are slower than predicted the interval extends
further upwards. Conditions that were never measured widen it on both sides, and are named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import exp, hypot, log

import numpy as np

from hardware.calibration import LearntFigure
from hardware.curves import load_compute_curves
from hardware.schema import Gpu
from planner.cost import fields as f
from planner.cost.tables import Array
from planner.job.job import Job
from planner.predict.cost_tables import head_precision
from planner.predict.ops.trained import least_trained_flop
from planner.predict.plan import Degrees, Interval
from planner.predict.uncertainty.families import (
    UNFAMILIAR,
    Family,
    Figure,
    architecture_text,
    kind_of_model,
    model_words,
)
from planner.predict.uncertainty.measured_range import Conditions
from planner.predict.uncertainty.open_mixture import NO_DOUBT, Doubt
from planner.predict.uncertainty.residuals import DEVIATIONS, HIGH, LOW, Further, Spread, Widths
from planner.predict.uncertainty.shipped import shipped_further, shipped_spread, shipped_table

_DIGITS = re.compile(r"\d+")
# Highest rate of a whole step over that of the best product in a short benchmark: among the
# published pretraining runs without a doubt one reaches 0.85 (Llama 3 8B with 16,384 tokens on
# B200), all others 0.80 or less (TinyLlama on RTX 3090), with attention's backward counted as it
# runs.
_STEP_SHARE = 0.85
# Spread of memory outside live tensors, which few of the measured peaks include: three published
# runs reserve 2.8, 3.0 and 6.5 % more than they allocate (SimuMax, B200), for which one share is
# predicted; context and communication buffers differ by driver and library.
OUTSIDE_SPREAD = 0.02


# Spread added to step times on GPUs of several types, which were never measured. Assumed.
MIXTURE_SPREAD = 0.10
NO_MIXTURE_MEASURED = (
    "no run on GPUs of several types was measured: the interval covers those of all its "
    "GPU types, and is wider"
)


def are_mixed(machines: Sequence[Job]) -> bool:
    """Whether a job's machines have GPUs of several types."""
    return len({machine.cluster.gpu.name for machine in machines}) > 1


def widest_interval(machines: Sequence[Job], degrees: Degrees, step: Array) -> Interval:
    """The interval of a step time, s. On GPUs of several types it covers the intervals of all types
    and is wider by `MIXTURE_SPREAD`. `step`: STEP_* vector."""
    step_time_s = float(step[f.STEP_TIME])
    each = [
        step_time_interval(job, step_time_s, at=plan_conditions(job, degrees, step))
        for job in machines
    ]
    if not are_mixed(machines):
        return each[0]
    widest = max(each, key=lambda item: item.high / item.low)
    below = hypot(log(step_time_s / min(item.low for item in each)), MIXTURE_SPREAD)
    # As if all GPUs were of the fastest type.
    floor_s = min(step_time_s, *(least_step_s(job, degrees) for job in machines))
    above = hypot(log(max(item.high for item in each) / step_time_s), MIXTURE_SPREAD)
    return Interval(
        low=max(floor_s, step_time_s * exp(-below)),
        high=step_time_s * exp(above),
        family=f"{widest.family}, widened: no mixed pool was measured",
        beyond=widest.beyond,
    )


def family_of(job: Job) -> Family:
    """The family of measured runs to which a job belongs."""
    inside = job.cluster.num_gpus <= job.cluster.scale_up_domain_gpus
    return Family(
        framework=job.framework.family or job.framework.name,
        architecture=job.cluster.gpu.architecture,
        scale="one domain" if inside else "several domains",
        model=kind_of_model(mixture=job.model.moe is not None, tuned=is_tuned(job)),
    )


def is_tuned(job: Job) -> bool:
    """Whether a job trains part of its weights, or trains on samples that differ in length: kinds
    of training with separate error bars."""
    return not job.tuning.trains_all or job.samples.differ


def conditions_of(job: Job) -> Conditions:
    """A job's values on those axes that are known before its layout is; the others are unknown
    (0)."""
    return Conditions(
        gpus=job.cluster.num_gpus,
        seq=job.seq,
        hidden=job.model.hidden,
        bits=int(_DIGITS.findall(job.precision)[-1]),
        guessed=job.cluster.gpu.name if load_compute_curves(job.cluster.gpu).guessed else "",
        states=job.model.has_states,
        objective="" if job.objective.kind == "lm" else job.objective.rules.words,
    )


def plan_conditions(job: Job, degrees: Degrees, step: Array) -> Conditions:
    """A configuration's values on all axes; `step`: its STEP_* vector."""
    exposed = float(step[f.STEP_EXPOSED].sum())
    total = float(step[f.STEP_TIME])
    return conditions_of(job)._replace(
        gpus=degrees.gpus,
        tokens=degrees.mbs * job.rows * job.row(degrees.mbs * job.rows).computed / degrees.cp,
        overhead=total / max(total - exposed, 0.01 * total),
        waiting=min(1.0, float(step[f.STEP_ISSUE]) / total),
        least=min(1.0, least_step_s(job, degrees) / total),
    )


def least_step_s(job: Job, degrees: Degrees) -> float:
    """Seconds that the model's own FLOP take at the fastest plausible rate of a whole step.

    computed tokens / GPUs * sum of FLOP / rate (`least_trained_flop`), where the rate is peak *
    share of the best product * `_STEP_SHARE`: in the job's precision for linear layers, in 16 bits
    for attention, scans, router and head. Ignores memory, communication and recomputed layers.
    """
    row = job.row(degrees.mbs * job.rows)
    low, wide = least_trained_flop(job, row.attended)
    gpu = job.cluster.gpu
    seconds = low / _fastest(gpu, job.precision)
    seconds += wide / _fastest(gpu, head_precision(gpu, job.precision))
    return degrees.gbs * job.rows * row.computed * seconds / degrees.gpus


def _fastest(gpu: Gpu, precision: str) -> float:
    """Highest FLOP/s of a whole step in one precision. A short benchmark may run at a clock above
    that of the printed peak, but no step under load does."""
    share = min(1.0, load_compute_curves(gpu).max_share(precision))
    return gpu.peak(precision) * share * _STEP_SHARE


def spread_of(
    job: Job, figure: Figure, without: str = "", at: Conditions | None = None
) -> tuple[Spread, Further]:
    """The ends of the 80 % interval of ln(measured / predicted) for a job, and the further error,
    for conditions that were never measured, that is already included in them. `without`: a source
    to leave out; `at`: conditions of the configuration, by default those of the job alone."""
    family, where = family_of(job), at or conditions_of(job)
    if learnt := learnt_figure(job, figure):
        return learnt_spread(learnt, figure, family, where)
    further = shipped_further(figure, family, where, without)
    spread = shipped_spread(figure, family, where, without)
    return widened(spread, further.deviation, figure), further


def learnt_figure(job: Job, figure: Figure) -> LearntFigure | None:
    """Errors of a figure (time or memory) in runs of the job's cluster under its framework; None
    without such runs."""
    calibration = job.cluster.calibration
    if calibration is None or not calibration.knows(family_of(job).framework):
        return None
    return calibration.time if figure == "time" else calibration.memory


def learnt_spread(
    learnt: LearntFigure, figure: Figure, family: Family, at: Conditions
) -> tuple[Spread, Further]:
    """The spread for a job on a calibrated cluster: the spread without own runs, times the width
    that its runs taught; and the further error of a job outside the ranges of these runs, which per
    doubling is that of published runs."""
    measured: dict[str, tuple[float, float]] = {
        axis: (low, high) for axis, low, high in learnt.measured
    }
    terms = shipped_table(figure, family).beyond(measured, at)
    further = Further(hypot(*terms.values()), tuple(terms))
    known = shipped_spread(figure, family, at)
    ends = learnt.width * known.low, learnt.width * known.high
    spread = Spread(*ends, family, rests_on=learnt_text(learnt.runs, learnt.width))
    return widened(spread, further.deviation, figure), further


def widened(spread: Spread, deviation: float, figure: Figure) -> Spread:
    """The spread with a further independent normal error of this standard deviation, in ln; for
    memory also with the errors that residuals do not contain."""
    further = float(further_width(figure, deviation))
    return replace(spread, low=-hypot(spread.low, further), high=hypot(spread.high, further))


def further_width(figure: Figure, deviation: Widths) -> Widths:
    """Half width, in ln, of the 80 % interval of an error with this standard deviation. For memory
    it also includes the spread of memory outside live tensors (`OUTSIDE_SPREAD`)."""
    outside = OUTSIDE_SPREAD if figure == "memory" else 0.0
    wide: Widths = DEVIATIONS * np.hypot(deviation, outside)
    return wide


def log_bounds(spread: Spread, doubt: Doubt = NO_DOUBT) -> tuple[float, float]:
    """Ends of the interval as ln(bound / predicted); the prediction is between them. `doubt`:
    distribution of ln(value / predicted by default) over open facts; its median is the prediction.
    """
    low, high = spread.low, spread.high
    if doubt != NO_DOUBT:
        about, reach = doubt.about_median, 4.0 * max(-low, high)
        low, high = (about.quantile(spread.below, at, reach) for at in (LOW, HIGH))
    return min(0.0, low), max(0.0, high)


def in_doubt(interval: Interval, value: float, doubt: Doubt) -> Interval:
    """The interval of a figure, widened by facts that are not stated. `interval`: the interval if
    all were known; `value`: the figure predicted with the defaults; `doubt`: distribution of
    ln(figure / `value`) over the open facts."""
    if doubt == NO_DOUBT:
        return interval
    middle = value * exp(doubt.median)
    spread = Spread(log(interval.low / value), log(interval.high / value), Family())
    low, high = (middle * exp(end) for end in log_bounds(spread, doubt))
    return interval.model_copy(update={"low": min(low, value), "high": max(high, value)})


_SCALES = {"one domain": "within one NVLink domain", "several domains": "across NVLink domains"}


def family_text(spread: Spread) -> str:
    """The runs on which a spread is based, in words: `3,136 measured runs, 145 of them of dense
    models with megatron-core on Hopper GPUs, within one NVLink domain`."""
    if spread.rests_on:
        return spread.rests_on
    known = f"{spread.all_rows:,} measured runs"
    if not any(spread.family):
        return f"all {known}, as none is much like this one"
    framework, architecture, scale, model = spread.family
    models = f" of {model_words(model)}" if model else ""
    gpus = f"{architecture_text(architecture)} GPUs" if architecture else "other GPUs"
    place = f", {_SCALES[scale]}" if scale else ""
    named = "other frameworks" if framework in ("", UNFAMILIAR) else framework
    return f"{known}, {spread.rows:,} of them{models} with {named} on {gpus}{place}"


def learnt_text(runs: int, width: float) -> str:
    """The basis, in words, of an error bar that was calibrated on the user's own runs. If the bar
    is not narrower than without them, the text adds why. `runs`: their number; `width`: width of
    the bar over its width without them."""
    known = f"{'1 run' if runs == 1 else f'{runs:,} runs'} of this cluster, which calibrated it"
    if width < 1.0:
        return known
    if runs > 1:
        return f"{known}, but disagree with each other: wider than without them"
    why = "but one run cannot tell its own noise from what all runs of a cluster share"
    if width > 1.0:
        return f"{known}, {why}, and it lies far off: wider than without it"
    return f"{known}, {why}: no narrower than without it"


def step_time_interval(
    job: Job,
    step_time_s: float,
    without: str = "",
    at: Conditions | None = None,
    doubt: Doubt = NO_DOUBT,
) -> Interval:
    """80 % interval of the true step time, s; `at`: conditions of its configuration; `doubt`:
    distribution over open facts, whose median is the step time.

    All intervals of step times are made here, so this function keeps them physical: they end where
    the GPUs would exceed their fastest known rate (`least_step_s`).
    """
    interval = _interval(step_time_s, *spread_of(job, "time", without, at), doubt)
    floor_s = step_time_s * (at.least * at.fewest if at else 0.0)
    return interval.model_copy(update={"low": max(interval.low, floor_s)})


def peak_interval(
    job: Job, peak_bytes: float, without: str = "", doubt: Doubt = NO_DOUBT
) -> Interval:
    """80 % interval of the true peak, bytes; `doubt` as for the step time."""
    return _interval(peak_bytes, *spread_of(job, "memory", without), doubt)


def _interval(value: float, spread: Spread, further: Further, doubt: Doubt) -> Interval:
    low, high = log_bounds(spread, doubt)
    return Interval(
        low=value * exp(low),
        high=value * exp(high),
        family=family_text(spread),
        beyond=further.reasons,
    )


def fit_probability(
    job: Job, peak_bytes: float, limit_bytes: float, without: str = "", doubt: Doubt = NO_DOUBT
) -> float:
    """Probability that the true peak stays within the limit; `without`: a source to leave out;
    `doubt`: distribution over open facts, whose median is the peak."""
    if limit_bytes <= 0.0:
        return 0.0
    spread, _ = spread_of(job, "memory", without)
    return doubt.about_median.below(spread.below, log(limit_bytes / peak_bytes))
