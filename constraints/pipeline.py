"""Rules of pipeline parallelism: layers per chunk, schedules, chunks and micro-batches."""

from __future__ import annotations

import numpy as np

from constraints.context import RuleContext
from constraints.numbers import Columns, Mask, divides, equals
from constraints.rule import shape_rule


@shape_rule(
    wording=lambda ctx: (
        f"pp·vpp must not exceed {ctx.model.layers} layers"
        + (
            f", or {most_chunks(ctx)} if embedding and head have chunks of their own"
            if _may_be_alone(ctx)
            else ""
        )
    )
)
def chunks_have_layers(columns: Columns, ctx: RuleContext) -> Mask:
    return columns["pp"] * columns["vpp"] <= most_chunks(ctx)


def most_chunks(ctx: RuleContext) -> int:
    """The largest number of chunks that the model's layers can fill."""
    return ctx.model.layers + 2 * _may_be_alone(ctx)


def _may_be_alone(ctx: RuleContext) -> bool:
    """Whether embedding and head may have chunks without layers. Not with offloaded activations,
    which need layers in every chunk, nor with a schedule that puts both on one stage."""
    plain = ctx.schedule in (None, "1f1b", "interleaved")
    return ctx.framework.standalone_vocab and plain and not ctx.offload_modules


@shape_rule()
def layers_split(columns: Columns, ctx: RuleContext) -> Mask | bool:
    layers, layouts = ctx.model.layers, ctx.framework.layouts
    if layouts in ("any", "greedy"):
        return True
    if layouts == "even":
        return divides(columns["pp"] * columns["vpp"], layers)
    # The middle stages are equal, and the first and last take the rest. Each is cut into vpp equal
    # chunks.
    return divides(columns["vpp"], layers)


@shape_rule()
def greedy_stages_filled(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.framework.layouts != "greedy":
        return True
    return np.isin(columns["pp"], sorted(ctx.filled_pipelines))


@shape_rule()
def tied_embeddings_whole(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.framework.tied_pipeline or not ctx.model.tied_embeddings:
        return True
    return equals(columns["pp"], 1)


@shape_rule()
def mtp_whole(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.framework.mtp_split or ctx.model.mtp_layers == 0:
        return True
    return equals(columns["pp"], 1) & equals(columns["cp"], 1)


@shape_rule()
def interleaving_needs_pipeline(columns: Columns, ctx: RuleContext) -> Mask:  # noqa: ARG001
    return equals(columns["vpp"], 1) | (columns["pp"] > 1)


@shape_rule()
def interleaving_microbatches(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.framework.interleaved_microbatches == "any":
        return True
    pp, grad_acc = columns["pp"], columns["grad_acc"]
    rounds = np.maximum(1, grad_acc // pp)
    in_groups = ctx.framework.interleaved_microbatches == "multiple-of-pp"
    return equals(columns["vpp"], 1) | divides(pp if in_groups else rounds, grad_acc)


@shape_rule()
def microbatches_fill_pipeline(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if not ctx.framework.needs_microbatches_at_least_pp:
        return True
    return columns["grad_acc"] >= columns["pp"]


_TWO_CHUNKS = ("zb-v", "dualpipev")


@shape_rule(
    wording=lambda ctx: (
        f"{ctx.framework_name} has the schedules " + ", ".join(ctx.framework.schedules)
        if ctx.schedule
        else "the framework's usual schedule"
    )
)
def schedule_offered(columns: Columns, ctx: RuleContext) -> Mask | bool:  # noqa: ARG001
    return ctx.schedule is None or ctx.schedule in ctx.framework.schedules


@shape_rule()
def schedule_chunks(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.schedule is None:
        return True
    mask: Mask
    if ctx.schedule in _TWO_CHUNKS:
        mask = (columns["vpp"] == 2) & (columns["pp"] > 1)
    elif ctx.schedule == "zb-h1":
        mask = columns["vpp"] >= ctx.framework.zero_bubble_chunks
    elif ctx.schedule == "interleaved":
        mask = columns["vpp"] > 1
    else:
        mask = columns["vpp"] == 1
    return mask


@shape_rule()
def schedule_even_stages(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.schedule != "dualpipe":
        return True
    return equals(columns["pp"] % 2, 0)


@shape_rule()
def schedule_microbatches(columns: Columns, ctx: RuleContext) -> Mask | bool:
    twice = 2 * columns["pp"]
    mask: Mask
    if ctx.schedule == "zb-v":
        mask = columns["grad_acc"] >= twice - 1
        return mask
    if ctx.schedule in ("dualpipe", "dualpipev"):
        mask = columns["grad_acc"] >= twice
        return mask & (columns["grad_acc"] % 2 == 0) if ctx.schedule == "dualpipe" else mask
    return True
