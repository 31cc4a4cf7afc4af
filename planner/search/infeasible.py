"""Find out why nothing fits: a minimal set of the user's choices and rules, and what would fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner._version import __version__
from planner.job.job import Job
from planner.job.request import Request
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.predict.uncertainty.likely import EVEN_CHANCE
from planner.search.changes import EFFORT, KINDS, Changes, Situation, dropped_choices, everything
from planner.search.infeasibility import (
    UNDECIDED_RULES,
    ConflictingRule,
    DoesNotFitError,
    Relaxation,
    Verdict,
    WhyNothingFits,
    silent,
)
from planner.search.limit_results import Progress, Until
from planner.search.memory_conflict import layout_rules, lightest_plan, memory_rule
from planner.search.shares import CostedShares, SharesExplorer
from planner.search.trial import try_job

# Kinds of changes that do not build on each other.
_INDEPENDENT = ("condition", "limit")
# Kinds that need other machines, and those that change the trained model.
_MACHINES = ("gpus", "gpu-type")
_OTHER_TRAINING = ("optimizer", "dtype", "sequence", "batch")


def nothing_fits(
    request: Request,
    shares: CostedShares,
    explorer: SharesExplorer,
    *,
    relaxed: bool = True,
    riskier: tuple[Plan, ...] = (),
    verdict: Verdict = silent,
) -> DoesNotFitError:
    """The error to raise when no plan fits; with `relaxed`, search what would fit.

    `verdict` is called with the explanation before that search begins. The explorer's deadline
    applies to everything, and Ctrl-C ends it with what is known. If offload or techniques were
    open, the explanation is about the choice with the lightest configuration. `riskier`: plans that
    may fit, but less surely than requested.
    """
    until = Until(explorer.effort.deadline)
    with until.interruptible():
        why, at = _explained(request, shares, explorer, until)
        why = why.model_copy(update={"riskier": riskier})
        verdict(why)
        found, in_vain = find_relaxations(at, explorer.progress) if relaxed else ([], [])
    helping = tuple(change for change in found if not _is_there_already(change.plan, riskier))
    known = {"relaxations": helping, "in_vain": tuple(in_vain)}
    cut = {"stopped": until.stopped, "untried": until.untried}
    return DoesNotFitError(why.model_copy(update=known | cut))


def _is_there_already(plan: Plan, riskier: Sequence[Plan]) -> bool:
    """Whether a plan that may fit without any change is as fast and as sure."""
    return any(
        other.tokens_per_s >= plan.tokens_per_s * (1.0 - OPTIMAL_WITHIN)
        and other.fit_probability >= plan.fit_probability
        for other in riskier
    )


def _explained(
    request: Request,
    shares: CostedShares,
    explorer: SharesExplorer,
    until: Until,
) -> tuple[WhyNothingFits, Situation]:
    """(why nothing fits, without what would fit; the job on the GPUs in use)."""
    explorer.progress("finding the rules in conflict", 0, 1)
    if shares.untried:
        until.over("choices of the offload")
    guilty, freed = guilty_choices(
        request, lambda item: until.over(UNDECIDED_RULES) or _fitting(item, shares.job)
    )
    undecided = UNDECIDED_RULES in until.untried
    if freed is not request and not undecided:
        trial = try_job(freed.resolve)
        if trial is not None:
            shares, explorer = trial.shares, trial.explorer
    # Choices of the user that have no influence on fitting.
    others = tuple(text for text in dropped_choices(request) if text not in guilty)
    innocent = () if undecided else others
    proven = explorer.climb(0)
    lightest = min(explorer.explorers, key=lambda one: float(one.peak.min()))
    doubt = " (perhaps without effect; this was not decided in time)" if undecided else ""
    conflict = (
        *(ConflictingRule(name=text.split()[0], text=f"you gave {text}{doubt}") for text in guilty),
        memory_rule(lightest, innocent),
    )
    job = lightest.cost_model.job
    at = Situation(request, request.resolve(), job.cluster.num_gpus, until)
    why = WhyNothingFits(
        planner_version=__version__,
        request=request,
        legal=sum(len(explorer.peak) for explorer in explorer.explorers),
        usable_bytes=min(on.cluster.gpu.hbm_usable_bytes for on in job.machines),
        limit_bytes=min(on.hbm_limit_bytes for on in job.machines),
        proven=proven.point is None and bool(proven.bound == float("inf")),
        conflict=conflict,
        lightest=lightest_plan(lightest),
        unmodelled=unmodelled_savings(lightest_plan(lightest), job),
        layouts=layout_rules(lightest),
        relaxations=(),
        stopped=until.stopped,
        untried=until.untried,
    )
    return why, at


def unmodelled_savings(lightest: Plan, job: Job) -> tuple[str, ...]:
    """Savings of the framework that are not modelled, if together they might make the lightest plan
    fit."""
    savings = job.framework.unmodelled_savings
    terms = {term for saving in savings for term in saving.terms}
    stage = lightest.stages[lightest.heaviest_stage]
    least = lightest.peak_bytes - sum(float(getattr(stage, term)) for term in terms)
    return tuple(saving.words for saving in savings) if least <= job.hbm_limit_bytes else ()


def guilty_choices(
    request: Request, fits: Callable[[Request], bool]
) -> tuple[tuple[str, ...], Request]:
    """A minimal set of the user's choices that prevents fitting, and the request with just those.

    Deletion filter: a choice is dropped for good if nothing fits without it either. Empty if memory
    alone excludes every plan.
    """
    kept: list[str] = []
    while left := [one for one in dropped_choices(request).items() if one[0] not in kept]:
        text, without = left[0]
        if fits(without):
            kept.append(text)
        else:
            request = without
    return tuple(kept), request


def _fitting(request: Request, job: Job) -> bool:
    """Whether a less narrow request has a plan on the GPUs in use."""
    trial = try_job(request.resolve, gpus=job.cluster.num_gpus)
    return trial is not None and trial.limit_result.point is not None


# --- what would fit ---------------------------------------------------------------------------


def find_relaxations(at: Situation, progress: Progress) -> tuple[list[Relaxation], list[str]]:
    """(the smallest verified change of each kind that gives a plan, easiest first; for each other
    kind, the last change tried)."""
    found: list[Relaxation] = []
    in_vain: list[str] = []
    for index, (kind, changes) in enumerate(KINDS.items()):
        progress(f"searching what would fit: {kind}", index, len(KINDS))
        item, vain = _smallest(at, kind, changes(at))
        found += item
        in_vain += vain
    if not found:
        found, _ = _smallest(at, "everything", everything(at))
    return sorted(found, key=_ease), in_vain


def _ease(relaxation: Relaxation) -> tuple[int, float]:
    """Sort key: options, then changes of the training, then other machines; fastest first in
    each."""
    rank = 2 if relaxation.kind in _MACHINES else 1 if relaxation.kind in _OTHER_TRAINING else 0
    return rank, relaxation.seconds_per_token


def _smallest(at: Situation, kind: str, tries: Changes) -> tuple[list[Relaxation], list[str]]:
    """The first change that fits safely and, if smaller, the first that at least probably fits; or
    the last change tried if none fits.

    Of changes that do not build on each other, every one that fits and every one that does not.
    """
    found: list[Relaxation] = []
    in_vain: list[str] = []
    all_decided, apart = True, kind in _INDEPENDENT
    safe = at.request.fit_probability
    for change in tries:
        if at.until.over(kind):
            break
        levels = [safe] if found and not apart else [safe, min(safe, EVEN_CHANCE)]
        effort = at.until.effort(EFFORT)
        trial = try_job(change.make, levels, gpus=change.gpus, effort=effort)
        plan = None if trial is None else trial.plan()
        if plan is None:
            all_decided &= trial is None or trial.proven
            in_vain.append(change.text)
            continue
        smallest = change.complete and all_decided
        found.append(Relaxation(kind=kind, change=change.text, smallest=smallest, plan=plan))
        if not apart and plan.fit_probability >= safe:
            break
    return found, in_vain if apart else [] if found else in_vain[-1:]
