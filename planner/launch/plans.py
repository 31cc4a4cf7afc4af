"""Plans and the frameworks that launch them: why a writer refuses a plan, the search that reports
it, and how a plan is prepared for a framework."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from hardware.files import shipped_toml
from hardware.plain_text import demand_plain
from planner._version import __version__
from planner.job.errors import UsageError
from planner.job.frameworks.profile import load_framework
from planner.job.images import WITHOUT, read_images
from planner.job.job import Job
from planner.job.models.catalog import catalog_name
from planner.job.optimizers import check_optimizer
from planner.job.recompute import RecomputeMode
from planner.job.request import Request
from planner.launch.contract import Launch, NodesAs, Refusal, Writer
from planner.launch.registry import (
    Target,
    function,
    module_of,
    target_named,
    target_of_profile,
    targets,
)
from planner.launch.sentences import filled_in, holds
from planner.predict.command_line import search_command
from planner.predict.configuration import Configuration, decided_job, decided_request
from planner.predict.evaluate import checked, evaluated
from planner.predict.plan import Plan
from planner.search import search
from planner.search.launchable import LaunchNotes
from planner.search.outcome import job_summary
from planner.search.result import Counts, SearchResult


def writer_of(target: Target) -> Writer:
    """The module that writes for a target."""
    return cast(Writer, module_of(target.dialect, target.writer))


def job_refusals(target: Target, job: Job) -> Iterator[Refusal]:
    """Reasons why a target can write no plan of a job, its GPUs included. Empty if it can."""
    gpu, launch = job.cluster.gpu, load_framework(target.profile).launch
    if launch.cuda and gpu.vendor != "nvidia":
        others = (one for one in targets().values() if not load_framework(one.profile).launch.cuda)
        yield Refusal(
            f"{target.name} does not start on {gpu.name}: {launch.cuda}",
            "--framework " + " or ".join(one.name for one in others),
        )
    yield from _training_refusals(target, job)
    if job.model.vision is not None and not target.sees:
        # It was refused above.
        job = replace(job, model=job.model.language)
    yield from writer_of(target).job_refusals(job)


def _training_refusals(target: Target, job: Job) -> Iterator[Refusal]:
    """Ways of training that the target's files cannot express."""
    names = {"job": job, "objective": job.objective, "target": target}
    for row in shipped_toml("planner.launch", "refusals.toml")["training"]:
        if not holds(row["when"], names) or holds(row["able"], names | {"one": target}):
            continue
        every = targets().values()
        able = " or ".join(one.name for one in every if holds(row["able"], names | {"one": one}))
        otherwise = row["otherwise"]
        nearest = f"--framework {able}, or {otherwise}" if able else otherwise
        yield Refusal(filled_in(row["reason"], names), nearest)


def refusals_of(launch: Launch) -> Iterator[Refusal]:
    """Refusals of a launch's job and plan by its framework; none if it can express both."""
    target = targets()[launch.target]
    yield from job_refusals(target, launch.job)
    images = launch.request.images
    if images not in (None, WITHOUT) and read_images(images).video:
        yield Refusal(
            "launch files are written for samples with images, not with videos",
            "frames that count as images (--images 16x640x480)",
        )
    yield from writer_of(target).plan_refusals(launch)


def target_of(job: Job) -> Target | None:
    """The default target for plans of a job; None if nothing writes them. In order of preference:
    the tool that the search named (`--framework trl`), the framework's own target, or another that
    writes the framework's plans. The first two are taken only if they can express how the job
    trains; if nothing can, the framework's own is returned."""
    own, profile = target_of_profile(job.framework.name), job.framework.name
    named = targets().get(job.written_for)
    other = named is not None and named.name != profile and named.runs(profile)
    if named is not None and other and next(_training_refusals(named, job), None) is None:
        return named
    if own is not None and next(_training_refusals(own, job), None) is None:
        return own
    others = (one for one in targets().values() if one.runs(profile))
    able = (one for one in others if next(job_refusals(one, job), None) is None)
    return next(able, own)


def usual_target(plan: Plan, request: Request) -> Target:
    """The default target of a plan. UsageError if nothing writes it."""
    decided = decided_request(request, plan)
    found = None if plan.stage_gpus else target_of(decided.resolve())
    return found or target_named(request.framework)


def is_launchable(plan: Plan, request: Request) -> bool:
    """Whether the default target can write the plan's job. False for a plan on several GPU
    types."""
    if plan.stage_gpus:
        return False
    job = decided_request(request, plan).resolve()
    target = target_of(job)
    return target is not None and next(job_refusals(target, job), None) is None


def job_launch_note(job: Job) -> str | None:
    """A sentence on why the job's default target can write none of its plans, with the frameworks
    that can; None if it can.

    Also None for a profile without a writer (`nanogpt`), which exists for its predictions. Such
    jobs are still searched, since forks may support the model.
    """
    target = target_of(job) or _in_whose_place(job.framework.name)
    refusals = [] if target is None else list(job_refusals(target, job))
    if target is None or not refusals:
        return None
    reasons = "; ".join(f"{refusal.reason} (nearest: {refusal.nearest})" for refusal in refusals)
    able = dict.fromkeys(target.profile for target in targets().values() if _launches(target, job))
    others = f". Frameworks that launch it: {', '.join(able)}" if able else ""
    return f"planner launch writes none of these plans for {target.name}: {reasons}{others}"


def _in_whose_place(profile: str) -> Target | None:
    """The target of the framework whose plans use this profile on AMD's GPUs; None if there is
    none."""
    profiles = ((one, load_framework(one.profile)) for one in targets().values())
    return next((one for one, usual in profiles if usual.launch.on_amd == profile), None)


def launch_note(plans: Sequence[Plan], request: Request, job: Job) -> str | None:
    """A sentence on the plans that the framework's writer refuses, by number and with reasons; None
    if it refuses none.

    If the writer supports the job, it refuses few plans: those with an explicitly requested
    schedule.
    """
    whole = job_launch_note(job)
    target = target_of(job)
    if whole is not None or target is None:
        return whole
    refused: dict[str, list[int]] = {}
    for number, plan in enumerate(plans, start=1):
        decided = decided_request(request, plan), decided_job(job, plan)
        first = next(refusals_of(Launch(plan, *decided, target.name)), None)
        if first is not None:
            refused.setdefault(first.reason, []).append(number)
    if not refused:
        return None
    reasons = [
        f"{'plan' if len(item) == 1 else 'plans'} {', '.join(map(str, item))}: {reason}"
        for reason, item in refused.items()
    ]
    return f"not written by planner launch for {target.name}: " + "; ".join(reasons)


LAUNCH_NOTES = LaunchNotes(job_launch_note, launch_note)


def _launches(target: Target, job: Job) -> bool:
    """Whether the target supports the job's model, length, optimizer and precision."""
    profile = load_framework(target.profile)
    if job.precision not in profile.precisions:
        return False
    try:
        check_optimizer(profile, job.optimizer_setting)
    except UsageError:
        return False
    return next(job_refusals(target, job), None) is None


def find_plans(request: Request, **options: Any) -> SearchResult:
    """The Pareto front of plans, tokens/s against peak memory of a GPU. A note lists plans that
    `planner launch` would refuse. Options and errors: `planner.search.search.find_plans`."""
    return search.find_plans(request, launch=LAUNCH_NOTES, **options)


def one_plan(plan: Plan, request: Request, job: Job) -> SearchResult:
    """A search result with a single plan that no search found, for a plan file. `job`: `request`
    resolved."""
    counts = Counts(
        considered=1, legal=1, fitting=int(plan.fits), solved=0, skipped=0,
        seconds=0.0, costing_seconds=0.0,
    )  # fmt: skip
    return SearchResult(
        planner_version=__version__,
        request=request,
        job=job_summary(job, job.cluster.num_gpus),
        counts=counts,
        plans=(plan,),
        proven=False,
    )


def _searches(target: Target, request: Request) -> bool:
    """Whether the request is valid and the target refuses nothing of its job, so that a search may
    find plans."""
    try:
        job = request.resolve()
    except UsageError:
        return False
    return next(job_refusals(target, job), None) is None


class CannotExpressError(UsageError):
    """A framework cannot run a plan. The message lists the reasons and, if a search can help, the
    command that searches for plans that it can run."""

    def __init__(self, target: Target, refusals: tuple[Refusal, ...], request: Request) -> None:
        self.refusals = refusals
        lines = [f"{target.name} cannot run this plan:"]
        for refusal in refusals:
            near = f" (nearest: {refusal.nearest})" if refusal.nearest else ""
            lines.append(f"  - {refusal.reason}{near}")
        # If model, machine or way of training is refused, no plan of the target can run.
        final = ("cannot express", "does not start", "its files train by", "launch files of")
        told = any(words in refusal.reason for refusal in refusals for words in final)
        if not told and _searches(target, request):
            lines.append(f"plans that {target.name} runs:")
            nearest = _as_nearest(request, refusals)
            lines.append(f"  {search_command(nearest)} -o {target.name}-plans.json --force")
        super().__init__("\n".join(lines))


def launch_of(
    plan: Plan,
    request: Request,
    target: Target,
    nodes_as: NodesAs,
    gpus: int | None = None,
    ramp: str | None = None,
) -> Launch:
    """The plan for a target, costed under the target's profile.

    `gpus`: how many GPUs of the request the plan uses; `ramp`: a different batch ramp, for which
    the plan is costed again. If the target cannot run the plan: CannotExpressError, a UsageError
    that lists the reasons and, if a search can help, gives the command that searches for plans that
    the target can run. UsageError for a plan on several GPU types, since no framework is known to
    start these.
    """
    if plan.stage_gpus:
        raise UsageError(
            f"the plan has stages on GPUs of several types ({request.gpus}), and launch files are "
            "written for one type; explain shows which ranks live where, a search on one type "
            "gives plans to launch"
        )
    request_for = _request_for(plan, request, target, gpus)
    try:
        if ramp is not None:
            request_for = request_for.model_copy(update={"batch_ramp": ramp})
        stands = request_for.framework == request.framework and ramp is None
        stands &= all(
            getattr(request_for, name) == getattr(request, name)
            for name in ("use", "objective", "train")
        )
        if not stands:
            _demand_same_recompute(plan, request, request_for)
        job = request_for.resolve()
        # An edited file may hold a plan that breaks rules.
        configuration = checked(Configuration.of_plan(job, plan))
        costed = plan if stands else evaluated(configuration)
        launch = Launch(costed, request_for, job, target.name, nodes_as)
    except UsageError as error:
        refusals: tuple[Refusal, ...] = (Refusal(_sentence(error), ""),)
    else:
        refusals = tuple(refusals_of(launch))
        if not refusals:
            return launch
    raise CannotExpressError(target, refusals, _searched(request_for, request))


def _demand_same_recompute(plan: Plan, request: Request, one_request: Request) -> None:
    """Raise UsageError if the plan's recompute mode recomputes other modules in the target's
    framework (`one_request`) than in the plan's own (`request`)."""
    here = load_framework(request.framework).recompute_mode(plan.recompute)
    there = load_framework(one_request.framework).recompute_mode(plan.recompute)
    if here.modules != there.modules:
        raise UsageError(
            f"recompute {plan.recompute} runs {_words(here)} again in {request.framework}, and "
            f"{_words(there)} in {one_request.framework}"
        )


def _words(mode: RecomputeMode) -> str:
    return " and ".join(name.lower().replace("_", " ") for name in mode.modules) or "nothing"


def _sentence(error: UsageError) -> str:
    lines = [line.strip(" -") for line in str(error).splitlines()]
    rules = lines[1:] if lines[0].endswith(":") else lines
    return "; ".join(rules or lines)


def _request_for(plan: Plan, request: Request, target: Target, gpus: int | None) -> Request:
    """The request under the target's profile, with the plan's batch, schedule and offload, and
    without limits on degrees. Paths in it are absolute."""
    same = target.runs(request.framework)
    changes: dict[str, object] = {
        "framework": request.framework if same else target.profile,
        "gbs": plan.gbs,
        "gbs_tokens": None,
        "batch_ramp": plan.ramp_text or None,
        "limits": {},
        "recompute": None,
        "optimizer_kernel": request.optimizer_kernel if same else None,
        "dtype": request.dtype if same else None,
        "schedule": _named_schedule(plan),
        "model": _absolute(request.model),
        "cluster": None if request.cluster is None else _absolute(request.cluster),
        "optimizer_offload": plan.optimizer_offload,
        "activation_offload": ",".join(plan.activation_offload) or "off",
        "activation_offload_fraction": plan.activation_offload_fraction,
        "use": (*(request.use if same else ()), *_quantised(request, target)),
        "without": request.without if same else (),
    }
    if gpus is not None and request.gpus is not None:
        cluster = request.resolve().cluster
        if cluster.num_gpus != gpus:
            changes["gpus"] = f"{gpus}x{cluster.gpu.name}"
    written = request.model_copy(update=changes)
    if not target.as_run:
        return written
    run: Request = function(target.dialect, target.as_run)(written)
    return run


def _quantised(request: Request, target: Target) -> Iterator[str]:
    """Names of techniques that the target always uses if the frozen base weights are quantised.
    Only those that the framework has and the request does not list; none without quantised weights.
    """
    job = request.resolve()
    if job.tuning.base is None:
        return
    for name in target.quantised:
        if name not in request.use and job.framework.technique(name) is not None:
            yield name


def starts_from_weights(launch: Launch) -> bool:
    """Whether a run starts from published weights."""
    job = launch.job
    is_part = not job.tuning.trains_all or job.samples.lengths is not None
    has_tower = job.model.vision is not None
    return targets()[launch.target].from_weights or is_part or has_tower


def _absolute(given: str) -> str:
    """The path made absolute, so that it is valid from any folder. Catalogue names, and paths that
    do not exist, are unchanged."""
    path = Path(given).expanduser()
    if catalog_name(given) is not None or not path.exists():
        return given
    try:
        demand_plain(whole := str(path.resolve()), "the path")
    except ValueError as error:
        raise UsageError(str(error)) from None
    return whole


def _named_schedule(plan: Plan) -> str | None:
    """The plan's schedule; None for those that every framework uses by default."""
    usual = plan.degrees.pp == 1 or plan.schedule in ("1f1b", "interleaved")
    return None if usual else plan.schedule


# The alternative named by a refusal, if it is a setting of the adapters.
_NEAREST_TRAIN = re.compile(r"--train (\w+):(\w+)=(\w+)")


def _as_nearest(request: Request, refusals: Sequence[Refusal]) -> Request:
    """The request with the adapter settings that the refusals suggest (`--train lora:...`). Without
    them a search would find the refused kind of plan again."""
    for refusal in refusals:
        match = _NEAREST_TRAIN.fullmatch(refusal.nearest)
        method = request.train.partition(":")[0]
        if match is None or match[1] != method or f"{match[2]}=" in request.train:
            continue
        joint = "," if ":" in request.train else ":"
        train = f"{request.train}{joint}{match[2]}={match[3]}"
        request = request.model_copy(update={"train": train})
    return request


def _searched(request: Request, asked: Request) -> Request:
    """The request for a search for other plans: the batch stays, the offload options are those of
    `asked`, and the schedule is free."""
    offloads = ("optimizer_offload", "activation_offload", "activation_offload_fraction")
    open_again = {name: getattr(asked, name) for name in offloads}
    return request.model_copy(update=open_again | {"schedule": None})
