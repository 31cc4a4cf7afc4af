"""Why nothing fits, and the smallest changes that would make something fit, each searched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from constraints.layout import LAYOUT_RULES
from hardware import HardwareError, gpu_names, load_gpu, parse_gpus
from planner.cost import fields as f
from planner.errors import NothingFitsError, UsageError
from planner.job import HbmReserve, Job, searched_modes
from planner.optimizer_rules import supports
from planner.optimizers import load_optimizer
from planner.recomputation import recomputation
from planner.request import Request
from planner.search.arrays import kernel_layout, plain_context
from planner.search.conflict import layout_conflict
from planner.search.costed import CostedJob, cost_job
from planner.search.explorer import Effort, Explorer
from planner.search.terms import layout_context, shape_terms

GIB = 2.0**30
# Doublings of the GPUs and halvings of the sequence that are tried.
MOST_DOUBLINGS = 10
SHORTEST_SEQUENCE = 512
# Optimizers with less state, the nearest to AdamW first.
SMALLER_OPTIMIZERS = ("adamw-bf16", "adamw-8bit")
# Layouts solved to verify one relaxation, at most.
RELAXATION_SOLVES = 16


@dataclass(frozen=True)
class Relaxation:
    """A change after which a plan was found: seconds of its step, bytes of its peak."""

    change: str
    step_time_s: float
    peak_bytes: float

    def sentence(self) -> str:
        """The change and what it leads to."""
        return f"{self.change}: {self.step_time_s:.3g} s a step, {self.peak_bytes / GIB:.1f} GiB"


class DoesNotFitError(NothingFitsError):
    """Every legal configuration exceeds the memory; `conflict` says why, in sentences.

    `relaxations`: verified changes that make a plan fit, the fastest first.
    """

    def __init__(self, conflict: tuple[str, ...], relaxations: tuple[Relaxation, ...]) -> None:
        self.conflict = conflict
        self.relaxations = relaxations
        lines = ["no configuration fits:", *(f"  - {reason}" for reason in conflict)]
        if relaxations:
            lines.append("each of these fits (searched):")
            lines += [f"  - {own.sentence()}" for own in relaxations]
        super().__init__("\n".join(lines))


def nothing_fits(request: Request, costed_job: CostedJob, explorer: Explorer) -> DoesNotFitError:
    """The error to raise when no plan fits; searches the relaxations."""
    conflict = explain(costed_job, explorer)
    found = relaxations(request.resolve(), restricted=request.recompute is not None)
    return DoesNotFitError(conflict, tuple(sorted(found, key=lambda own: own.step_time_s)))


def explain(costed_job: CostedJob, explorer: Explorer) -> tuple[str, ...]:
    """Sentences with numbers: what the lightest shape needs, and the rules in its way."""
    row = int(np.argmin(explorer.peak))
    job, columns = costed_job.job, costed_job.candidates.columns
    mode = job.recompute[int(columns["recompute"][row])]
    stage = int(costed_job.costed.steps[row, f.STEP_PEAK_STAGE])
    named = ", ".join(
        f"{name}={int(columns[name][row])}" for name in ("tp", "pp", "cp", "ep", "dp", "zero")
    )
    available = f"{explorer.limit_bytes / GIB:.1f} GiB may be used"
    lines = [
        f"stage {stage} of the lightest even configuration ({named}, mbs="
        f"{int(columns['mbs'][row])}, recompute {mode.name}) needs "
        f"{explorer.peak[row] / GIB:.1f} GiB; {available}"
    ]
    parts = _largest_parts(costed_job, explorer, row, stage)
    lines.append(f"of these: {parts}")
    kind = recomputation(mode, job.framework)
    terms = shape_terms(costed_job.cost_model, costed_job.costed, row, kind)
    ctx = layout_context(terms, job.model.kind_indices, job.framework, mode, explorer.limit_bytes)
    core = layout_conflict(ctx)
    if core:
        lines.append("no other split of its layers fits either: " + _rules(core))
    return tuple(lines)


def _rules(core: tuple[str, ...]) -> str:
    """The conflicting rules in words, the stages of the memory rule gathered."""
    stages = sorted(int(name.split("[")[1][:-1]) for name in core if "[" in name)
    sentences = [rule.sentence for rule in LAYOUT_RULES if rule.name in core]
    if stages:
        which = ", ".join(str(stage) for stage in stages)
        noun = "stage" if len(stages) == 1 else "stages"
        sentences.append(f"the memory limit of {noun} {which}")
    return "; ".join(sentences)


def _largest_parts(costed_job: CostedJob, explorer: Explorer, row: int, stage: int) -> str:
    """The three largest memory terms of a stage."""
    layout = explorer.even_point(row).layout
    job = costed_job.job
    mode = job.recompute[int(costed_job.candidates.columns["recompute"][row])]
    ctx = plain_context(job, layout.pp, layout.vpp, recomputation(mode, job.framework))
    counts = kernel_layout(costed_job.cost_model, layout, ctx)
    _, stages = costed_job.cost_model.cost_layout(costed_job.costed, row, counts)
    sizes = {
        "weights": stages[stage, f.STAGE_WEIGHTS],
        "gradients": stages[stage, f.STAGE_GRADIENTS],
        "optimizer": stages[stage, f.STAGE_OPTIMIZER],
        "activations": stages[stage, f.STAGE_ACTIVATIONS],
        "working set": stages[stage, f.STAGE_WORKING],
        "logits": stages[stage, f.STAGE_LOGITS],
    }
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    return ", ".join(f"{name} {sizes[name] / GIB:.1f} GiB" for name in largest)


def relaxations(job: Job, restricted: bool) -> Iterator[Relaxation]:
    """Changes to a job that make it fit; of each kind the smallest that does.

    `restricted`: the user chose the recompute modes.
    """
    kinds = (
        _recompute(job) if restricted else iter(()),
        _limits(job),
        _reserve(job),
        _gpus(job),
        _sequence(job),
        _optimizer(job),
        _bigger_gpu(job),
    )
    for kind in kinds:
        for change, relaxed in kind:
            found = verify(change, relaxed)
            if found is not None:
                yield found
                break


def verify(change: str, job: Job) -> Relaxation | None:
    """Search a changed job; None if nothing fits there either, or nothing is legal."""
    try:
        costed_job = cost_job(job)
    except (UsageError, HardwareError):
        return None
    # Fewer GPUs than asked for would not be the change that is promised.
    if costed_job.job.cluster.num_gpus != job.cluster.num_gpus:
        return None
    rung = costed_job.explorer(Effort(most_solves=RELAXATION_SOLVES)).climb(0)
    if rung.point is None:
        return None
    gbs = int(costed_job.candidates.columns["gbs"][rung.point.row])
    return Relaxation(change, rung.point.pace * gbs, rung.point.peak)


Changes = Iterator[tuple[str, Job]]


def _recompute(job: Job) -> Changes:
    names = {mode.name for mode in job.recompute}
    for mode in reversed(searched_modes(job.model, job.framework)):
        if mode.name not in names:
            yield f"recompute {mode.name}", replace(job, recompute=(mode,))


def _limits(job: Job) -> Changes:
    for name in job.limits:
        others = {other: values for other, values in job.limits.items() if other != name}
        yield f"leave {name} free", replace(job, limits=others)


def _reserve(job: Job) -> Changes:
    if job.reserve != HbmReserve():
        yield "no --hbm-reserve", replace(job, reserve=HbmReserve())


def _gpus(job: Job) -> Changes:
    for doubling in range(1, MOST_DOUBLINGS + 1):
        count = job.cluster.num_gpus << doubling
        yield f"{count:,} GPUs", replace(job, cluster=job.cluster.with_gpus(count))


def _sequence(job: Job) -> Changes:
    """Halved sequences; a batch given in tokens keeps its tokens."""
    seq = job.seq // 2
    while seq >= SHORTEST_SEQUENCE:
        batch = job.batch
        if batch.asked_tokens is not None:
            batch = replace(batch, sequences=batch.asked_tokens / seq)
        yield f"sequences of {seq:,} tokens", replace(job, seq=seq, batch=batch)
        seq //= 2


def _optimizer(job: Job) -> Changes:
    for name in SMALLER_OPTIMIZERS:
        optimizer = load_optimizer(name)
        smaller = optimizer.state_bytes < job.optimizer.state_bytes
        if smaller and supports(job.framework, optimizer):
            yield f"optimizer {name}", replace(job, optimizer=optimizer)


def _bigger_gpu(job: Job) -> Changes:
    """GPUs of the same vendor with more memory that have the precision, the smallest first."""
    own = job.cluster.gpu
    known = sorted((load_gpu(name) for name in gpu_names()), key=lambda gpu: gpu.hbm_usable_bytes)
    for gpu in known:
        more = gpu.hbm_usable_bytes > own.hbm_usable_bytes
        if more and gpu.vendor == own.vendor and job.precision in gpu.peak_flop_per_s:
            cluster = parse_gpus(f"{job.cluster.num_gpus}x{gpu.name}")
            yield f"{job.cluster.num_gpus:,} {gpu.name}", replace(job, cluster=cluster)
