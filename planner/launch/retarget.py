"""A plan made ready for one framework: costed under its profile, or refused with what is near."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, islice, product
from pathlib import Path

from planner.job.errors import UsageError
from planner.job.frameworks import RecomputeMode, load_framework
from planner.job.frameworks.targets import Target
from planner.job.models.catalog import catalog_name
from planner.job.request import Request
from planner.launch.contract import Launch, NodesAs, Refusal
from planner.launch.registry import writer_of
from planner.predict.command_line import evaluate_command
from planner.predict.configuration import evaluate
from planner.predict.plan import Degrees, Plan
from planner.predict.shapes import broken_rules

# A nearest plan changes at most so many things: beyond that it is another plan.
_MOST_CHANGES = 4
_MOST_COSTED = 40


@dataclass(frozen=True, slots=True)
class Variation:
    """A plan's configuration apart from the job: what a neighbour may change."""

    degrees: Degrees
    recompute: str
    blocks: tuple[int, ...] | None
    recomputed: tuple[int, ...] | None
    schedule: str | None
    precision: str
    mtp_standalone: bool = False


class CannotExpressError(UsageError):
    """A framework cannot run a plan: why, and what is near."""

    def __init__(self, target: Target, refusals: tuple[Refusal, ...], nearest: str) -> None:
        self.refusals = refusals
        lines = [f"{target.name} cannot run this plan:"]
        for refusal in refusals:
            near = f" (nearest: {refusal.nearest})" if refusal.nearest else ""
            lines.append(f"  - {refusal.reason}{near}")
        if nearest:
            lines += [f"nearest plan that {target.name} runs:", f"  {nearest}"]
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

    `gpus`: how many of the request's the plan uses; `ramp`: a batch ramp in place of the plan's,
    with which it is costed anew. CannotExpressError, a UsageError, names each
    thing that the target cannot run, and the nearest plan that it can. UsageError for a plan on
    GPUs of several types: how such a job is started was not found out for any framework.
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
        if request_for.framework == request.framework and ramp is None:
            launch = Launch(plan, request_for, request_for.resolve(), target.name, nodes_as)
        else:
            _demand_same_recompute(plan, request, request_for)
            launch = _costed(request_for, _variation(plan), target, nodes_as)
    except UsageError as error:
        refusals: tuple[Refusal, ...] = (Refusal(_sentence(error), ""),)
    else:
        refusals = writer_of(target).refusals(launch)
        if not refusals:
            return launch
    near = _nearest(
        request_for, _variation(plan), target, nodes_as, _same_recompute(plan, request, request_for)
    )
    raise CannotExpressError(target, refusals, near)


def _same_recompute(plan: Plan, request: Request, one_request: Request) -> bool:
    """Whether the plan's mode is the same thing in the target."""
    try:
        _demand_same_recompute(plan, request, one_request)
    except UsageError:
        return False
    return True


def _demand_same_recompute(plan: Plan, request: Request, one_request: Request) -> None:
    """UsageError if a mode's name means other modules in the target."""
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
    """The request under the target's profile, without limits and with the plan's own batch."""
    same = request.framework in (target.profile, *target.variants)
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
        "use": request.use if same else (),
        "without": request.without if same else (),
    }
    if gpus is not None and request.gpus is not None:
        cluster = request.resolve().cluster
        if cluster.num_gpus != gpus:
            changes["gpus"] = f"{gpus}x{cluster.gpu.name}"
    return request.model_copy(update=changes)


def _absolute(given: str) -> str:
    """A path from wherever the plan file will lie; a catalogue name as it is."""
    path = Path(given).expanduser()
    return str(path.resolve()) if catalog_name(given) is None and path.exists() else given


def _named_schedule(plan: Plan) -> str | None:
    """The plan's schedule; None for those that are any framework's usual ones."""
    usual = plan.degrees.pp == 1 or plan.schedule in ("1f1b", "interleaved")
    return None if usual else plan.schedule


def _variation(plan: Plan) -> Variation:
    layout = plan.layout
    partial = tuple(layout.recomputed) != layout.stage_layers(plan.degrees.pp)
    return Variation(
        degrees=plan.degrees,
        recompute=plan.recompute,
        blocks=layout.block_layers,
        recomputed=layout.recomputed if partial and plan.recompute != "none" else None,
        schedule=_named_schedule(plan),
        precision="",
        mtp_standalone=layout.mtp_standalone,
    )


def _varied(request: Request, variation: Variation) -> Request:
    """The request with what a configuration says of the job."""
    changes: dict[str, object] = {"schedule": variation.schedule, "gbs": variation.degrees.gbs}
    if request.gbs != variation.degrees.gbs:
        changes["batch_ramp"] = None
    if variation.precision:
        dtype = None if request.dtype == "fp32" else request.dtype
        changes |= {"precision": variation.precision, "dtype": dtype}
    return request.model_copy(update=changes)


def _costed(request: Request, variation: Variation, target: Target, nodes_as: NodesAs) -> Launch:
    """A configuration costed under the request's profile. UsageError if it breaks a rule."""
    request = _varied(request, variation)
    plan = evaluate(
        request,
        variation.degrees,
        variation.recompute,
        variation.blocks,
        variation.recomputed,
        mtp_standalone=variation.mtp_standalone,
    )
    return Launch(plan, request, request.resolve(), target.name, nodes_as)


def _nearest(
    request: Request, variation: Variation, target: Target, nodes_as: NodesAs, keeps_mode: bool
) -> str:
    """The first expressible plan among those with fewest changes, as a command; "" if none.

    `keeps_mode`: the recompute mode may stay; otherwise each candidate has another.
    """
    found = [
        changed
        for changed in _candidates(variation, request)
        if keeps_mode or changed.recompute != variation.recompute
    ]
    # The same batch first: another one is another training run.
    found.sort(key=lambda changed: changed.degrees.gbs != variation.degrees.gbs)
    legal = (changed for changed in found if _is_legal(changed, request))
    for changed in islice(legal, _MOST_COSTED):
        try:
            launch = _costed(request, changed, target, nodes_as)
        except UsageError:
            continue
        if not writer_of(target).refusals(launch):
            other = f"  (batch {launch.plan.gbs:,} instead of {variation.degrees.gbs:,})"
            return as_command(launch) + (other if launch.plan.gbs != variation.degrees.gbs else "")
    return ""


def _is_legal(variation: Variation, request: Request) -> bool:
    """The cheap rules, before anything is costed."""
    try:
        job = _varied(request, variation).resolve()
        mode = job.framework.recompute_mode(variation.recompute)
        return not broken_rules(replace(job, recompute=(mode,)), variation.degrees)
    except UsageError:
        return False


def _candidates(variation: Variation, request: Request) -> Iterator[Variation]:
    """Configurations in order of the number of things changed."""
    options = _options(variation, request)
    for count in range(1, min(_MOST_CHANGES, len(options)) + 1):
        for chosen in combinations(options, count):
            for values in product(*chosen):
                changed = variation
                for value in values:
                    changed = _applied(changed, value)
                yield changed


def _options(variation: Variation, request: Request) -> list[list[dict[str, object]]]:
    """What could be changed, least harmful first; each a list of alternatives."""
    profile = load_framework(request.framework)
    rules, degrees = profile.parallelism, variation.degrees
    uneven = variation.blocks is not None and len(set(variation.blocks)) > 1
    zeros = [zero for zero in rules.zero_stages if zero != degrees.zero]
    modes = [mode.name for mode in profile.recompute if mode.name != variation.recompute]
    found: list[list[dict[str, object]]] = [
        [{"blocks": None, "mtp_standalone": False}]
        if variation.blocks and (rules.layouts == "greedy" or uneven)
        else [],
        [{"recomputed": None}] if variation.recomputed else [],
        [{"zero": zero} for zero in zeros],
        [{"recompute": name, "recomputed": None} for name in modes[:3]],
        [{"schedule": None}] if variation.schedule else [],
        [{"vpp": 1, "blocks": None, "mtp_standalone": False}] if degrees.vpp > 1 else [],
        [{"shard": 0}] if degrees.shard else [],
        [{"etp": value} for value in {1, degrees.tp} - {degrees.etp}],
        [{"precision": "bf16"}] if request.precision != "bf16" else [],
        _into_dp("pp", degrees),
        _into_dp("tp", degrees),
        _into_dp("cp", degrees),
        [{"ep": 1}] if degrees.ep > 1 else [],
    ]
    return [alternatives for alternatives in found if alternatives]


def _into_dp(name: str, degrees: Degrees) -> list[dict[str, object]]:
    """A degree taken away, data parallelism in its place, at the same batch where it divides."""
    value = getattr(degrees, name)
    if value == 1:
        return []
    return [
        {
            name: 1,
            "times_dp": value,
            **({"vpp": 1, "blocks": None, "mtp_standalone": False} if name == "pp" else {}),
        }
    ]


def _applied(variation: Variation, change: dict[str, object]) -> Variation:
    """A configuration with a change made."""
    degrees = variation.degrees.model_dump()
    fields = {"blocks", "mtp_standalone", "recomputed", "recompute", "schedule", "precision"}
    degrees |= {key: value for key, value in change.items() if key in degrees}
    factor = change.get("times_dp", 1)
    if isinstance(factor, int) and factor > 1:
        degrees["dp"] *= factor
        degrees["grad_acc"] = max(1, degrees["grad_acc"] // factor)
    kept = {key: value for key, value in change.items() if key in fields}
    return replace(variation, degrees=Degrees(**degrees), **kept)  # type: ignore[arg-type]


def as_command(launch: Launch) -> str:
    """The `planner evaluate` that costs a launch's plan and writes it to a file."""
    plan = launch.plan
    words = evaluate_command(launch.request, plan.degrees, plan.recompute, plan.layout)
    return f"{words} -o nearest-plan.json --force"
