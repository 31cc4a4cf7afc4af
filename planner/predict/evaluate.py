"""The cost of one configuration that is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from constraints.rule import Layout
from planner.job.bounds import MOST_SEQUENCES
from planner.job.errors import UsageError
from planner.job.frameworks import RecomputeMode, load_framework
from planner.job.job import Job
from planner.job.quantities import run_lengths
from planner.job.recomputation import layer_modes
from planner.job.recompute import Recomputed, demand_parts
from planner.job.request import Request
from planner.predict.altered_model import AlteredModel, Factors
from planner.predict.configuration import even_layout, in_mode, plain_context
from planner.predict.costed_plan import job_plan
from planner.predict.layout_wording import layout_problems
from planner.predict.plan import Degrees, Plan
from planner.predict.shapes import broken_rules, given_columns


def evaluate(
    request: Request,
    degrees: Degrees,
    recompute: str = "none",
    block_layers: Sequence[int] | None = None,
    recomputed: Recomputed | None = None,
    mtp_standalone: bool = False,
) -> Plan:
    """Cost one given configuration, without searching.

    `block_layers`: layers of each block in pipeline order (default: even). `recomputed`: layers
    of each stage that recompute, or those of each mode (default: all, unless the mode is `none`).
    `mtp_standalone`: multi-token prediction in the block before the last. The plan may not fit:
    read `fits`. Without `request.cp_comm_type` context parallelism exchanges as is fastest, as in
    a search. UsageError names every rule that the configuration breaks.
    """
    _demand_range(degrees)
    layers = block_layers, recomputed, mtp_standalone
    return evaluate_job(request.resolve(), degrees, recompute, *layers)


def evaluate_job(
    job: Job,
    degrees: Degrees,
    recompute: str = "none",
    block_layers: Sequence[int] | None = None,
    recomputed: Recomputed | None = None,
    mtp_standalone: bool = False,
    factors: Factors | None = None,
) -> Plan:
    """`evaluate` of a request that is resolved; `factors`: on numbers of the cost core."""
    _demand_range(degrees)
    job = replace(job, recompute=given_modes(job, recompute, recomputed))
    for mode in job.recompute:
        demand_parts(mode, job.model)
    layout = given_layout(job, degrees, block_layers, recomputed, mtp_standalone)
    cost_model = AlteredModel(job, factors or {}, compiled=False)
    columns = given_columns(degrees)
    costed = cost_model.cost_shapes(columns)
    return job_plan(cost_model, costed, 0, layout, columns, "evaluated")


def given_modes(
    job: Job, recompute: str, recomputed: Recomputed | None
) -> tuple[RecomputeMode, ...]:
    """Recompute modes of a configuration, its own first; arguments as `evaluate`."""
    further = recomputed if isinstance(recomputed, Mapping) else ()
    return tuple(dict.fromkeys(map(job.framework.recompute_mode, (recompute, *further))))


def _demand_range(degrees: Degrees) -> None:
    """UsageError if a product of degrees would leave 64-bit integers."""
    for what, number in (("GPUs", degrees.gpus), ("sequences a step", degrees.gbs)):
        if number > MOST_SEQUENCES:
            raise UsageError(
                f"these degrees make {number:,} {what}, beyond 64-bit integers once they are "
                f"multiplied; give at most {MOST_SEQUENCES:,}"
            )


def _nearest_batch(job: Job, degrees: Degrees) -> str:
    step, gbs = degrees.mbs * degrees.dp, job.batch.sequences
    nearest = max(1, round(gbs / step)) * step
    mbs = next((n for n in range(degrees.mbs, 0, -1) if gbs % (n * degrees.dp) == 0), None)
    other = "" if mbs is None or mbs == degrees.mbs else f", or --mbs {mbs}"
    return f": mbs·dp is {degrees.mbs}·{degrees.dp} = {step}; give --gbs {nearest:.0f}{other}"


def _technique_with_zero_stage(job: Job, degrees: Degrees) -> str:
    for technique in job.framework.techniques:
        other_profile = technique.profile and load_framework(technique.profile)
        if other_profile and degrees.zero in other_profile.parallelism.zero_stages:
            return f": --with {technique.name} has {degrees.zero}"
    return ""


def _whole_experts(job: Job, degrees: Degrees) -> str:
    """etp 1, where that is legal and the degree is only the framework's default."""
    usual = job.framework.usual_etp(experts=True, tp=degrees.tp, ep=degrees.ep)
    stage = degrees.dp * degrees.cp * degrees.tp
    if degrees.etp != usual or usual == 1 or stage % degrees.ep:
        return ""
    return f": without --etp {job.framework.name} takes etp = tp = {usual}; give --etp 1"


# The nearest fix of a broken rule, where the degrees tell it.
_FIXES = {
    "batch-size": _nearest_batch,
    "zero-stage-offered": _technique_with_zero_stage,
    "experts-fill-stage": _whole_experts,
    "expert-ffn-by-etp": _whole_experts,
}


def _broken(job: Job, degrees: Degrees) -> list[str]:
    """What each rule that degrees break demands, with its nearest fix."""
    return [
        text + (_FIXES[rule](job, degrees) if rule in _FIXES else "")
        for rule, text in broken_rules(job, degrees).items()
    ]


def given_layout(
    job: Job,
    degrees: Degrees,
    block_layers: Sequence[int] | None,
    recomputed: Recomputed | None,
    mtp_standalone: bool = False,
) -> Layout:
    """The layout that was given, completed. UsageError if it or the degrees break a rule.

    `job.recompute`: `given_modes`; the rest as `evaluate`.
    """
    if broken := _broken(job, degrees):
        raise UsageError("this configuration breaks rules:\n  - " + "\n  - ".join(broken))
    mode = job.recompute[0]
    even = even_layout(job, degrees.pp, degrees.vpp, mode, mtp_standalone)
    blocks = even.block_layers if block_layers is None else tuple(block_layers)
    _demand_length("layers per block", blocks, degrees.pp * degrees.vpp, "pp·vpp blocks")
    layout = replace(even, block_layers=blocks)
    if mode.block and recomputed is not None:
        raise UsageError("give the layers once: --recompute full:block=N, or numbers of layers")
    if recomputed is None:
        again = _all_layers(layout, mode)
    else:
        again = recomputed if isinstance(recomputed, Mapping) else {mode.name: recomputed}
    for counts in again.values():
        _demand_length("recomputed", tuple(counts), degrees.pp, "pp stages")
    named = {job.framework.recompute_mode(name).name: tuple(again[name]) for name in again}
    rows = {one.name: named[one.name] for one in job.recompute if any(named.get(one.name, ()))}
    layout = replace(layout, recomputed=rows)
    _demand_mix(job)
    _demand_checkpoints(job, layout)
    broken = layout_problems(job, layout, plain_context(job, degrees.pp, degrees.vpp, mode))
    if broken:
        raise UsageError("\n".join(broken))
    return layout


def _all_layers(layout: Layout, mode: RecomputeMode) -> Mapping[str, Sequence[int]]:
    """All layers in a mode, or as many of each block (model chunk) as it says."""
    whole = in_mode(layout, mode).recomputed
    if not mode.block:
        return whole
    return {mode.name: layout.per_stage([min(mode.block, n) for n in layout.block_layers])}


def _demand_mix(job: Job) -> None:
    """UsageError if the framework cannot give single layers all modes of a job."""
    if len(job.recompute) in (1, len(layer_modes(job, job.recompute[0]))):
        return
    names = ", ".join(mode.name for mode in job.recompute)
    raise UsageError(
        f"recompute modes {names} in one plan: {job.framework.name} takes one mode for all layers; "
        "llm-foundry can mix, with full as the first mode  [recompute-expressible]"
    )


def _demand_checkpoints(job: Job, layout: Layout) -> None:
    """UsageError if a checkpoint would hold more layers than a block has."""
    span, least = job.recompute[0].span, min(layout.block_layers, default=0)
    if span > 1 and span > least:
        raise UsageError(
            f"--recompute full:uniform={span}: a block of the pipeline holds {least} layers, and "
            f"a checkpoint no more than that; give uniform={max(1, least)} or less  "
            "[recompute-uniform]"
        )


def _demand_length(name: str, given: tuple[int, ...], wanted: int, what: str) -> None:
    if len(given) != wanted or min(given) < 0:
        raise UsageError(
            f"{name} {run_lengths(given)}: give {wanted} numbers of layers, one for each of the "
            f"{what}"
        )
