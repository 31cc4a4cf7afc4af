"""Assesses a launch: the rules that it breaks, whether it fits, and how fast it runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from constraints.errors import ConstraintError
from constraints.numbers import DEGREES
from constraints.registry import RULES
from hardware.errors import HardwareError
from hardware.schema import Cluster
from hardware.sharp import why_not
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.models.catalog import ResolvedModel, beside_notes
from planner.job.quantities import plural
from planner.job.request import Request
from planner.job.request_fields import Launched
from planner.job.unmodelled import modules_not_modelled
from planner.launch.check.network import NetworkCost, network_cost, network_problems
from planner.launch.check.opened import opened_facts, plan_in_doubt
from planner.launch.check.request import as_request
from planner.launch.check.rl import RlCheck, rl_check
from planner.launch.check.world import RULE as WORLD_SIZE
from planner.launch.check.world import stated_gpus, world_problems
from planner.launch.read.document import LIMIT_ALONE, NO_LENGTH, NO_RECOMPUTE
from planner.launch.read.found import Found, Problem, unresolved
from planner.launch.read.undecided import RULE as BRANCH
from planner.predict.assumptions import image_notes
from planner.predict.configuration import degree_columns
from planner.predict.evaluate import Proposal
from planner.predict.plan import Degrees, Plan
from planner.predict.plan_text import fit_verdict
from planner.predict.shapes import rule_context
from planner.predict.sharp import sharp_use
from planner.predict.uncertainty.open_mixture import OpenFact

# Degrees named in the sentence of a rule; their places in the files are shown with it.
_SPOKEN = re.compile(rf"\b({'|'.join(DEGREES)})\b")
# Settings that save memory and are not modelled.
_LEFT_OUT, _SAVES = "memory-left-out", "less memory than predicted"
# A refusal that says where a vision tower may not be placed; and one of arithmetic that torch runs
# on every GPU, if slowly (not fp8, which Transformer Engine refuses).
_UNPLACED = re.compile(r"(the vision tower of \S+?),? (?:which )?needs (tp|pp|cp) == 1")
_EMULATED = re.compile(r"has no (bf16|tf32) matrix arithmetic")
_OPTION = re.compile(r"(?<=: )(?P<has>[\w, ]+); give (--precision|a framework with) .*$")
# Rules that the framework does not have: a launch that breaks one runs, but is not modelled.
_NOT_MODELLED = {"greedy-stages-filled"}
# Rules that a reader reports itself, from the settings.
_NAMED_BY_READERS = {
    "moe-tensor-needs-sequence", "interleaving-microbatches", "layers-split", "chunks-have-layers",
}  # fmt: skip
# Errors in the number of processes, which the degrees would only repeat.
_OF_PROCESSES = {WORLD_SIZE, "launched-processes"}

Verdict = Literal["runs and fits", "will not fit", "will not run", "cannot tell"]


@dataclass(frozen=True)
class Assessment:
    """The verdict on a launch. `plan`: the prediction; None if the launch breaks a rule, is not
    modelled, or trains by reinforcement learning (then `rl` has it). `proposal`: the launch as a
    configuration; None if too little is known."""

    found: Found
    proposal: Proposal | None = None
    job: Job | None = None
    problems: tuple[Problem, ...] = ()
    plan: Plan | None = None
    # Rules that become notes if they are broken.
    ignored: tuple[str, ...] = ()
    # The effect of environment variables on the network, if there is a prediction.
    network: NetworkCost | None = None
    # Facts that no file, default or preset decides, if there is a prediction.
    opened: tuple[OpenFact, ...] = ()
    # The prediction of reinforcement learning.
    rl: RlCheck | None = None

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that keep the launch from running."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def unpredictable(self) -> tuple[Problem, ...]:
        """The problems that prevent a prediction although the launch may break no rule."""
        return tuple(problem for problem in self.problems if _hides_prediction(problem))

    @property
    def leaves_out_memory(self) -> bool:
        """Whether the plan does not fit as predicted, but the launch has a setting that saves
        memory and is not modelled, so that it may fit after all."""
        return any(item.rule == _LEFT_OUT for item in self.problems)

    @property
    def verdict(self) -> Verdict:
        """The verdict in words."""
        if self.errors:
            return "will not run"
        predicted = self.plan if self.rl is None else self.rl.step
        if predicted is None or self.leaves_out_memory:
            return "cannot tell"
        match fit_verdict(predicted.fit_probability):
            case "fits" | "probably fits":
                return "runs and fits"
            case "cannot tell":
                return "cannot tell"
        # A launch that does not fit with the longest allowed samples may fit with the actual ones.
        is_open = self.rl is not None and self.rl.at_limits and self.rl.short_fits
        return "cannot tell" if is_open else "will not fit"


def assess(
    found: Found,
    gpus: str | None = None,
    cluster: str | None = None,
    ignored: Collection[str] = (),
) -> Assessment:
    """Find the problems of a launch and predict it.

    `ignored`: rules that become notes if they are broken.
    """
    if found.rl is not None:
        return _of_rl(found, gpus, cluster, ignored)
    problems = list(found.problems)
    if not (gpus or cluster or found.plan_gpus):
        disagreements = world_problems(found, None)
        # A rule for older GPUs is only a warning while the GPUs are unknown.
        problems = [
            replace(item, severity="warning") if _is_of_old_gpus(item) else item
            for item in problems
        ]
        problems.append(_no_machine(None if disagreements else stated_gpus(found)))
        known = _sorted([*problems, *disagreements], ignored)
        return Assessment(found, problems=known, ignored=tuple(ignored))
    if found.shape is None and found.model is None:
        problems += world_problems(found, None)
        known = _sorted(problems, ignored)
        return Assessment(found, problems=known, ignored=tuple(ignored))
    proposal = as_request(found, gpus, cluster)
    model = proposal.request.find_model()
    assumed = (*found.assumed, *_of_its_config(model), *beside_notes(model.beside))
    found = replace(found, assumed=assumed)
    problems += world_problems(found, _machine(proposal.request))
    job = _resolved(found, proposal, model, problems)
    if job is None:
        problems += network_problems(found, proposal, None)
        known = _sorted(problems, ignored)
        return Assessment(found, proposal, problems=known, ignored=tuple(ignored))
    found = replace(found, assumed=(*found.assumed, *image_notes(job)))
    if job.cluster.gpu.traits.launches_in_order:
        problems = [problem for problem in problems if not _is_of_old_gpus(problem)]
    broken = [
        item
        for item in _broken_rules(found, job, proposal.degrees)
        if not _is_said_by_reader(item, problems)
    ]
    said = {problem.rule for problem in problems} & _NAMED_BY_READERS
    if {one.rule for one in problems if one.severity == "error"} & _OF_PROCESSES:
        said.add(WORLD_SIZE)
    problems += [item for item in broken if item.rule not in said]
    problems += _sharp_problem(found, proposal, job)
    plan, network, opened = None, None, tuple[OpenFact, ...]()
    if not broken and not any(_hides_prediction(problem) for problem in problems):
        try:
            plan = proposal.plan()
        except (UsageError, HardwareError, ConstraintError) as error:
            problems.append(_from_error(str(error)))
        else:
            problems += [*_left_out(found, plan, proposal), *_unsaved(found, plan)]
            network = network_cost(found, proposal, plan)
            opened = opened_facts(found.left_open, proposal, job, plan)
            plan = plan_in_doubt(plan, job, opened)
    problems += network_problems(found, proposal, network)
    known = _sorted(problems, ignored)
    return Assessment(found, proposal, job, known, plan, tuple(ignored), network, opened)


def _resolved(
    found: Found, proposal: Proposal, model: ResolvedModel, problems: list[Problem]
) -> Job | None:
    """The job of a configuration. If it cannot be modelled: None, and the reason is added to
    `problems`."""
    if model.left_out:
        why = modules_not_modelled(found.model or model.asked, model.left_out)
        problems.append(Problem("not-predictable", why, "warning"))
        return None
    try:
        return proposal.request.resolve()
    except (UsageError, HardwareError) as error:
        refusal = _from_error(str(error), of_profile=isinstance(error, UsageError))
        # A reader that knows the rule reports it with its place and its fix.
        said = {problem.rule for problem in problems if problem.severity == "error"}
        problems += [] if refusal.rule in said else [refusal]
        return None


def _of_rl(
    found: Found, gpus: str | None, cluster: str | None, ignored: Collection[str]
) -> Assessment:
    """Assess a launch of reinforcement learning."""
    problems = list(found.problems)
    check = RlCheck()
    if gpus or cluster:
        check = rl_check(found, gpus, cluster)
        problems += check.problems
    else:
        problems.append(_no_machine(found.world))
    if check.at_limits and check.step is not None:
        problems.append(_at_limits(check))
    known = _sorted(problems, ignored)
    return Assessment(found, problems=known, ignored=tuple(ignored), rl=check)


def _at_limits(check: RlCheck) -> Problem:
    """The problem that reports the assumption that every sample is as long as the files allow. A
    note if the launch fits even so, otherwise a missing value."""
    text = (
        "every answer is assumed to be as long as the files allow: time and memory are upper bounds"
    )
    fix = "--lengths prompt=256..1024,response=lognormal:median=1500,p95=6000,max=8192"
    sure = check.step is not None and check.step.fits
    return Problem("rl-lengths", text, "note" if sure else "missing", fix=fix)


def _machine(request: Request) -> Cluster:
    """The whole machine that the user gives, even if the files use only part of it."""
    launched = request.overrides.launched or Launched()
    whole = request.launched_as(replace(launched, started=None))
    return request.model_copy(update=whole).find_cluster()


def _of_its_config(model: ResolvedModel) -> Iterator[str]:
    """Notes on assumptions made while reading a model's config.json, except those on the sequence
    length. Empty for other models."""
    if model.asked.endswith(".json"):
        yield from (f"of {model.asked}: {note}" for note in model.notes if "--seq" not in note)


def _unsaved(found: Found, plan: Plan) -> Iterator[Problem]:
    """A warning if a time limit ends the run before it saves a checkpoint."""
    saving = found.saving
    if saving is None or not (why := saving.loss_at_limit(plan.step_time_s)):
        return
    yield Problem(
        "unsaved-at-limit",
        f"the limit of {saving.limit} ends the run, and unsaved training is lost: {why}",
        "warning",
        (saving.place,),
        fix="save more often, or end in time: --exit-duration-in-mins in Megatron",
    )


def _no_machine(number: int | None) -> Problem:
    """The problem that the files do not name the GPUs. `number`: how many processes the files
    start; None if unknown or if counts disagree."""
    text = "the files do not name the GPUs that they run on"
    if number:
        text = f"the files start {number:,} processes, but do not say on which GPUs"
    fix = f"--gpus {number or 64}xH100, or --cluster FILE.toml"
    return Problem("gpus-unknown", text, "missing", fix=fix)


def _hides_prediction(problem: Problem) -> bool:
    """Whether the launch cannot be predicted because of this problem."""
    return problem.rule == "not-predictable" or problem.severity == "missing"


def _sorted(problems: list[Problem], ignored: Collection[str]) -> tuple[Problem, ...]:
    """Problems sorted by severity: errors first, notes last. Problems of ignored rules become
    notes."""
    eased = [replace(p, severity="note") if p.rule in ignored else p for p in problems]
    ranks = {"error": 0, "missing": 3, "warning": 4, "note": 5}

    def rank(problem: Problem) -> int:
        """The position of a severity. Features that are not modelled come before missing values,
        and after a branch that decides whether they are used."""
        if problem.rule == BRANCH and problem.severity == "missing":
            return 1
        not_modelled = problem.rule == "not-predictable" and problem.severity == "warning"
        return 2 if not_modelled else ranks[problem.severity]

    return tuple(sorted(dict.fromkeys(eased), key=rank))


def _is_of_old_gpus(problem: Problem) -> bool:
    """Whether the problem does not apply from Blackwell GPUs on."""
    return problem.rule == "cuda-device-max-connections" and "refused" not in problem.text


def _broken_rules(found: Found, job: Job, degrees: Degrees) -> Iterator[Problem]:
    """The rules on degrees that the launch breaks, with the places of those degrees."""
    ctx, columns = replace(rule_context(job), given=True), degree_columns([degrees])
    hidden, fitting = _hidden(found), f"--gpus with {plural(degrees.gpus, 'GPU')}, or other degrees"
    for rule in RULES:
        if rule.mask(columns, ctx)[0]:
            continue
        sentence = rule.explain(ctx)
        spoken = dict.fromkeys(_SPOKEN.findall(f"{sentence} {rule.sentence}"))
        places = [found.where[item].place for item in spoken if item in found.where]
        given = ", ".join(f"{item} {getattr(degrees, item)}" for item in spoken)
        modelled = rule.name not in _NOT_MODELLED and not (
            # torch demands this only of schedules with one stage per rank (PipelineScheduleSingle).
            rule.name == "microbatches-fill-pipeline" and degrees.vpp > 1
        )
        # Settings that were not read may be the ones that the rule demands.
        unread = found.unseen and f"{found.unseen}, which is not there to read,"
        unread = unread or next((hidden[item] for item in spoken if item in hidden), "")
        unsure = modelled and bool(unread)
        yield Problem(
            rule.name if modelled else "not-predictable",
            sentence
            + (f" (here {given})" if given else "")
            + ("" if modelled else ", which is not modelled")
            + (f"; {unread} may say otherwise" * unsure),
            severity=("missing" if unsure else "error") if modelled else "warning",
            places=tuple(dict.fromkeys(places)),
            fix=fitting if rule.name == WORLD_SIZE and not unsure else "",
            late="run time" in rule.source,
        )


def _hidden(found: Found) -> dict[str, str]:
    """Degrees whose value is unknown or follows from an unknown one, each with the reason."""
    why = {
        name: setting.unknown
        for name, setting in found.where.items()
        if setting.unknown and unresolved(setting) in found.problems
    }
    model_parallel = ("tp", "pp", "cp")
    for name, parts in (("dp", model_parallel), ("grad_acc", (*model_parallel, "mbs", "gbs"))):
        reasons = [why[part] for part in parts if part in why]
        why |= {name: reasons[0]} if reasons else {}
    return why


def _is_said_by_reader(broken: Problem, problems: list[Problem]) -> bool:
    """Whether the reader has already reported the same degree, which the framework has but its
    profile lacks."""
    told = (item.places for item in problems if item.rule == "not-predictable")
    of_profile = broken.rule.endswith(("-supported", "-offered")) and bool(broken.places)
    return of_profile and {place for places in told for place in places}.issuperset(broken.places)


def _sharp_problem(found: Found, proposal: Proposal, job: Job) -> Iterator[Problem]:
    """A warning if SHARP is requested but the switches reduce nothing; NCCL then silently reduces
    on the hosts."""
    if not found.sharp:
        return
    reason = why_not(proposal.request.find_cluster())
    if not reason:
        use = sharp_use(job, proposal.degrees)
        reason = use.reason if use else f"{job.framework.name} names no communicator for it"
    if reason:
        setting = found.where.get("sharp")
        place = (setting.place,) if setting else ()
        text = f"network switches reduce nothing in this run: {reason}"
        yield Problem("sharp-idle", text, "warning", place)


def _left_out(found: Found, plan: Plan, proposal: Proposal) -> Iterator[Problem]:
    """Problems for settings that save memory but are not modelled, if the plan does not fit without
    their savings."""
    if plan.fits:
        return
    excess = (plan.peak_bytes - plan.limit_bytes) / 2**30
    for item, why in found.unmodelled:
        of_lengths = item.key in (LIMIT_ALONE, NO_LENGTH)
        if _SAVES not in why or (of_lengths and found.lengths):
            continue
        if item.key == LIMIT_ALONE and not _short_fits(proposal):
            continue
        text = f"{item.key}: {why}; {excess:.1f} GiB over the limit without it, so it may fit"
        asked = {
            NO_LENGTH: "--seq N",
            NO_RECOMPUTE: "--recompute full, or none",
            LIMIT_ALONE: "--lengths mean=N or a file of lengths, or --seq N of the longest",
        }
        fix = asked.get(item.key, "leave it out, or measure")
        yield Problem(_LEFT_OUT, text, "missing", (item.place,), fix)


# Tokens of a short sample: fewer than the longest sample of nearly any data set.
_SHORT = 256


def _short_fits(proposal: Proposal) -> bool:
    """Whether the launch fits if samples are short (`_SHORT` tokens)."""
    short = replace(proposal, request=proposal.request.model_copy(update={"seq": _SHORT}))
    try:
        return short.plan().fits
    except (UsageError, HardwareError, ConstraintError):
        return True


def _from_error(text: str, *, of_profile: bool = False) -> Problem:
    """A problem made from an error's text, which ends with the rule in brackets. `of_profile`: the
    error comes from the profile; without a rule it then only means "not modelled", because the
    framework itself may have the feature."""
    match = re.search(r"\s*\[([a-z-]+)\]\s*$", text)
    if match is None and of_profile:
        return Problem("not-predictable", text.strip(), "warning")
    # The problem is in the files, so options of the planner are no advice.
    text = _OPTION.sub(r"\g<has>", text)
    if match is None and _EMULATED.search(text):
        words = (
            f"{text.strip()}; torch then computes it without tensor cores, which is not modelled"
        )
        return Problem("not-predictable", words, "warning")
    if match is None and (tower := _UNPLACED.search(text)):
        words = (
            f"the place of {tower[1]} under tensor, pipeline or context parallelism is not modelled"
        )
        return Problem("not-predictable", words, "warning", fix=f"{tower[2]} 1")
    if match is None:
        return Problem("configuration", text.strip())
    options = r"--optimizer-offload|--activation-offload|--optimizer|--recompute"
    return Problem(match[1], re.sub(options, "", text[: match.start()]).strip())
