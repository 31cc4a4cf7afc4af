"""One recipe as it ran, as it is predicted, and the best plan of its job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from hardware.files import shipped_toml
from planner.cost.terms import TIME_WORDS
from planner.evidence.runs.mapping import MappedRow
from planner.evidence.runs.predict import Prediction, cost_predictions
from planner.evidence.runs.rows import MeasuredRow
from planner.evidence.runs.worst import term_seconds
from planner.job.frameworks.switches import has_technique, site_of, with_techniques
from planner.job.frameworks.techniques import decide
from planner.job.job import SURE_TO_FIT, Job, searched_modes
from planner.job.quantities import seconds
from planner.predict.configuration import even_layout, in_mode
from planner.predict.plan import Plan
from planner.predict.plan_text import configuration_text, degrees_text
from planner.predict.techniques import works_with
from planner.predict.uncertainty.differences import Ratio, Standing, degrees_of, standing_of
from planner.predict.uncertainty.intervals import fit_probability
from planner.predict.uncertainty.measured_range import UNKNOWN
from planner.predict.uncertainty.selection import expected_ratio
from planner.search.near_plans import rivals_of
from planner.search.trial import try_job

# A claimed gain from which on it is explained.
NOTABLE = 0.10
# A prediction of the recipe itself that errs by more says nothing of other degrees.
TOO_FAR = 0.10
_SAME = 1e-3
# What falls by less of the step time is not named beside what falls most.
_COUNTS = 0.005
# Of a plan that is faster by more than NOTABLE and as likely no faster.
NOT_CLAIMED = "no gain is claimed, because the best of many plans is partly lucky"
# Limits by probability are found by bisection: the recipe itself must lie within its.
_BISECTED = 1e-3


Verdict = Literal["as good", "gain", "within the error bar", "cannot tell", "lost"]


@dataclass(frozen=True)
class RecipeComparison:
    """A recipe and the best plan of its job. Seconds a step; probabilities and shares, not percent.

    `peak_share`: the recipe's predicted peak over the memory there is. `gain`: step time that the
    best plan saves of what is predicted for the recipe, negative where it is slower; None where
    nothing fits as surely. `expected`: the recipe's time over the best plan's as expected of a
    winner (`planner.predict.uncertainty.selection`), with its 80 % interval; `rivals`: how many
    plans it won against. `verdict`: a search should have found the recipe (`lost`); the best
    plan is at most NOTABLE faster (`as good`); it is, by other degrees alone, but the prediction of
    the recipe itself is off by all that was published of it (`cannot tell`), or the interval of
    what is expected of it reaches no gain (NOT_CLAIMED); or it is a `gain`. `unused_gain`: what it
    would save at its degrees with the plan's techniques that no published recipe of the job has.
    `reason`: what the plan has otherwise, by which terms of the predicted step time, and where one
    cannot tell the run that would.
    """

    source: str
    model: str
    gpus: str
    precision: str
    framework: str
    mixture: bool
    recipe: str
    measured_s: float
    predicted_s: float
    probability: float
    peak_share: float
    best: str
    best_s: float | None
    best_probability: float | None
    gain: float | None
    expected: Ratio | None
    rivals: int
    unused_gain: float
    verdict: Verdict
    reason: str

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted_s / self.measured_s - 1.0


def recipe_rows(rows: Iterable[MeasuredRow]) -> list[MeasuredRow]:
    """Rows of recipes that state their degrees and a step time."""
    listed = shipped_toml("tests.recipes", "recipes.toml")["source"]
    sources = {source["name"] for source in listed}
    return [
        row
        for row in rows
        if row.source in sources and row.measurement("step_time_s")
        if all(map(row.text, ("tp", "pp", "gbs", "mbs")))
    ]


# Jobs that were searched, their fastest plans, and those that these won against.
Rivals = list[Standing]
Searched = list[tuple[Job, Plan | None, Rivals]]


@dataclass
class PublishedRecipes:
    """What recipes of one job have, by the names of techniques, and the step times measured of each
    configuration."""

    techniques: set[str] = field(default_factory=set)
    measured_s: dict[object, list[float]] = field(default_factory=dict)


def published(predictions: Iterable[Prediction]) -> dict[object, PublishedRecipes]:
    """Recipes by their job."""
    found: dict[object, PublishedRecipes] = {}
    for one in predictions:
        mapped, measured_s = one.mapped, one.measured("step_time_s")
        if mapped is None or measured_s is None:
            continue
        profile = mapped.job.framework
        of_job = found.setdefault(_job_key(mapped), PublishedRecipes())
        had = (each for each in profile.techniques if has_technique(profile, each))
        of_job.techniques |= {each.name for each in had}
        of_job.measured_s.setdefault((mapped.degrees, mapped.mode.name), []).append(measured_s)
    return found


def _job_key(mapped: MappedRow) -> object:
    job = mapped.job
    gpus = job.cluster.gpu.name, job.cluster.num_gpus
    return job.model.name, *gpus, job.precision, job.seq, mapped.degrees.gbs


def compare_recipe(
    prediction: Prediction, searched: Searched, recipes: Mapping[object, PublishedRecipes]
) -> RecipeComparison | None:
    """The recipe beside the best plan; None where it is not predicted, or one of its degrees is
    beyond a search (its batch is not mbs·grad_acc·dp). `searched` grows by its job."""
    mapped, predicted_s = prediction.mapped, prediction.step_time_s
    measured_s, peak = prediction.measured("step_time_s"), prediction.memory_bytes()
    if mapped is None or predicted_s is None or measured_s is None or peak is None:
        return None
    if abs(mapped.batch_share - 1.0) > _SAME:
        return None
    job, of_job = mapped.job, recipes[_job_key(mapped)]
    asked = fit_probability(job, peak, job.hbm_limit_bytes) - _BISECTED
    asked = min(SURE_TO_FIT, max(_BISECTED, asked))
    plan, rivals = _best(replace(search_job(mapped), fit_probability=asked), searched)
    expected = None if plan is None else _expected(prediction, mapped, plan, rivals)
    unused = () if plan is None else _unused(mapped, plan, of_job)
    unused_s = _with_techniques_s(prediction, mapped, unused) if unused else predicted_s
    times_s = of_job.measured_s[mapped.degrees, mapped.mode.name]
    verdict = _verdict(plan, expected, predicted_s, unused_s, times_s)
    reason = "" if plan is None else _reason(prediction, mapped, plan, predicted_s, unused)
    if plan is not None and verdict == "cannot tell":
        reason += _telling_run(prediction, mapped, plan)
    if expected is not None and verdict == "within the error bar":
        reason += f"; {NOT_CLAIMED}"
    return RecipeComparison(
        source=prediction.row.source,
        model=job.model.name,
        gpus=f"{job.cluster.num_gpus:,} {job.cluster.gpu.name}",
        precision=job.precision,
        framework=job.framework.name,
        mixture=job.model.moe is not None,
        recipe=f"{degrees_text(mapped.degrees)}, {mapped.degrees.mbs}×{mapped.degrees.grad_acc}, "
        f"{mapped.mode.name}",
        measured_s=measured_s,
        predicted_s=predicted_s,
        probability=fit_probability(job, peak, job.hbm_limit_bytes, prediction.row.source),
        peak_share=peak / job.hbm_limit_bytes,
        best="" if plan is None else configuration_text(plan),
        best_s=None if plan is None else plan.step_time_s,
        best_probability=None if plan is None else plan.fit_probability,
        gain=None if plan is None else 1.0 - plan.step_time_s / predicted_s,
        expected=expected,
        rivals=len(rivals),
        unused_gain=1.0 - unused_s / predicted_s,
        verdict=verdict,
        reason=reason,
    )


def _unused(mapped: MappedRow, plan: Plan, of_job: PublishedRecipes) -> tuple[str, ...]:
    """The plan's techniques that no recipe of the job has, and that work at this one's degrees."""
    known = [mapped.job.framework.technique(name) for name in plan.techniques]
    return tuple(
        one.name
        for one in known
        if one and not one.profile and one.name not in of_job.techniques
        if works_with(mapped.job, mapped.degrees, one.name)
    )


def _with_techniques_s(prediction: Prediction, mapped: MappedRow, names: tuple[str, ...]) -> float:
    """Predicted seconds of the recipe with techniques besides its own."""
    job = replace(mapped.job, framework=with_techniques(mapped.job.framework, names))
    (other,) = cost_predictions([replace(prediction, mapped=replace(mapped, job=job))])
    return float(other.step_time_s or 0.0)


def search_job(mapped: MappedRow) -> Job:
    """The job of a recipe with its degrees open: what it states of software stays, as if it were
    asked for; further techniques of its framework are on or tried where a search takes them; its
    recompute mode is among those tried."""
    job = mapped.job
    modes = searched_modes(job.model, job.framework)
    names = {mode.modules for mode in modes}
    modes = modes if mapped.mode.modules in names else (*modes, mapped.mode)
    site = site_of(job.framework, job.model, job.cluster, inside=True)
    asked = tuple(
        one.name
        for one in job.framework.techniques
        if one.effect != "speed" and not one.profile and not site.obstacle(one)
        if has_technique(job.framework, one)
    )
    decision = decide(job.framework.name, job.framework.techniques, asked, (), site)
    return replace(
        job,
        framework=with_techniques(job.framework, decision.used),
        recompute=modes,
        techniques=decision.used,
        technique_choices=decision.choices,
    )


def _best(job: Job, searched: Searched) -> tuple[Plan | None, Rivals]:
    """The fastest plan of a job, and those that it won against."""
    for other, plan, rivals in searched:
        if other == job:
            return plan, rivals
    trial = try_job(lambda: job)
    plan = None if trial is None else trial.plan()
    rivals = [] if trial is None else rivals_of(trial.explorer.explorers)
    searched.append((job, plan, rivals))
    return plan, rivals


def _expected(prediction: Prediction, mapped: MappedRow, plan: Plan, rivals: Rivals) -> Ratio:
    """The recipe's time over the plan's, as expected of a winner beside what was tuned."""
    job, profile, degrees = mapped.job, mapped.job.framework, mapped.degrees
    winner = standing_of(plan, "", job.model.moe is not None)
    known = [profile.technique(name) for name in plan.techniques]
    has = frozenset(one.name for one in known if one and has_technique(profile, one))
    time_s, at = prediction.step_time_s or plan.step_time_s, prediction.conditions or UNKNOWN
    recipe = winner._replace(
        degrees=degrees_of(degrees),
        tokens=degrees.mbs * job.seq / degrees.cp,
        switches=(degrees.zero, mapped.mode.name, *winner.switches[2:]),
        techniques=has,
        exposed=at.exposed,
        pace=winner.pace * time_s / plan.step_time_s,
    )
    return expected_ratio(winner, recipe, rivals, tuned=True)


def _verdict(
    plan: Plan | None,
    expected: Ratio | None,
    predicted_s: float,
    unused_s: float,
    times_s: Sequence[float],
) -> Verdict:
    """What a difference is: see `RecipeComparison`."""
    gain = -1.0 if plan is None else 1.0 - plan.step_time_s / predicted_s
    if plan is None or gain < -_SAME:
        return "lost"
    if gain <= NOTABLE:
        return "as good"
    low_s, high_s = (1.0 - TOO_FAR) * min(times_s), (1.0 + TOO_FAR) * max(times_s)
    off = not low_s <= predicted_s <= high_s
    if off and 1.0 - plan.step_time_s / unused_s > NOTABLE:
        return "cannot tell"
    return "gain" if expected is not None and expected.low > 1.0 else "within the error bar"


def _reason(
    prediction: Prediction,
    mapped: MappedRow,
    plan: Plan,
    predicted_s: float,
    unused: tuple[str, ...],
) -> str:
    """What the best plan has otherwise, and the terms of the step time that it shortens most."""
    if abs(plan.step_time_s / predicted_s - 1.0) <= _SAME:
        return "the same time"
    names = ["tp", "pp", "vpp", "cp", "ep", "zero", "shard", "mbs"]
    names += ["etp"] if mapped.job.model.moe else []
    changed = _changed_degrees(mapped, plan, names)
    if plan.recompute != mapped.mode.name:
        changed.append(f"recompute {mapped.mode.name}→{plan.recompute}")
    profile = mapped.job.framework
    for name in plan.techniques:
        technique = profile.technique(name)
        if technique is not None and not has_technique(profile, technique):
            changed.append(f"{name} (unused)" if name in unused else name)
    what = ", ".join(changed) or "the same degrees, layers split otherwise"
    return ": ".join(filter(None, (what, falling_terms(prediction, plan))))


def _changed_degrees(mapped: MappedRow, plan: Plan, names: Iterable[str]) -> list[str]:
    pairs = ((name, getattr(mapped.degrees, name), getattr(plan.degrees, name)) for name in names)
    return [f"{name} {before}→{after}" for name, before, after in pairs if before != after]


# Of a gain, what a change brings that stands for the plan.
_MOST_OF_IT = 0.5
# Degrees that change together.
_TOGETHER = (("tp", "etp"), ("pp", "vpp"), ("cp",), ("ep",), ("zero", "shard"), ("mbs",))


def _telling_run(prediction: Prediction, mapped: MappedRow, plan: Plan) -> str:
    """The measurement that is missing: the recipe with that one of the plan's changes by which it
    would save most and still fit as surely; the plan itself where no change alone brings half of
    the gain."""
    trials = list(_single_changes(mapped, plan))
    costed = cost_predictions([replace(prediction, mapped=trial) for _, trial in trials])
    times_s = [
        (one.step_time_s or inf, text)
        for (text, _), one in zip(trials, costed, strict=True)
        if _fits(one, min(SURE_TO_FIT, plan.fit_probability))
    ]
    seconds, text = min(times_s, default=(inf, ""))
    before_s = prediction.step_time_s or 0.0
    if before_s - seconds < _MOST_OF_IT * (before_s - plan.step_time_s):
        return "; a run of this plan would tell"
    return f"; a run of the recipe with {text} alone would tell, predicted {seconds:.3g} s"


def _fits(prediction: Prediction, sure: float) -> bool:
    """Whether a run would fit with a probability, as a search reckons it."""
    peak, mapped = prediction.memory_bytes(), prediction.mapped
    if peak is None or mapped is None:
        return False
    return fit_probability(mapped.job, peak, mapped.job.hbm_limit_bytes) >= sure - _BISECTED


def _single_changes(mapped: MappedRow, plan: Plan) -> Iterator[tuple[str, MappedRow]]:
    """(in words, the recipe with it) of each change of a plan that is legal alone."""
    degrees = mapped.degrees
    for names in _TOGETHER:
        if not (changed := _changed_degrees(mapped, plan, names)):
            continue
        changes = {name: getattr(plan.degrees, name) for name in names}
        new = degrees.model_copy(update=changes).filling(degrees.gpus, degrees.gbs)
        if new is not None and new.stage_gpus % new.expert_ranks == 0:
            even = even_layout(mapped.job, new.pp, new.vpp, mapped.mode)
            yield ", ".join(changed), replace(mapped, degrees=new, layout=even)
    for mode in search_job(mapped).recompute:
        if mode.name == plan.recompute != mapped.mode.name:
            job = replace(mapped.job, recompute=(mode,))
            layout = in_mode(mapped.layout, mode)
            yield f"recompute {mode.name}", replace(mapped, job=job, mode=mode, layout=layout)
    profile = mapped.job.framework
    for name in plan.techniques:
        technique = profile.technique(name)
        if technique is None or has_technique(profile, technique):
            continue
        if works_with(mapped.job, degrees, name):
            used = replace(mapped.job, framework=with_techniques(profile, (name,)))
            yield name, replace(mapped, job=used)


def falling_terms(prediction: Prediction, plan: Plan) -> str:
    """The terms of the step time that the plan shortens most, at most two, the second only where it
    counts: `pipeline bubble and waiting −0.410 s, exposed TP traffic −0.120 s`."""
    theirs = {words: getattr(plan.time, name) for name, words in TIME_WORDS.items()}
    saved = {words: took - theirs[words] for words, took in term_seconds(prediction).items()}
    first, *others = sorted(saved.items(), key=lambda item: -item[1])[:2] or [("", 0.0)]
    least_s = _COUNTS * (prediction.step_time_s or 0.0)
    falling = [first, *(item for item in others if item[1] >= least_s)]
    return ", ".join(f"{words} −{seconds(saved_s)}" for words, saved_s in falling if saved_s > 0.0)
