"""Changes that would make something fit: of each kind the smallest, found by searching.

A change is kept only if the search of the changed job found a plan. Changes are made to the
request, so what is printed can be typed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from hardware.load import gpu_names, load_gpu
from planner.job.errors import UsageError
from planner.job.pool import Pool
from planner.job.request import Request
from planner.predict.plan import Plan
from planner.predict.uncertainty.likely import EVEN_CHANCE
from planner.search import changes
from planner.search.changes import Change, Changes, Make, Situation
from planner.search.infeasibility import Relaxation, RelaxationKind
from planner.search.limit_results import Effort, Progress, Until
from planner.search.shares import cost_shares
from planner.search.trial import search_costed

# Numbers of GPUs tried one by one, and nodes beyond the present ones that always are.
COUNTS_TRIED = 64
NODES_BEYOND = 4
MOST_DOUBLINGS, POOL_DOUBLINGS = 10, 2
# Work for one change: enough to find a plan, not to prove it the fastest. Changes differ by more.
EFFORT = Effort(most_solves=6, most_work_s=1.0, tie=0.02)
# Work to learn whether anything fits at all.
PROBE = replace(EFFORT, any_plan=True)
# Kinds whose changes do not build on each other.
_INDEPENDENT = ("condition", "limit")
# Kinds that need other machines, and those after which another model is trained.
_MACHINES = ("gpus", "gpu-type")
_OTHER_TRAINING = ("optimizer", "dtype", "sequence", "batch")


@dataclass(frozen=True)
class Tried:
    """`found`: changes with a plan, easiest first; `in_vain`: of each kind without, the last."""

    found: list[Relaxation]
    in_vain: list[str]


def find_relaxations(
    at: Situation,
    progress: Progress,
    until: Until | None = None,
    kinds: Kinds | None = None,
    check: Check | None = None,
) -> Tried:
    """The smallest change of each kind that was verified to give a plan, easiest first.

    `until`: when to stop; it then knows which kinds were not tried, or not to their end. `kinds`:
    of changes, KINDS unless given; `check`: searches a changed job, as `verify` does.
    """
    until, kinds, check = until or Until(), kinds or KINDS, check or verify
    found: list[Relaxation] = []
    in_vain: list[str] = []
    for index, (kind, of_kind) in enumerate(kinds.items()):
        progress(f"searching what would fit: {kind}", index, len(kinds))
        item, vain = _smallest(at, kind, of_kind(at, until), until, check)
        found += item
        in_vain += vain
    if not found:
        found, _ = _smallest(at, "everything", changes.everything(at), until, check)
    return Tried(sorted(found, key=_ease), in_vain)


def _ease(relaxation: Relaxation) -> tuple[int, float]:
    """Options before changes of what is trained, and those before other machines; the fastest of
    each first."""
    rank = 2 if relaxation.kind in _MACHINES else 1 if relaxation.kind in _OTHER_TRAINING else 0
    return rank, relaxation.seconds_per_token


def _smallest(
    at: Situation, kind: RelaxationKind, tries: Changes, until: Until, check: Check
) -> tuple[list[Relaxation], list[str]]:
    """The first change that fits safely, and the first that at least probably fits, if smaller;
    the last change that was tried if none does.

    Of changes that do not build on each other, each that fits, and each that does not.
    """
    found: list[Relaxation] = []
    in_vain: list[str] = []
    all_decided = True
    for change in tries:
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
class ChangeOutcome:
    """What the search of a change found; `decided`: a plan, or proof that there is none."""

    plan: Plan | None
    decided: bool = True


# A situation, a change of it, when to stop, whether as many GPUs must be used, and whether only a
# plan that fits safely will do.
Check = Callable[[Situation, Change, Until, bool, bool], ChangeOutcome]
Kinds = Mapping[RelaxationKind, Callable[[Situation, Until], Changes]]


def verify(
    at: Situation,
    change: Change,
    until: Until,
    same_gpus: bool = True,
    safe_only: bool = False,
    effort: Effort = EFFORT,
) -> ChangeOutcome:
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
        return ChangeOutcome(None)
    if shares.job.cluster.num_gpus != wanted:
        return ChangeOutcome(None)
    for probability in levels:
        trial = search_costed(shares, probability=probability, effort=until.effort(effort))
        plan = trial.plan()
        if plan is not None:
            return ChangeOutcome(plan)
    return ChangeOutcome(None, trial.proven)


# --- the machines -------------------------------------------------------------------------------


def _gpus(at: Situation, until: Until) -> Changes:
    """More GPUs, the smallest number first: GPUs of a node, then whole nodes.

    Doublings show first how far to look; where none of them fits, only a few nodes more are tried.
    """
    if at.job.pool is not None:
        yield from _larger_pools(at, at.job.pool)
        return
    cluster = at.job.cluster
    node, num_gpus = cluster.node_gpus, cluster.num_gpus
    first = max(2, num_gpus // node + 1)
    enough = _enough_doubled(at, until)
    most = max(first + NODES_BEYOND, (enough or 0) * 2 // node)
    counts = [*range(num_gpus + 1, node + 1), *(nodes * node for nodes in range(first, most + 1))]
    counts = [count for count in counts[:COUNTS_TRIED] if cluster.connects(count)]
    for count in counts:
        yield Change(*_with_gpus(at, count))
    if enough is not None and enough > counts[-1]:
        yield Change(*_with_gpus(at, enough), complete=False)


def _larger_pools(at: Situation, pool: Pool) -> Changes:
    """All clusters of a pool doubled, and again."""
    for doubling in range(1, POOL_DOUBLINGS + 1):
        gpus = "+".join(
            f"{part.num_gpus << doubling}x{text.rpartition('x')[2]}"
            for part, text in zip(pool.parts, pool.texts, strict=True)
        )
        yield Change(f"--gpus {gpus}", at.asked(gpus=gpus))


def _enough_doubled(at: Situation, until: Until) -> int | None:
    """The first doubling of the GPUs with which something fits."""
    for doubling in range(1, MOST_DOUBLINGS + 1):
        count = at.job.cluster.num_gpus << doubling
        if not at.job.cluster.connects(count) or until.over("gpus"):
            break
        change = Change(*_with_gpus(at, count))
        if verify(at, change, until, same_gpus=False, effort=PROBE).plan is not None:
            return count
    return None


def _with_gpus(at: Situation, count: int) -> tuple[str, Make]:
    """What to type for another number of GPUs, and the job with it."""
    changes = at.request.on_gpus(count)
    if changes is None:
        return f"num_gpus = {count} in the cluster file", lambda: at.job.on_gpus(count)
    return f"--gpus {changes['gpus']}", at.asked(**changes)


def _gpu_type(at: Situation, _until: Until) -> Changes:
    """GPUs with more memory that are no step back otherwise, the smallest first.

    Of the same vendor, in NVLink domains at least as large, at least as fast in the precision.
    Of equals a part at its full power comes before the same part held below it.
    """
    if at.job.pool is not None:
        return
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
    "condition": changes.conditions,
    "limit": changes.degree_limits,
    "zero": changes.larger_degree("zero"),
    "tp": changes.tensor_degrees,
    "recompute": changes.recompute_modes,
    "reserve": changes.memory_reserve,
    "batch": changes.batch_tolerance,
    "technique": changes.techniques,
    "optimizer": changes.smaller_optimizers,
    "offload": changes.larger_offloads,
    "activation-offload": changes.activation_offloads,
    "dtype": changes.dtypes,
    "sequence": changes.shorter_sequences,
    "framework": changes.framework_changes,
    "gpus": _gpus,
    "gpu-type": _gpu_type,
}
