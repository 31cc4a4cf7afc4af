"""Open facts of a launch: those that no file, default or preset decides. The launch is predicted
over their plausible values, just as a measured run is over the empty cells of its row.

Only facts decided by the program that is started, when its source is not available, are open;
defaults of the framework are known. The plan shown uses the defaults; its error bars and its
probability of fitting come from the mixture over all values
(`planner.predict.uncertainty.open_mixture`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp
from typing import Any

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from planner.evidence.runs.open_facts import Fact, fact_named, varied
from planner.evidence.runs.plausible import Prior, priors
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.quantities import gib, seconds
from planner.job.request_fields import Launched
from planner.launch.check.request import variation
from planner.predict.evaluate import Proposal
from planner.predict.plan import Plan
from planner.predict.uncertainty import open_mixture
from planner.predict.uncertainty.families import Figure
from planner.predict.uncertainty.intervals import fit_probability, in_doubt

Change = Callable[[Proposal], Proposal]
# The source of a measured run could have stated the fact and did not, which is a hint. Files that
# cannot state it give no hint, so the default is as likely as the other values.
_SILENCE = 0.5


def _asking(**fields: Any) -> Change:
    return lambda proposal: proposal.changed(fields, proposal.degrees)


def _recomputing(mode: str) -> Change:
    return lambda proposal: proposal.changed({}, proposal.degrees, mode)


def _using(name: str) -> Change:
    """The change that switches on a variation of the profile, by name."""

    def change(proposal: Proposal) -> Proposal:
        request = proposal.request
        launched = request.overrides.launched or Launched()
        tables = {name: variation(name, request.framework).tables}
        using = replace(launched, variations={**launched.variations, **tables})
        return proposal.changed(request.launched_as(using), proposal.degrees)

    return change


def _vocabulary(size: int) -> Change:
    def change(proposal: Proposal) -> Proposal:
        overrides = proposal.request.overrides
        model = overrides.model and overrides.model.model_copy(update={"vocab": size})
        return proposal.changed({"overrides": replace(overrides, model=model)}, proposal.degrees)

    return change


# The change that gives a launch a value, by the fact and the cell that states the value in a
# measured run.
_SETTINGS: Mapping[str, Mapping[str, Change]] = {
    "recompute": {mode: _recomputing(mode) for mode in ("none", "full", "selective")},
    "flash": {"y": _asking(attention="flash"), "n": _asking(attention="eager")},
    "compile": {"n": _asking(), "y": _using("compiled-blocks")},
    "loss": {"plain": _asking(), "liger": _using("fused-linear-loss")},
    "vocab": {str(size): _vocabulary(size) for size in (32_000, 50_304, 128_256, 151_936)},
}


def opened_facts(
    left_open: Sequence[str], proposal: Proposal, job: Job, plan: Plan
) -> tuple[open_mixture.OpenFact, ...]:
    """The open facts of a launch, each with the effect of its possible values on the plan. Facts
    with no effect on time and memory are left out. `left_open`: names of the facts."""
    known = priors(varied()) if left_open else {}
    facts = (
        _opened(fact_named(name), known[name], proposal, job, plan)
        for name in left_open
        if name in known and name in _SETTINGS
    )
    return tuple(fact for fact in facts if fact.moves("time") or fact.moves("memory"))


def _opened(
    fact: Fact, prior: Prior, proposal: Proposal, job: Job, plan: Plan
) -> open_mixture.OpenFact:
    weights = prior.weights([value.cell for value in fact.values], fact.group(job), 0)
    values = tuple(
        open_mixture.OpenValue(value.words, value.cell, weights[value.cell], effects)
        for value in fact.values
        if (change := _SETTINGS[fact.column].get(value.cell)) is not None
        for effects in _effects(change(proposal), plan)
    )
    return open_mixture.OpenFact(fact.column, _SILENCE, values, fact.called)


def _effects(proposal: Proposal, plan: Plan) -> Iterator[dict[Figure, float]]:
    """The effect of one value of a fact: for step time and memory, ln(with this value / with the
    default). Nothing if the framework cannot have the value. `proposal`: the launch with the value;
    `plan`: with the default."""
    try:
        other = proposal.plan()
    except (UsageError, HardwareError, ConstraintError):
        return
    pairs: dict[Figure, tuple[float, float]] = {
        "time": (other.step_time_s, plan.step_time_s),
        "memory": (other.peak_bytes, plan.peak_bytes),
    }
    yield {figure: open_mixture.effect_of(*pair) or 0.0 for figure, pair in pairs.items()}


def plan_in_doubt(plan: Plan, job: Job, opened: tuple[open_mixture.OpenFact, ...]) -> Plan:
    """The plan with error bars and a probability of fitting that also cover the open facts;
    unchanged if there are none."""
    if not opened:
        return plan
    time, memory = (open_mixture.total_doubt(opened, figure) for figure in ("time", "memory"))
    changed: dict[str, Any] = {
        "step_time": in_doubt(plan.step_time, plan.step_time_s, time),
        "peak_interval": in_doubt(plan.peak_interval, plan.peak_bytes, memory),
    }
    if memory != open_mixture.NO_DOUBT:
        middle = plan.peak_bytes * exp(memory.median)
        fits = fit_probability(job, middle, plan.limit_bytes, doubt=memory)
        changed["fit_probability"] = fits
    return plan.model_copy(update=changed)


def opened_sentences(plan: Plan, opened: tuple[open_mixture.OpenFact, ...]) -> dict[Figure, str]:
    """For step time and for memory: the open fact that would narrow the error bar most, with the
    prediction for each of its values."""
    figures: dict[Figure, tuple[float, Callable[[float], str]]] = {
        "time": (plan.step_time_s, seconds),
        "memory": (plan.peak_bytes, lambda size: f"{gib(size)} GiB"),
    }
    return {
        figure: open_mixture.open_sentence(fact, figure, value, unit)
        for figure, (value, unit) in figures.items()
        if (fact := open_mixture.narrowing(opened, figure)) is not None
    }
