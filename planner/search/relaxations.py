"""Changes that would make something fit: of each kind the smallest, found by searching.

A change is kept only if the search of the changed job found a plan. Changes are made to the
request, so what is printed can be typed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from hardware.load import gpu_names, load_gpu
from planner.job.errors import UsageError
from planner.job.frameworks import load_framework
from planner.job.job import Job, searched_modes
from planner.job.offload import searched_offloads, spelled
from planner.job.optimizers import load_optimizer
from planner.job.request import Request
from planner.predict.plan import Plan
from planner.search.costed import EVEN_CHANCE
from planner.search.infeasibility import Relaxation, RelaxationKind
from planner.search.limit_results import Effort, Progress, Until
from planner.search.shares import cost_shares
from planner.search.trial import search_costed

# Numbers of GPUs tried one by one, and nodes beyond the present ones that always are.
COUNTS_TRIED = 64
NODES_BEYOND = 4
MOST_DOUBLINGS = 10
SHORTEST_SEQUENCE = 512
# Optimizers with less state, the nearest to AdamW first.
SMALLER_OPTIMIZERS = ("adamw-bf16", "adamw-fp8", "adamw-8bit", "adamw-4bit")
OFFLOADED_SHARES = (0.25, 0.5, 0.75, 1.0)
TOLERANCES = (0.1, 0.2)
# Frameworks in use today that shard further than Megatron-LM does.
SHARDING_FRAMEWORKS = ("torchtitan", "deepspeed")

# Work for one change: enough to find a plan, not to prove it the fastest. Changes differ by more.
EFFORT = Effort(most_solves=6, most_effort_s=0.5, tie=0.02)
# Work to learn whether anything fits at all.
PROBE = replace(EFFORT, any_plan=True)
# Kinds whose changes do not build on each other.
_INDEPENDENT = ("condition", "limit")

Make = Callable[[], Job]


@dataclass(frozen=True)
class Change:
    """One change of the job. `complete`: every smaller change of its kind comes before it."""

    text: str
    make: Make
    complete: bool = True


Changes = Iterator[Change]


@dataclass(frozen=True)
class Asked:
    """A changed request; called, its job. UsageError for what no request may ask."""

    plain: Request
    changes: dict[str, object]

    @property
    def request(self) -> Request:
        """The request with the changes."""
        return Request(**(self.plain.model_dump() | self.changes))

    def __call__(self) -> Job:
        return self.request.resolve()


@dataclass(frozen=True)
class Situation:
    """The job in which nothing fits. `gpus`: how many of the given ones it can use."""

    request: Request
    job: Job
    gpus: int

    def asked(self, **changes: object) -> Asked:
        """The request with some fields changed."""
        return Asked(self.request, changes)


@dataclass(frozen=True)
class Tried:
    """`found`: changes with a plan, fastest first; `in_vain`: of each kind without, the last."""

    found: list[Relaxation]
    in_vain: list[str]


def find_relaxations(
    at: Situation,
    progress: Progress,
    until: Until | None = None,
    kinds: Kinds | None = None,
    check: Check | None = None,
) -> Tried:
    """The smallest change of each kind that was verified to give a plan, fastest first.

    `until`: when to stop; it then knows which kinds were not tried, or not to their end. `kinds`:
    of changes, KINDS unless given; `check`: searches a changed job, as `verify` does.
    """
    until, kinds, check = until or Until(), kinds or KINDS, check or verify
    found: list[Relaxation] = []
    in_vain: list[str] = []
    for index, (kind, changes) in enumerate(kinds.items()):
        progress(f"searching what would fit: {kind}", index, len(kinds))
        item, vain = _smallest(at, kind, changes(at, until), until, check)
        found += item
        in_vain += vain
    if not found:
        found, _ = _smallest(at, "everything", _everything(at), until, check)
    return Tried(sorted(found, key=lambda relaxation: relaxation.seconds_per_token), in_vain)


def _smallest(
    at: Situation, kind: RelaxationKind, changes: Changes, until: Until, check: Check
) -> tuple[list[Relaxation], list[str]]:
    """The first change that fits safely, and the first that at least probably fits, if smaller;
    the last change that was tried if none does.

    Of changes that do not build on each other, each that fits, and each that does not.
    """
    found: list[Relaxation] = []
    in_vain: list[str] = []
    all_decided = True
    for change in changes:
        if until.over(kind):
            break
        safe_only = bool(found) and kind not in _INDEPENDENT
        outcome = check(at, change, until, kind not in ("gpus", "gpu-type"), safe_only)
        all_decided &= outcome.decided
        if outcome.plan is None:
            in_vain.append(change.text)
            continue
        smallest = change.complete and all_decided
        found.append(
            Relaxation(kind=kind, change=change.text, smallest=smallest, plan=outcome.plan)
        )
        if kind not in _INDEPENDENT and _is_safe(outcome.plan, at.request):
            break
    if kind in _INDEPENDENT:
        return found, in_vain
    return found, [] if found else in_vain[-1:]


def _is_safe(plan: Plan, request: Request) -> bool:
    return plan.fit_probability >= request.fit_probability


@dataclass(frozen=True)
class Outcome:
    """What the search of a change found; `decided`: a plan, or proof that there is none."""

    plan: Plan | None
    decided: bool = True


# A situation, a change of it, when to stop, whether as many GPUs must be used, and whether only a
# plan that fits safely will do.
Check = Callable[[Situation, Change, Until, bool, bool], Outcome]
Kinds = Mapping[RelaxationKind, Callable[[Situation, Until], Changes]]


def verify(
    at: Situation,
    change: Change,
    until: Until,
    same_gpus: bool = True,
    safe_only: bool = False,
    effort: Effort = EFFORT,
) -> Outcome:
    """The fastest plan that was found of the changed job, a safe one if there is any.

    No plan if nothing fits, or the change is not as promised (fewer GPUs are used).
    """
    asked = at.request.fit_probability
    levels = [asked, min(asked, EVEN_CHANCE)]
    if safe_only:
        levels = levels[:1]
    elif effort.any_plan:
        levels = levels[1:]
    try:
        job = change.make()
        wanted = at.gpus if same_gpus else job.cluster.num_gpus
        shares = cost_shares(job)
    except (UsageError, HardwareError, ConstraintError):
        return Outcome(None)
    if shares.job.cluster.num_gpus != wanted:
        return Outcome(None)
    for probability in levels:
        trial = search_costed(shares, probability=probability, effort=until.effort(effort))
        plan = trial.plan()
        if plan is not None:
            return Outcome(plan)
    return Outcome(None, trial.proven)


# --- the user's choices -------------------------------------------------------------------------


def dropped_choices(request: Request) -> dict[str, Request]:
    """For each choice of the user that narrows the search: the request without it."""
    choices: dict[str, Request] = {}
    for condition in request.conditions():
        given = getattr(request, condition.verb)
        left = tuple(text for text in given if " ".join(text.split()) != condition.text)
        if condition.verb == "fix":
            left = tuple(text for text in given if _fixed(text) != condition.text)
        choices[condition.option] = request.model_copy(update={condition.verb: left})
    for name, values in request.limits.items():
        limits = {other: kept for other, kept in request.limits.items() if other != name}
        text = f"--{_option(name)} {','.join(str(value) for value in values)}"
        choices[text] = request.model_copy(update={"limits": limits})
    if request.recompute is not None:
        text = f"--recompute {','.join(request.recompute)}"
        choices[text] = request.model_copy(update={"recompute": None})
    if request.hbm_reserve != "0":
        text = f"--hbm-reserve {request.hbm_reserve}"
        choices[text] = request.model_copy(update={"hbm_reserve": "0"})
    return choices


def _fixed(text: str) -> str:
    from constraints.condition import user_condition

    return user_condition("fix", text).text


def _option(degree: str) -> str:
    return "shard-size" if degree == "shard" else degree.replace("_", "-")


def _conditions(at: Situation, _until: Until) -> Changes:
    item = {condition.option for condition in at.request.conditions()}
    for text, request in dropped_choices(at.request).items():
        if text in item:
            yield Change(f"without {text}", Asked(request, {}))


def _limits(at: Situation, _until: Until) -> Changes:
    for name in at.request.limits:
        others = {other: kept for other, kept in at.request.limits.items() if other != name}
        yield Change(f"without --{_option(name)}", at.asked(limits=others))


def _larger(name: str) -> Callable[[Situation, Until], Changes]:
    """The next larger values of a degree that the user limited."""

    def changes(at: Situation, _until: Until) -> Changes:
        values = at.request.limits.get(name, ())
        tried = range(4) if name == "zero" else [1 << power for power in range(10)]
        for value in (one_range for one_range in tried if values and one_range > max(values)):
            yield Change(f"--{name} {value}", at.asked(limits=at.request.limits | {name: (value,)}))

    return changes


def _tensor(at: Situation, until: Until) -> Changes:
    """More tp: the limit lifted step by step, then beyond the NVLink domain."""
    yield from _larger("tp")(at, until)
    cluster = at.job.cluster
    several = cluster.num_gpus > cluster.scale_up_domain_gpus
    if several and not at.request.allow_tp_across_domains:
        yield Change("--allow-tp-across-nodes", at.asked(allow_tp_across_domains=True))


def _recompute(at: Situation, _until: Until) -> Changes:
    """Modes beside those that the user chose, those that free least first."""
    if at.request.recompute is None:
        return
    names = {mode.name for mode in at.job.recompute}
    for mode in searched_modes(at.job.model, at.job.framework):
        if mode.name not in names:
            yield Change(f"--recompute {mode.name}", at.asked(recompute=(mode.name,)))


def _reserve(at: Situation, _until: Until) -> Changes:
    if at.request.hbm_reserve != "0":
        yield Change("without --hbm-reserve", at.asked(hbm_reserve="0"))


def _everything(at: Situation) -> Changes:
    """All of the user's choices dropped together."""
    choices = dropped_choices(at.request)
    if len(choices) > 1:
        free = at.asked(require=(), forbid=(), fix=(), limits={}, recompute=None, hbm_reserve="0")
        yield Change("without " + ", ".join(choices), free, complete=False)


# --- the job ------------------------------------------------------------------------------------


def _batch(at: Situation, _until: Until) -> Changes:
    """A looser tolerance of the batch: more replica counts and micro-batches divide it."""
    if at.request.gbs_tokens is None:
        return
    for tolerance in TOLERANCES:
        if tolerance > at.request.gbs_tolerance:
            yield Change(f"--gbs-tolerance {tolerance:g}", at.asked(gbs_tolerance=tolerance))


def smaller_optimizers(at: Situation, _until: Until) -> Changes:
    """Optimizers with less state."""
    for name in SMALLER_OPTIMIZERS:
        if load_optimizer(name).state_bytes < at.job.optimizer.state_bytes:
            yield Change(f"--optimizer {name}", at.asked(optimizer=name))


def larger_offloads(at: Situation, _until: Until) -> Changes:
    """More of the optimizer on the CPU."""
    if at.request.optimizer_offload == "search":
        return
    for share in OFFLOADED_SHARES:
        if share > at.request.optimizer_offload:
            yield Change(f"--optimizer-offload {share:g}", at.asked(optimizer_offload=share))


def _activations(at: Situation, _until: Until) -> Changes:
    """Activations of more modules on the host, where the framework has it."""
    profile = at.job.framework
    if at.request.activation_offload == "search" or not profile.activation_offload.modules:
        return
    for modules in searched_offloads(profile, at.job.model):
        if set(modules) > set(at.job.activation_offload):
            named = spelled(modules, profile, at.job.model)
            yield Change(f"--activation-offload {named}", at.asked(activation_offload=named))


def _dtype(at: Situation, _until: Until) -> Changes:
    if at.job.dtype != "bf16":
        precision = "bf16" if at.request.precision == "fp32" else at.request.precision
        yield Change("--dtype bf16", at.asked(dtype="bf16", precision=precision))


def shorter_sequences(at: Situation, _until: Until) -> Changes:
    """Halved sequences; the batch keeps its tokens."""
    if at.job.ramp and at.job.batch.exact:
        return  # each of its batches would have to follow
    factor = 2
    while at.job.seq % factor == 0 and at.job.seq // factor >= SHORTEST_SEQUENCE:
        seq = at.job.seq // factor
        if at.request.gbs is None:
            yield Change(f"--seq {seq}", at.asked(seq=seq))
        else:
            gbs = at.request.gbs * factor
            yield Change(f"--seq {seq} --gbs {gbs}", at.asked(seq=seq, gbs=gbs))
        factor *= 2


def _framework(at: Situation, _until: Until) -> Changes:
    """A framework with a higher ZeRO stage."""
    zero_stage = max(at.job.framework.parallelism.zero_stages)
    if max(at.request.limits.get("zero", (zero_stage,))) < zero_stage:
        return
    for name in SHARDING_FRAMEWORKS:
        stage = max(load_framework(name).parallelism.zero_stages)
        if stage > zero_stage:
            text = f"--framework {name} (ZeRO {stage})"
            yield Change(text, at.asked(framework=name, dtype=None, recompute=None))


# --- the machines -------------------------------------------------------------------------------


def _gpus(at: Situation, until: Until) -> Changes:
    """More GPUs, the smallest number first: GPUs of a node, then whole nodes.

    Doublings show first how far to look; where none of them fits, only a few nodes more are tried.
    """
    cluster = at.job.cluster
    node, num_gpus = cluster.node_gpus, cluster.num_gpus
    first = max(2, num_gpus // node + 1)
    enough = _enough_doubled(at, until)
    most = max(first + NODES_BEYOND, (enough or 0) * 2 // node)
    counts = [*range(num_gpus + 1, node + 1), *(nodes * node for nodes in range(first, most + 1))]
    for count in counts[:COUNTS_TRIED]:
        yield Change(*_with_gpus(at, count))
    if enough is not None and enough > counts[:COUNTS_TRIED][-1]:
        yield Change(*_with_gpus(at, enough), complete=False)


def _enough_doubled(at: Situation, until: Until) -> int | None:
    """The first doubling of the GPUs with which something fits."""
    for doubling in range(1, MOST_DOUBLINGS + 1):
        count = at.job.cluster.num_gpus << doubling
        if until.over("gpus"):
            break
        change = Change(*_with_gpus(at, count))
        if verify(at, change, until, same_gpus=False, effort=PROBE).plan is not None:
            return count
    return None


def _with_gpus(at: Situation, count: int) -> tuple[str, Make]:
    """What to type for another number of GPUs, and the job with it."""
    match = re.fullmatch(r"(?P<count>[\d,_]+)x(?:\d+x)?(?P<name>.+)", at.request.gpus or "")
    shaped = re.fullmatch(r"[\d,_]+x(?P<node>\d+)x.+", at.request.gpus or "")
    if match is None:
        cluster = at.job.cluster.with_gpus(count)
        return f"num_gpus = {count} in the cluster file", lambda: replace(at.job, cluster=cluster)
    node = at.job.cluster.node_gpus
    if shaped and count % node == 0:
        gpus = f"{count // node}x{node}x{match['name']}"
    else:
        gpus = f"{count}x{match['name']}"
    return f"--gpus {gpus}", at.asked(gpus=gpus)


def _gpu_type(at: Situation, _until: Until) -> Changes:
    """GPUs with more memory that are no step back otherwise, the smallest first.

    Of the same vendor, in NVLink domains at least as large, at least as fast in the precision.
    Of equals a part at its full power comes before the same part held below it.
    """
    cluster, precision = at.job.cluster, at.job.precision
    known = sorted(map(load_gpu, gpu_names()), key=lambda gpu: (gpu.hbm_usable_bytes, -gpu.tdp_w))
    for gpu in known:
        better = (
            gpu.vendor == cluster.gpu.vendor
            and gpu.hbm_usable_bytes > cluster.gpu.hbm_usable_bytes
            and gpu.peak_flop_per_s.get(precision, 0.0) >= cluster.gpu.peak(precision)
            and gpu.scale_up_domain_gpus >= cluster.gpu.scale_up_domain_gpus
        )
        if better:
            gpus = f"{cluster.num_gpus}x{gpu.name}"
            yield Change(f"--gpus {gpus}", at.asked(gpus=gpus, cluster=None))


KINDS: Kinds = {
    "condition": _conditions,
    "limit": _limits,
    "zero": _larger("zero"),
    "tp": _tensor,
    "recompute": _recompute,
    "reserve": _reserve,
    "batch": _batch,
    "optimizer": smaller_optimizers,
    "offload": larger_offloads,
    "activation-offload": _activations,
    "dtype": _dtype,
    "sequence": shorter_sequences,
    "framework": _framework,
    "gpus": _gpus,
    "gpu-type": _gpu_type,
}
