"""The cost of one given configuration, if every rule allows it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from constraints.layout import EXPRESSIBLE_RULES
from constraints.layout_context import LayoutContext
from constraints.rule import Layout
from planner.job.bounds import MOST_SEQUENCES
from planner.job.errors import UsageError
from planner.job.frameworks.profile import load_framework
from planner.job.job import Job
from planner.job.quantities import run_lengths
from planner.job.recomputation import layer_modes
from planner.job.recompute import Recomputed, RecomputeMode, demand_parts
from planner.job.request import Request
from planner.predict.calibrated import Factors
from planner.predict.configuration import Configuration, decided_request, in_mode
from planner.predict.cost_model import CostModel
from planner.predict.costed_plan import configured_plan
from planner.predict.plan import Degrees, Plan
from planner.predict.shapes import broken_rules

# `64x`, or `8x8x` for nodes and GPUs per node.
_COUNTED = re.compile(r"^\d+x(?:\d+x)?")


@dataclass(frozen=True)
class Proposal:
    """A configuration that a user or program proposes, legal or not; `resolve` checks it and makes
    the `Configuration`.

    `block_layers`: number of layers of each pipeline block, in pipeline order (None: the
    framework's default). `recomputed`: number of layers of each stage that recompute, or a mapping
    from each mode to such numbers (None: all layers, unless the mode is `none`). `mtp_standalone`:
    multi-token prediction has a block to itself, before the block of head and loss.
    """

    request: Request
    degrees: Degrees
    recompute: str = "none"
    block_layers: tuple[int, ...] | None = None
    recomputed: Recomputed | None = None
    mtp_standalone: bool = False

    @classmethod
    def of_plan(cls, request: Request, plan: Plan) -> Proposal:
        """The configuration of a plan that a search found, on the GPUs that the plan uses."""
        decided = decided_request(request, plan)
        used = plan.degrees.gpus
        if decided.find_cluster().num_gpus != used:
            shape = _COUNTED.sub("", decided.gpus or f"1x{decided.cluster}")
            decided = decided.model_copy(update={"gpus": f"{used}x{shape}", "cluster": None})
        layout = plan.layout
        block = request.find_framework().recompute_mode(plan.recompute).block
        return cls(
            decided,
            plan.degrees,
            plan.recompute,
            layout.block_layers,
            None if block or not layout.recomputed else layout.recomputed,
            layout.mtp_standalone,
        )

    def resolve(self) -> Configuration:
        """The configuration; UsageError names every rule that it breaks."""
        demand_range(self.degrees)
        return self.of(self.request.resolve())

    def of(self, job: Job) -> Configuration:
        """The configuration for a job: the one that the request resolves to, or a variant of it.
        States of a paged optimizer stay on the GPU if they fit there. UsageError if a rule is
        broken."""
        if job.pages_states:
            return settled(self.of(replace(job, offload_shares=())))
        demand_range(self.degrees)
        further = self.recomputed if isinstance(self.recomputed, Mapping) else ()
        modes = map(job.framework.recompute_mode, (self.recompute, *further))
        job = replace(job, recompute=tuple(dict.fromkeys(modes)))
        _demand_degrees(job, self.degrees)
        even = Configuration.even(
            job, self.degrees, self.recompute, mtp_standalone=self.mtp_standalone
        )
        even = replace(even, job=job)
        return _demand_layout(replace(even, layout=self._layout(even)))

    def plan(self) -> Plan:
        """Memory and time; UsageError names every rule that it breaks."""
        return evaluated(self.resolve())

    def changed(
        self,
        request: Mapping[str, Any],
        degrees: Degrees,
        recompute: str | None = None,
        recomputed: Recomputed | None = None,
    ) -> Proposal:
        """The proposal with other request fields, other degrees and, if given, another recompute
        mode. Given layer counts are dropped if the pipeline then has different blocks."""
        same_stages = degrees.pp == self.degrees.pp
        same_blocks = same_stages and degrees.vpp == self.degrees.vpp
        again = self.recomputed if recompute is None else recomputed
        return Proposal(
            self.request.model_copy(update=dict(request)),
            degrees,
            self.recompute if recompute is None else recompute,
            self.block_layers if same_blocks else None,
            again if same_stages else None,
            self.mtp_standalone and same_stages,
        )

    def _layout(self, even: Configuration) -> Layout:
        """The layout that the proposal states, completed by defaults."""
        degrees, mode, layout = self.degrees, even.mode, even.layout
        if self.block_layers is not None:
            _demand_blocks(self.block_layers, degrees)
            layout = replace(layout, block_layers=tuple(self.block_layers))
        if mode.block and self.recomputed is not None:
            raise UsageError(
                "give the recomputed layers only once: by --recompute full:block=N or as numbers"
            )
        if self.recomputed is None:
            again = _all_layers(layout, mode)
        else:
            given = self.recomputed
            again = given if isinstance(given, Mapping) else {mode.name: given}
        for counts in again.values():
            _demand_length("recomputed", tuple(counts), degrees.pp, "pp stages")
        find = even.job.framework.recompute_mode
        named = {find(name).name: tuple(counts) for name, counts in again.items()}
        modes = (one.name for one in even.job.recompute)
        rows = {name: named[name] for name in modes if any(named.get(name, ()))}
        return replace(layout, recomputed=rows)


def evaluate(
    request: Request,
    degrees: Degrees,
    recompute: str = "none",
    block_layers: Sequence[int] | None = None,
    recomputed: Recomputed | None = None,
    mtp_standalone: bool = False,
) -> Plan:
    """Cost one given configuration, without searching; arguments as in `Proposal`.

    The plan need not fit: read `fits`. Without `request.cp_comm_type` context parallelism uses the
    fastest exchange, as in a search. UsageError names every rule that the configuration breaks.
    """
    blocks = None if block_layers is None else tuple(block_layers)
    return Proposal(request, degrees, recompute, blocks, recomputed, mtp_standalone).plan()


def evaluated(configuration: Configuration, factors: Factors | None = None) -> Plan:
    """The cost of a legal configuration; `factors`: factors on inputs of the cost core."""
    model = CostModel(configuration.job, factors, compiled=False)
    return configured_plan(configuration, model, "evaluated")


def settled(configuration: Configuration) -> Configuration:
    """The configuration, with a paged optimizer's states in the memory where the driver will put
    them: on the GPU if they fit there with the probability that the job demands, else in host
    memory."""
    job = configuration.job
    if not job.optimizer.paged or job.optimizer_offload:
        return configuration
    if evaluated(configuration).fit_probability >= job.fit_probability:
        return configuration
    return replace(configuration, job=replace(job, optimizer_offload=1.0))


def checked(configuration: Configuration) -> Configuration:
    """The configuration, or UsageError if it breaks a rule."""
    demand_range(configuration.degrees)
    _demand_degrees(configuration.job, configuration.degrees)
    return _demand_layout(configuration)


def demand_range(degrees: Degrees) -> None:
    """Raise UsageError if the number of GPUs or of sequences would overflow 64-bit integers."""
    for what, number in (("GPUs", degrees.gpus), ("sequences a step", degrees.gbs)):
        if number > MOST_SEQUENCES:
            raise UsageError(
                f"these degrees make {number:,} {what}, too many for 64-bit "
                f"arithmetic; give at most {MOST_SEQUENCES:,}"
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
            return f": --with {technique.name} offers stage {degrees.zero}"
    return ""


def _whole_experts(job: Job, degrees: Degrees) -> str:
    """Advice to give --etp 1, as the end of a sentence; empty unless etp is the framework's default
    above 1 and a stage's GPUs are a multiple of ep."""
    usual = job.framework.usual_etp(experts=True, tp=degrees.tp, ep=degrees.ep)
    if degrees.etp != usual or usual == 1 or degrees.stage_gpus % degrees.ep:
        return ""
    return f": without --etp {job.framework.name} takes etp = tp = {usual}; give --etp 1"


# How to mend a broken rule, if that follows from the degrees.
_FIXES = {
    "batch-size": _nearest_batch,
    "zero-stage-offered": _technique_with_zero_stage,
    "experts-fill-stage": _whole_experts,
    "expert-ffn-by-etp": _whole_experts,
}


def _nearest_fix(rule: str, job: Job, degrees: Degrees) -> str:
    """Advice on how to mend a broken rule, worded as the end of the rule's sentence; empty if there
    is none."""
    if rule in _FIXES:
        return _FIXES[rule](job, degrees)
    technique = re.match(r"--with (\S+), which needs (.+)", rule)
    if technique is None:
        needs = re.search(r", which needs (\w+) == (\d+)$", rule)
        return f": give --{needs[1]} {needs[2]}" if needs and needs[1] in ("tp", "pp", "cp") else ""
    sequences = degrees.mbs * degrees.dp
    batch = f"--gbs {sequences}, or " if technique[2] == "grad_acc == 1" else ""
    return f": give {batch}degrees for which that holds, or leave --with {technique[1]} out"


def _demand_degrees(job: Job, degrees: Degrees) -> None:
    """Raise UsageError if the degrees or the job's recompute modes break a rule."""
    for mode in job.recompute:
        demand_parts(mode, job.model)
    broken = [
        text + _nearest_fix(rule, job, degrees) for rule, text in broken_rules(job, degrees).items()
    ]
    if broken:
        raise UsageError("this configuration breaks rules:\n  - " + "\n  - ".join(broken))


def _demand_layout(configuration: Configuration) -> Configuration:
    """The configuration, or UsageError if the framework cannot have its layout."""
    _demand_blocks(configuration.layout.block_layers, configuration.degrees)
    _demand_mix(configuration.job)
    _demand_checkpoints(configuration)
    if broken := layout_problems(configuration):
        raise UsageError("\n".join(broken))
    return configuration


def usual_zero(job: Job, replicas: int, tp: int) -> int:
    """The ZeRO stage if the user gives none: 0 if there is one replica, so that nothing can be
    sharded, and the framework has stage 0; else the first stage of the framework that works with
    this tp. At least the stage that the job needs."""
    has = job.framework.parallelism
    stages = [stage for stage in has.zero_stages if stage < 3 or tp == 1 or has.zero3_with_tensor]
    if replicas == 1 and 0 in stages and not job.least_zero:
        return 0
    return max(stages[0], job.least_zero)


def _all_layers(layout: Layout, mode: RecomputeMode) -> Mapping[str, Sequence[int]]:
    """The layers that recompute in `mode` if the user states no numbers: by mode, the number on
    each stage. These are all layers, or the number in each block that the mode states."""
    whole = in_mode(layout, mode).recomputed
    if not mode.block:
        return whole
    return {mode.name: layout.per_stage([min(mode.block, n) for n in layout.block_layers])}


def _demand_mix(job: Job) -> None:
    """Raise UsageError if the framework cannot mix the job's recompute modes."""
    if len(job.recompute) in (1, len(layer_modes(job, job.recompute[0]))):
        return
    names = ", ".join(mode.name for mode in job.recompute)
    raise UsageError(
        f"recompute modes {names} in one plan: {job.framework.name} takes one mode for all layers; "
        "llm-foundry can mix, with full as the first mode  [recompute-expressible]"
    )


def _demand_checkpoints(configuration: Configuration) -> None:
    """Raise UsageError if a checkpoint would span more layers than a block has."""
    span, least = configuration.mode.span, min(configuration.layout.block_layers, default=0)
    if span > 1 and span > least:
        raise UsageError(
            f"--recompute full:uniform={span}: a block of the pipeline holds {least} layers, and "
            f"a checkpoint cannot span more; give uniform={max(1, least)} or less  "
            "[recompute-uniform]"
        )


def _demand_blocks(layers: tuple[int, ...], degrees: Degrees) -> None:
    _demand_length("layers per block", layers, degrees.pp * degrees.vpp, "pp·vpp blocks")


def _demand_length(name: str, given: tuple[int, ...], wanted: int, what: str) -> None:
    if len(given) != wanted or min(given) < 0:
        raise UsageError(
            f"{name} {run_lengths(given)}: give {wanted} numbers of layers, one for each of the "
            f"{what}"
        )


def layout_problems(configuration: Configuration) -> list[str]:
    """A sentence for each broken layout rule. If the sum of layers is wrong, the rule on splits is
    not reported."""
    job, layout, ctx = configuration.job, configuration.layout, configuration.context
    broken = [rule.name for rule in EXPRESSIBLE_RULES if not rule.check(layout, ctx)]
    if "every-layer-once" in broken:
        broken = [name for name in broken if name != "split-expressible"]
    return [_sentence(name, job, layout, ctx) for name in broken]


def _sentence(name: str, job: Job, layout: Layout, ctx: LayoutContext) -> str:
    framework, blocks = job.framework.name, list(layout.block_layers)
    if name == "every-layer-once":
        return (
            f"layers {blocks}: they add up to {sum(blocks)}, but {job.model.name} has "
            f"{ctx.layers}; the default of {framework} is {list(ctx.usual_split)}  [{name}]"
        )
    if name == "blocks-not-empty":
        return f"layers {blocks}: {_too_few(job, layout, ctx)}  [{name}]"
    if name == "mtp-expressible":
        why = _standalone_refusal(job, layout, ctx)
        return f"multi-token prediction in its own block: {why}  [{name}]"
    if name == "offload-chunk-layers":
        return (
            f"layers {blocks}: with activations of several modules on the host the "
            f"last chunk of every stage needs two layers or more; {framework} fails in the second "
            f"step with one  [{name}]"
        )
    if name == "split-expressible":
        near = list(nearest_split(layout.block_layers, ctx))
        return f"layers {blocks}: {framework} {_SPLITS[ctx.layouts]}; nearest: {near}  [{name}]"
    return (
        f"recomputed {_recomputed_text(layout)} of {list(layout.stage_layers)} layers by stage: "
        f"{framework} {_RECOMPUTES[ctx.recomputation]}  [{name}]"
    )


def _too_few(job: Job, layout: Layout, ctx: LayoutContext) -> str:
    if layout.block_layers[0] < ctx.first_block:
        return (
            f"the vision tower of {job.model.name} adds to the output of the first "
            f"{ctx.first_block} layers, which must be in the first block"
        )
    but = " but the first and the last" if ctx.standalone_vocab else ""
    if layout.mtp_standalone and ctx.standalone_vocab:
        but = " but the first and the last two"
    return f"every block{but} must hold at least one transformer layer"


def _recomputed_text(layout: Layout) -> str:
    """Recomputed layers by stage: `[2, 4]`, or for a mix `[2, 4] (full), [1, 0] (mlp)`."""
    rows = [(list(counts), mode) for mode, counts in layout.recomputed.items()]
    if len(rows) < 2:
        return str(rows[0][0] if rows else [0] * layout.pp)
    return ", ".join(f"{counts} ({mode})" for counts, mode in rows)


def _standalone_refusal(job: Job, layout: Layout, ctx: LayoutContext) -> str:
    """The reason why multi-token prediction cannot have a block to itself before the last one, with
    a layout that would work if only the layers are at fault."""
    if job.model.mtp_layers == 0:
        return f"{job.model.name} has no multi-token prediction"
    if not ctx.mtp_standalone:
        return f"{job.framework.name} keeps it with the head under {job.schedule or '1f1b'}"
    if not ctx.may_part:
        return (
            f"it would share a stage with the embedding on {ctx.pp} stages; give pp 3 or more, or "
            "leave it with the head"
        )
    blocks = list(layout.block_layers)
    return (
        f"layers {blocks} have {blocks[-1]} in the last block, which must hold only head and loss, "
        f"as in {[*blocks[:-2], blocks[-2] + blocks[-1], 0]}"
    )


_SPLITS = {
    "any": "takes any split",
    "even": "gives every stage the same number of layers",
    "even-or-ends": "can only give the first and the last stage other numbers of layers; all other "
    "stages hold equally many, and so do the chunks of a stage",
    "greedy": "places the layers itself, by cost with the LM head counted",
}
_RECOMPUTES = {
    "none": "recomputes no layer in this mode",
    "all": "recomputes all layers in this mode; leave the numbers out, or give another mode",
    "shared": "recomputes the same number of layers in every block; give --recompute "
    "full:block=N, or equal numbers",
    "free": "recomputes at least one layer of the model, and on each stage at most the layers that "
    "it has",
}


def split_sentence(framework: str, ctx: LayoutContext) -> str:
    """How the framework splits layers: `deepspeed gives every stage ...`."""
    return f"{framework} {_SPLITS[ctx.layouts]}"


def nearest_split(wanted: tuple[int, ...], ctx: LayoutContext) -> tuple[int, ...]:
    """The split of layers over blocks that the framework can express and that differs from `wanted`
    by the fewest layers; among several such splits, the one whose largest block is smallest."""
    splits = list(_splits(ctx)) or [ctx.usual_split]

    def moved(numbers: tuple[int, ...]) -> tuple[int, int]:
        """(sum of the differences to `wanted` over blocks, layers of the largest block)."""
        return sum(abs(one - two) for one, two in zip(numbers, wanted, strict=True)), max(numbers)

    return min(splits, key=moved)


def _splits(ctx: LayoutContext) -> Iterator[tuple[int, ...]]:
    """Every split of the layers that the framework can express in which the first and last stage
    have their own numbers of layers and the stages between are equal; none if the framework does
    not allow such splits."""
    if ctx.layouts != "even-or-ends" or ctx.layers % ctx.vpp:
        return
    # Chunks of a stage are equal, so splitting the layers of one chunk per stage is enough.
    layers, middles = ctx.layers // ctx.vpp, max(0, ctx.pp - 2)
    for first, middle in product(range(1, layers), range(1, layers if middles else 2)):
        last = layers - first - middles * middle
        if last >= 1:
            yield (first, *(middle,) * middles, last) * ctx.vpp
