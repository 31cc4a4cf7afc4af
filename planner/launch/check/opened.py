"""Facts of a launch that no file, default or preset decides: it is predicted over their plausible
values, as a measured run is over what its row leaves empty.

Only what the program decides that is started, and is not there to read, is open in a launch; what a
framework does by default is stated. The plan that is shown is that of the defaults; its error bars
and the probability that it fits are those of the mixture
(`planner.predict.uncertainty.open_mixture`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import exp
from typing import Any

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from planner.evidence.runs.open_facts import fact_named, varied
from planner.evidence.runs.plausible import Prior, priors
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.quantities import gib, seconds
from planner.launch.check.request import as_request
from planner.launch.read.found import Found
from planner.predict.plan import Plan
from planner.predict.uncertainty.families import Figure
from planner.predict.uncertainty.intervals import fit_probability, in_doubt
from planner.predict.uncertainty.open_mixture import (
    NO_DOUBT,
    OpenFact,
    OpenValue,
    effect_of,
    narrowing,
    open_sentence,
    total_doubt,
)

_LIGER_LOSS, _COMPILED = "fused-linear-loss", "compiled-blocks"


def _with(name: str) -> Callable[[Found], dict[str, Any]]:
    return lambda found: {"variations": tuple(dict.fromkeys((*found.variations, name)))}


def _vocabulary(size: int) -> Callable[[Found], dict[str, Any]]:
    return lambda found: {
        "shape": found.shape and found.shape.model_copy(update={"vocab": size}),
    }


# What states a value in a launch, by the fact and the cell that states it in a measured run.
_SETTINGS: Mapping[str, Mapping[str, Callable[[Found], dict[str, Any]]]] = {
    "recompute": {
        mode: lambda _, mode=mode: {"recompute": mode}  # type: ignore[misc]
        for mode in ("none", "full", "selective")
    },
    "flash": {
        "y": lambda _: {"attention": "flash"},
        "n": lambda _: {"attention": "eager"},
    },
    "compile": {"n": lambda _: {}, "y": _with(_COMPILED)},
    "loss": {"plain": lambda _: {}, "liger": _with(_LIGER_LOSS)},
    "vocab": {
        str(size): _vocabulary(size) for size in (32_000, 50_304, 128_256, 151_936)
    },
}  # fmt: skip


def opened_facts(
    found: Found, gpus: str | None, cluster: str | None, job: Job, plan: Plan
) -> tuple[OpenFact, ...]:
    """The open facts of a launch, with what each of their values makes of its plan."""
    known = priors(varied()) if found.left_open else {}
    facts = (
        _opened(name, known[name], found, gpus, cluster, job, plan)
        for name in found.left_open
        if name in known and name in _SETTINGS
    )
    return tuple(fact for fact in facts if fact.moves("time") or fact.moves("memory"))


def _opened(
    name: str,
    prior: Prior,
    found: Found,
    gpus: str | None,
    cluster: str | None,
    job: Job,
    plan: Plan,
) -> OpenFact:
    fact = fact_named(name)
    weights = prior.weights([value.cell for value in fact.values], fact.group(job), 0)
    values = tuple(
        OpenValue(value.words, value.cell, weights[value.cell], effects)
        for value in fact.values
        if (stated := _SETTINGS[name].get(value.cell)) is not None
        for effects in _effects(replace(found, **stated(found)), gpus, cluster, plan)
    )
    return OpenFact(name, prior.silence, values, fact.called)


def _effects(
    found: Found, gpus: str | None, cluster: str | None, plan: Plan
) -> Iterator[dict[Figure, float]]:
    """ln(with the value / by default) of step time and memory; nothing for a value that the
    framework cannot have."""
    try:
        other = as_request(found, gpus, cluster).plan()
    except (UsageError, HardwareError, ConstraintError):
        return
    pairs: dict[Figure, tuple[float, float]] = {
        "time": (other.step_time_s, plan.step_time_s),
        "memory": (other.peak_bytes, plan.peak_bytes),
    }
    yield {figure: effect_of(*pair) or 0.0 for figure, pair in pairs.items()}


def plan_in_doubt(plan: Plan, job: Job, opened: tuple[OpenFact, ...]) -> Plan:
    """The plan with error bars and a probability of fitting that count what is open."""
    if not opened:
        return plan
    time, memory = (total_doubt(opened, figure) for figure in ("time", "memory"))
    changed: dict[str, Any] = {
        "step_time": in_doubt(plan.step_time, plan.step_time_s, time),
        "peak_interval": in_doubt(plan.peak_interval, plan.peak_bytes, memory),
    }
    if memory != NO_DOUBT:
        middle = plan.peak_bytes * exp(memory.median)
        fits = fit_probability(job, middle, plan.limit_bytes, doubt=memory)
        changed["fit_probability"] = fits
    return plan.model_copy(update=changed)


def opened_sentences(plan: Plan, opened: tuple[OpenFact, ...]) -> dict[Figure, str]:
    """Of step time and memory the open fact that would narrow the bar most, with what is predicted
    with each of its values."""
    figures: dict[Figure, tuple[float, Callable[[float], str]]] = {
        "time": (plan.step_time_s, seconds),
        "memory": (plan.peak_bytes, lambda size: f"{gib(size)} GiB"),
    }
    return {
        figure: open_sentence(fact, figure, value, unit)
        for figure, (value, unit) in figures.items()
        if (fact := narrowing(opened, figure)) is not None
    }
