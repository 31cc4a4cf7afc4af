"""Configurations that short runs can try: plans of a search, their neighbours, smaller forms.

A candidate is one configuration of a job with its prediction. A smaller form has fewer
data-parallel replicas or fewer micro-batches. It costs less to run, and it informs about the whole
form because both share part of their error (`planner.tune.belief`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.evidence.learn.suggest import smaller_degrees
from planner.evidence.runs.mapping import planned_row
from planner.evidence.runs.predict import Prediction, cost_predictions
from planner.evidence.runs.rows import MeasuredRow
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.predict.configuration import (
    Configuration,
    decided_request,
    even_layout,
    job_split,
)
from planner.predict.costed_plan import configured_plan
from planner.predict.evaluate import Proposal
from planner.predict.plan import Degrees, Plan
from planner.predict.uncertainty.selection import REACH
from planner.search.launchable import SILENT, LaunchNotes
from planner.search.limit_results import Effort
from planner.search.near_plans import fastest_of_each
from planner.search.result import SearchResult
from planner.search.search import launchable_shares
from planner.search.shares import CostedJob

# Most candidates of a job: each further one is slower than the last and adds little.
MOST_CANDIDATES = 60
# A plan with a lower probability of fitting is not worth a start.
LEAST_FIT = 0.2
_NAMED = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "mbs", "grad_acc")
_ALWAYS = ("tp", "pp", "dp", "zero", "mbs", "grad_acc")


@dataclass(frozen=True, eq=False)
class Candidate:
    """One configuration that can be tried, with its prediction.

    `key`: its configuration as stable text, unique in a study. `request` and `plan`: for writing
    launch files; None for a recorded run. `smaller_of`: the key of the candidate of which this is a
    smaller form; empty if it runs the job's own batch on all its GPUs.
    """

    key: str
    prediction: Prediction
    request: Request | None = None
    plan: Plan | None = None
    smaller_of: str = ""

    @property
    def configuration(self) -> Configuration:
        """Job, degrees, recompute mode and layout."""
        return self.prediction.configured

    @property
    def degrees(self) -> Degrees:
        """The parallel degrees and the batch."""
        return self.configuration.degrees

    @property
    def gpus(self) -> int:
        """The number of GPUs that it runs on."""
        return self.degrees.gpus

    @cached_property
    def step_s(self) -> float:
        """Expected seconds of a step. ValueError if the row leaves out a fact that decides them."""
        seconds = self.prediction.expected_step_time_s
        if seconds is None:
            raise ValueError(f"{self.key} has no predicted step time")
        return seconds

    @cached_property
    def fits(self) -> float:
        """Probability that it fits in memory; 1 if its memory is not predicted."""
        found = self.prediction.fit_probability
        return 1.0 if found is None else found

    @property
    def peak_bytes(self) -> float | None:
        """The predicted peak of a GPU's memory."""
        return self.prediction.memory_bytes()


def configuration_key(configuration: Configuration) -> str:
    """A configuration as stable text: `tp 2, pp 1, dp 32, zero 1, mbs 1, grad_acc 8, recompute
    none`, then its other choices."""
    job, degrees = configuration.job, configuration.degrees
    parts = [
        f"{name} {getattr(degrees, name)}"
        for name in _NAMED
        if name in _ALWAYS or getattr(degrees, name) > 1
    ]
    parts.append(f"recompute {configuration.mode.name}")
    return ", ".join([*parts, *_further(configuration, job_split(job, degrees.pp * degrees.vpp))])


def _further(configuration: Configuration, usual: tuple[int, ...]) -> Iterator[str]:
    """The choices of a configuration beyond its degrees, as text."""
    job, layout = configuration.job, configuration.layout
    if tuple(layout.block_layers) != tuple(usual):
        yield f"layers {'/'.join(map(str, layout.block_layers))}"
    recomputed = {mode: counts for mode, counts in layout.recomputed.items() if any(counts)}
    if recomputed and recomputed != {configuration.mode.name: layout.stage_layers}:
        yield "recomputed " + " and ".join(
            f"{'/'.join(map(str, counts))} {mode}" for mode, counts in recomputed.items()
        )
    if layout.mtp_standalone:
        yield "multi-token prediction alone"
    if job.techniques:
        yield f"with {' '.join(job.techniques)}"
    if job.optimizer_offload:
        yield f"optimizer offload {job.optimizer_offload:g}"
    if job.activation_offload:
        yield f"offloaded {'+'.join(job.activation_offload)} {job.offload_fraction:g}"
    if configuration.degrees.cp > 1:
        yield f"exchange {' '.join(map(str, job.context_kinds))}"


def planned_candidates(request: Request, plans: Iterable[Plan]) -> list[Candidate]:
    """The plans of a request as candidates, each configuration once."""
    found: dict[str, Candidate] = {}
    for plan in plans:
        one = _planned(request, plan)
        found.setdefault(one.key, one)
    return _costed(found.values())


def _planned(request: Request, plan: Plan, smaller_of: str = "") -> Candidate:
    decided = decided_request(request, plan)
    mapped = planned_row(MeasuredRow("candidate", 0, {}), decided.resolve(), plan)
    prediction = Prediction(mapped.row, mapped)
    return Candidate(configuration_key(mapped), prediction, decided, plan, smaller_of)


def _costed(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The same candidates, their predictions costed together."""
    listed = list(candidates)
    costed = cost_predictions(in_common([one.prediction for one in listed]))
    return [replace(one, prediction=found) for one, found in zip(listed, costed, strict=True)]


def in_common(predictions: Iterable[Prediction]) -> list[Prediction]:
    """The same predictions; those with equal clusters and frameworks share one object of each, so
    that one cost model serves all of them."""
    found, known = [], list[Any]()
    for one in predictions:
        job = one.job
        cluster, framework = _first_equal(known, job.cluster), _first_equal(known, job.framework)
        shared = replace(job, cluster=cluster, framework=framework)
        found.append(replace(one, mapped=replace(one.configured, job=shared)))
    return found


def _first_equal(known: list[Any], value: Any) -> Any:
    """The first known value that equals the given one; a new value is added to the known ones."""
    for one in known:
        if one is value or one == value:
            return one
    known.append(value)
    return value


def candidates_of_result(
    result: SearchResult, *, most: int = MOST_CANDIDATES, launch: LaunchNotes = SILENT
) -> list[Candidate]:
    """Candidates for the job of a plan file, fastest first: its plans, its riskier plans, and the
    fastest plan near the front for each combination of degrees, micro-batch and recompute mode.
    Unlikely fits are left out, unless all are unlikely."""
    request = result.request
    plans = [*result.plans, *result.riskier, *near_plans(request, most, launch)]
    found = planned_candidates(request, plans)
    likely = [one for one in found if one.fits >= LEAST_FIT] or found
    return sorted(likely, key=lambda one: (one.step_s * one.gpus / one.degrees.gbs, one.key))[:most]


def near_plans(
    request: Request, most: int = MOST_CANDIDATES, launch: LaunchNotes = SILENT
) -> list[Plan]:
    """Plans that may fit, in even layouts, within `REACH` of the fastest: one for each combination
    of degrees, micro-batch and recompute mode, fastest first. UsageError if none is legal."""
    near: list[tuple[float, CostedJob, int]] = []
    for costed_job in launchable_shares(request.resolve(), launch).jobs:
        near += _near_rows(costed_job)
    near.sort(key=lambda one: one[0])
    limit = near[0][0] * float(np.exp(REACH)) if near else 0.0
    return [_row_plan(job, row) for seconds, job, row in near[:most] if seconds <= limit]


def _near_rows(costed_job: CostedJob) -> Iterator[tuple[float, CostedJob, int]]:
    """(seconds per sequence, job, row) of the rows that may fit, the fastest of each combination of
    degrees, micro-batch and recompute mode."""
    explorer = costed_job.explorer(Effort(), LEAST_FIT)
    columns, seconds = costed_job.candidates.columns, explorer.sample_s
    rows = np.flatnonzero(explorer.peak <= explorer.limit_bytes)
    names = ("tp", "pp", "cp", "ep", "mbs", "recompute")
    keys: NDArray[np.int64] = np.array([columns[name][rows] for name in names]).T
    for row in rows[fastest_of_each(keys, seconds[rows])].tolist() if len(rows) else ():
        yield float(seconds[row]), costed_job, row


def _row_plan(costed_job: CostedJob, row: int) -> Plan:
    """The plan of a row, in its even layout."""
    job, columns = costed_job.job, costed_job.candidates.columns
    pp, vpp = int(columns["pp"][row]), int(columns["vpp"][row])
    layout = even_layout(job, pp, vpp, job.recompute[int(columns["recompute"][row])])
    configuration = Configuration.of_row(job, columns, row, layout)
    return configured_plan(
        configuration, costed_job.cost_model, "evaluated", 0.0, costed_job.costed.only(row)
    )


def smaller_forms(candidate: Candidate) -> list[Candidate]:
    """The forms of a candidate with fewer replicas or micro-batches that the rules allow, largest
    first. Empty for a candidate that is itself a smaller form, and for a recorded run."""
    request, plan = candidate.request, candidate.plan
    if request is None or plan is None or candidate.smaller_of:
        return []
    found: dict[str, Candidate] = {}
    for degrees in smaller_degrees(plan.degrees):
        one = _smaller(candidate, request, plan, degrees)
        if one is not None and one.key != candidate.key:
            found.setdefault(one.key, one)
    return _costed(found.values())


def _smaller(
    candidate: Candidate, request: Request, plan: Plan, degrees: Degrees
) -> Candidate | None:
    """The candidate with other numbers of replicas and micro-batches; None if a rule forbids it."""
    proposal = Proposal.of_plan(request, plan)
    batch = {"gbs": degrees.gbs, "gbs_tokens": None, "batch_ramp": None}
    if degrees.gpus != plan.degrees.gpus:
        machine = proposal.request.on_gpus(degrees.gpus)
        if machine is None:
            return None
        batch |= machine
    try:
        changed = proposal.changed(batch, degrees)
        return _planned(changed.request, changed.plan(), candidate.key)
    except UsageError:
        return None


def recorded_candidates(predictions: Sequence[Prediction]) -> list[Candidate]:
    """Recorded runs as candidates of a replay."""
    return [
        Candidate(f"{number}, {one.row.place}: {configuration_key(one.configured)}", one)
        for number, one in enumerate(predictions, start=1)
    ]
