"""Rules on machines: where ranks are placed on nodes, and what fits in host memory."""

from __future__ import annotations

import numpy as np

from constraints.axes import WORLD, product_of
from constraints.context import RuleContext
from constraints.numbers import Columns, Mask, divides, equals
from constraints.rule import shape_rule


@shape_rule()
def world_size(columns: Columns, ctx: RuleContext) -> Mask:
    return equals(product_of(WORLD, columns), ctx.cluster.num_gpus)


def _whole_nodes_wording(ctx: RuleContext) -> str:
    nodes, rest = divmod(ctx.cluster.num_gpus, ctx.cluster.gpus_per_node)
    per_node = ctx.cluster.gpus_per_node
    count = "1 node" if nodes == 1 else f"{nodes:,} nodes"
    return (
        f"more than one node means whole nodes of {per_node} GPUs; {ctx.cluster.num_gpus:,} makes "
        f"{count} and {rest} more"
    )


@shape_rule(wording=_whole_nodes_wording)
def whole_nodes(columns: Columns, ctx: RuleContext) -> bool:  # noqa: ARG001
    gpus, per_node = ctx.cluster.num_gpus, ctx.cluster.gpus_per_node
    return gpus <= per_node or gpus % per_node == 0


@shape_rule()
def tp_in_domain(columns: Columns, ctx: RuleContext) -> Mask | bool:
    domain, tp = ctx.cluster.scale_up_domain, columns["tp"]
    if ctx.allow_tp_across_nodes:
        return True
    inside: Mask = tp <= domain
    return inside if ctx.cluster.num_gpus <= domain else divides(tp, domain)


def offloaded_bytes(columns: Columns, ctx: RuleContext) -> np.ndarray:
    """Activations of the first stage's GPU on the host, bytes, in the even layout.

        f·(b·s/c)/p·sum(a_k·d_k)

    The first stage holds most micro-batches: f = min(m, p) under 1F1B and
    min(m·v, 2(p-1) + (v-1)p + 1)/v interleaved (Narayanan et al. 2021, arXiv 2104.04473, section
    2.2). Symbols: a_k = bytes per token of all layers divided as d_k says, b = mbs, s = seq, c =
    cp, p = pp, v = vpp, m = grad_acc. Recomputation frees some of them: an upper bound.
    """
    pp, vpp = columns["pp"].astype(float), columns["vpp"].astype(float)
    chunks = np.where(vpp > 1, 2 * (pp - 1) + (vpp - 1) * pp + 1, pp)
    in_flight = np.minimum(columns["grad_acc"] * vpp, chunks) / vpp
    tp, etp = columns["tp"].astype(float), columns["etp"].astype(float)
    sequence = tp if ctx.framework.sequence_parallel == "with-tp" else np.ones_like(tp)
    divided = {
        "none": 1.0,
        "tp": 1.0 / tp,
        "sequence": 1.0 / sequence,
        "kv": 1.0 / np.minimum(tp, ctx.model.heads if ctx.model.has_mla else ctx.model.kv_heads),
        "routed": etp / tp,
        "routed_tp": 1.0 / tp,
        "expert_tp": 1.0 / etp,
    }
    per_token = sum((size * divided[shard] for shard, size in ctx.offloaded.items()), 0.0)
    tokens = columns["mbs"] * ctx.model.seq / columns["cp"]
    return np.asarray(in_flight * tokens / pp * per_token)


@shape_rule(
    wording=lambda ctx: (
        f"activations on the host must fit in {ctx.host_bytes_per_gpu / 2**30:,.0f} GiB of the "
        "node's memory per GPU"
    )
)
def host_memory(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if not ctx.offloaded:
        return True
    fits: Mask = offloaded_bytes(columns, ctx) <= ctx.host_bytes_per_gpu
    return fits
