"""The neighbours of a plan: configurations one degree away on the same GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.job.job import Job
from planner.predict.plan import Degrees

if TYPE_CHECKING:
    from planner.predict.evaluate import Proposal

    # The difference, such as `tp 8 (dp 1)`, and the configuration that has it.
    Neighbour = tuple[str, Proposal]

# The degree that gives or takes a factor of two when another one changes, in order of preference.
_COMPENSATION = {"tp": ("dp", "pp", "cp"), "pp": ("dp", "tp", "cp"), "cp": ("dp", "pp", "tp")}


def neighbours(plan: Proposal, job: Job, gbs: int) -> Iterator[Neighbour]:
    """Each degree one step up and down, if that is possible on the same GPUs.

    Other degrees follow: dp, or else another degree of the ranks, compensates for the GPUs, and
    grad_acc for the batch of `gbs` sequences, as closely as possible. The rules decide if a
    neighbour is legal.
    """
    for changes in _steps(plan.degrees, job, gbs):
        yield _step(plan, job, gbs, changes)
    yield from _recompute_modes(plan, job)


def _steps(degrees: Degrees, job: Job, gbs: int) -> Iterator[dict[str, int]]:
    """Degrees that change together; the first is the step itself."""
    yield from _splits(degrees, job)
    yield from _experts(degrees, job)
    yield from _chunks(degrees, job)
    yield from _micro_batches(degrees, gbs)
    for stage in job.framework.parallelism.zero_stages:
        if stage != degrees.zero:
            yield {"zero": stage}


def _splits(degrees: Degrees, job: Job) -> Iterator[dict[str, int]]:
    """tp, pp and cp, each doubled and halved."""
    for name, compensations in _COMPENSATION.items():
        if not _offered(name, job):
            continue
        value = getattr(degrees, name)
        for giver in compensations:
            given = getattr(degrees, giver)
            if given % 2 == 0:
                yield {name: value * 2, giver: given // 2}
                break
        if value % 2 == 0:
            yield {name: value // 2, "dp": degrees.dp * 2}


def _offered(name: str, job: Job) -> bool:
    rules = job.framework.parallelism
    return {"tp": rules.tensor, "pp": rules.pipeline, "cp": rules.context}[name]


def _experts(degrees: Degrees, job: Job) -> Iterator[dict[str, int]]:
    """ep doubled and halved."""
    if job.model.moe is None or not job.framework.parallelism.expert:
        return
    ep = degrees.ep
    if ep * 2 <= job.model.moe.experts:
        yield {"ep": ep * 2}
    if ep % 2 == 0:
        yield {"ep": ep // 2}


def _chunks(degrees: Degrees, job: Job) -> Iterator[dict[str, int]]:
    """vpp changed to the next larger and smaller number that splits the layers as evenly."""
    pp, vpp = degrees.pp, degrees.vpp
    fixed = job.schedule not in (None, "interleaved", "zb-h1")
    if pp == 1 or fixed or not job.framework.parallelism.interleaved:
        return
    per_stage = -(-job.model.layers // pp)
    even = [count for count in range(1, per_stage + 1) if per_stage % count == 0]
    larger = [count for count in even if count > vpp]
    smaller = [count for count in even if count < vpp]
    for count in (*larger[:1], *smaller[-1:]):
        yield {"vpp": count}


def _micro_batches(degrees: Degrees, gbs: int) -> Iterator[dict[str, int]]:
    """mbs doubled and halved."""
    mbs = degrees.mbs
    if mbs * 2 * degrees.dp <= gbs:
        yield {"mbs": mbs * 2}
    if mbs % 2 == 0:
        yield {"mbs": mbs // 2}


def _recompute_modes(plan: Proposal, job: Job) -> Iterator[Neighbour]:
    """The modes before and after the plan's, in the framework's order (none to full)."""
    names = [mode.name for mode in job.recompute]
    if plan.recompute not in names:
        return
    at = names.index(plan.recompute)
    for name in (*names[at + 1 : at + 2], *names[max(at - 1, 0) : at]):
        yield f"recompute {name}", replace(plan, recompute=name)


def _step(plan: Proposal, job: Job, gbs: int, changes: dict[str, int]) -> Neighbour:
    degrees = _complete(plan.degrees.model_copy(update=changes), plan.degrees, job, gbs)
    (name, value), *others = changes.items()
    forced = [f"{other} {given}" for other, given in others]
    if degrees.vpp != plan.degrees.vpp and name != "vpp":
        forced.append(f"vpp {degrees.vpp}")
    if degrees.gbs != gbs:
        forced.append(f"gbs {degrees.gbs:,}")
    along = f" ({', '.join(forced)})" if forced else ""
    return f"{name} {value}{along}", replace(plan, degrees=degrees)


def _complete(degrees: Degrees, before: Degrees, job: Job, gbs: int) -> Degrees:
    """Set the dependent degrees: etp with tp, fewer chunks on fewer layers, grad_acc for the
    batch."""
    follows = job.model.moe is not None and before.etp == before.tp
    etp = degrees.tp if follows else before.etp
    vpp = 1 if degrees.pp == 1 else min(degrees.vpp, max(1, job.model.layers // degrees.pp))
    step = degrees.mbs * degrees.dp
    grouped = vpp > 1 and job.framework.parallelism.interleaved_microbatches != "any"
    group = degrees.pp if grouped else 1
    grad_acc = max(1, round(gbs / (step * group))) * group
    return degrees.model_copy(update={"etp": etp, "vpp": vpp, "grad_acc": grad_acc})
