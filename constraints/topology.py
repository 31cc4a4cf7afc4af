"""Rules that come from the cluster."""

from __future__ import annotations

from constraints.context import RuleContext
from constraints.numbers import Columns, Mask, divides, equals
from constraints.rule import shape_rule


@shape_rule(
    "world-size",
    "dp·tp·pp·cp equals the number of GPUs",
    source="Megatron-LM core 0.19, parallel_state.py; torchtitan distributed/parallel_dims.py",
    wording=lambda ctx: f"dp·tp·pp·cp must equal {ctx.cluster.num_gpus:,} GPUs",
)
def world_size(columns: Columns, ctx: RuleContext) -> Mask:
    used = columns["dp"] * columns["tp"] * columns["pp"] * columns["cp"]
    return equals(used, ctx.cluster.num_gpus)


def _whole_nodes_wording(ctx: RuleContext) -> str:
    nodes, rest = divmod(ctx.cluster.num_gpus, ctx.cluster.gpus_per_node)
    per_node = ctx.cluster.gpus_per_node
    count = "1 node" if nodes == 1 else f"{nodes:,} nodes"
    return (
        f"more than one node means whole nodes of {per_node} GPUs; "
        f"{ctx.cluster.num_gpus:,} is {count} and {rest} over"
    )


@shape_rule(
    "whole-nodes",
    "a job on several nodes uses all GPUs of each: launchers start the same number of processes "
    "a node",
    source="torchrun --nnodes --nproc-per-node; Slurm --ntasks-per-node",
    wording=_whole_nodes_wording,
)
def whole_nodes(columns: Columns, ctx: RuleContext) -> bool:  # noqa: ARG001
    gpus, per_node = ctx.cluster.num_gpus, ctx.cluster.gpus_per_node
    return gpus <= per_node or gpus % per_node == 0


@shape_rule(
    "tp-in-domain",
    "tensor parallelism stays inside one scale-up domain (NVLink), in groups that fill it evenly",
    source="Narayanan et al. 2021, arXiv 2104.04473, section 3.2, takeaway 1",
    wording=lambda ctx: (
        f"tp must fit evenly into a scale-up domain of {ctx.cluster.scale_up_domain} GPUs "
        "(lifted by --allow-tp-across-nodes)"
    ),
)
def tp_in_domain(columns: Columns, ctx: RuleContext) -> Mask | bool:
    domain, tp = ctx.cluster.scale_up_domain, columns["tp"]
    if ctx.allow_tp_across_nodes:
        return True
    inside: Mask = tp <= domain
    return inside if ctx.cluster.num_gpus <= domain else divides(tp, domain)
