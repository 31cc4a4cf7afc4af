"""The rules again, one shape at a time and in another form: an oracle for the masks."""

from __future__ import annotations

from constraints.context import RuleContext


def is_legal(s: dict[str, int], ctx: RuleContext) -> bool:
    """Whether the shape obeys all rules; `s` maps column names to the shape's values."""
    framework, cluster = ctx.framework, ctx.cluster
    stage = s["dp"] * s["cp"] * s["tp"]
    if stage * s["pp"] != cluster.num_gpus:
        return False
    if cluster.num_gpus > cluster.gpus_per_node and cluster.num_gpus % cluster.gpus_per_node:
        return False
    for degree, limit in ctx.limits.items():
        if not limit.allows_value(s[degree]):
            return False
    return (
        _tensor(s, ctx)
        and _experts(s, ctx, stage)
        and _sequence(s, ctx)
        and _pipeline(s, ctx)
        and _whole(s, ctx)
        and _zero(s, ctx, stage)
        and not (s["cp"] > 1 and not framework.context)
        and s["mbs"] * s["grad_acc"] * s["dp"] == s["gbs"]
        and abs(s["gbs"] - ctx.batch.sequences) <= ctx.batch.largest_difference
        and _low_precision(s, ctx)
        and _schedule(s, ctx)
        and _offload(s, ctx)
    )


def _tensor(s: dict[str, int], ctx: RuleContext) -> bool:
    tp, model, framework = s["tp"], ctx.model, ctx.framework
    if tp == 1:
        return True
    widths = [model.heads, model.ffn, model.shared_ffn]
    if not framework.vocabulary_padded:
        widths.append(model.vocab)
    if not framework.tensor or any(width % tp for width in widths):
        return False
    small, large = sorted((tp, model.kv_heads))
    if framework.kv_heads_rule == "tp-divides" and model.kv_heads % tp:
        return False
    if framework.kv_heads_rule == "multiple-or-divisor" and large % small:
        return False
    domain = ctx.cluster.scale_up_domain
    if ctx.allow_tp_across_nodes:
        return True
    return tp <= domain and (ctx.cluster.num_gpus <= domain or domain % tp == 0)


def _experts(s: dict[str, int], ctx: RuleContext, stage: int) -> bool:
    ep, etp, model, framework = s["ep"], s["etp"], ctx.model, ctx.framework
    if not model.experts:
        return ep == etp == 1
    if model.experts % ep or model.moe_ffn % etp or stage % (ep * etp):
        return False
    if framework.sequence_parallel == "never" and s["tp"] > 1:
        return False
    if ep > 1 and not framework.expert:
        return False
    return framework.expert_tensor or etp == (1 if ep > 1 else s["tp"])


def _sequence(s: dict[str, int], ctx: RuleContext) -> bool:
    if s["cp"] > 1 and ctx.model.seq % (2 * s["cp"]):
        return False
    return ctx.framework.sequence_parallel == "never" or not ctx.model.seq % (s["cp"] * s["tp"])


def _low_precision(s: dict[str, int], ctx: RuleContext) -> bool:
    """Blocks of 16 by 8 (fp8) or of 32 by 32."""
    model, (wide, tokens) = (
        ctx.model,
        {"bf16": (1, 1), "fp8": (16, 8), "mxfp8": (32, 32)}[ctx.precision],
    )
    widths = [width / s["tp"] for width in (model.query_width, model.ffn, model.shared_ffn)]
    blocks = [width / wide for width in (*widths, model.moe_ffn / s["etp"], model.hidden)]
    blocks.append(s["mbs"] * model.seq / s["cp"] / tokens)
    return ctx.precision == "bf16" or all(number.is_integer() for number in blocks)


def _schedule(s: dict[str, int], ctx: RuleContext) -> bool:
    pp, vpp, count, schedule = s["pp"], s["vpp"], s["grad_acc"], ctx.schedule
    alone = 2 if ctx.framework.standalone_vocab and ctx.offload_modules <= 0 else 0
    if pp * vpp > ctx.model.layers + alone * (schedule in (None, "1f1b", "interleaved")):
        return False
    chunks = {
        None: True, "1f1b": vpp == 1, "gpipe": vpp == 1, "interleaved": vpp > 1,
        "zb-h1": vpp >= ctx.framework.zero_bubble_chunks, "dualpipe": vpp == 1 and pp in (2, 4),
        "zb-v": vpp == 2 and pp > 1, "dualpipev": vpp == 2 and pp > 1,
    }  # fmt: skip
    least = {"zb-v": 2 * pp - 1, "dualpipe": 2 * pp, "dualpipev": 2 * pp}.get(schedule or "", 1)
    return chunks[schedule] and count >= least and not (schedule == "dualpipe" and count % 2)


def _offload(s: dict[str, int], ctx: RuleContext) -> bool:
    """Two layers a chunk; and in the host's memory what the first stage's GPU keeps there."""
    pp, vpp, tp = s["pp"], s["vpp"], s["tp"]
    if ctx.offload_modules > 1 and pp * vpp > ctx.model.layers // 2:
        return False
    chunks = pp if vpp == 1 else 2 * pp + (vpp - 1) * pp - 1
    held = min(s["grad_acc"], chunks / vpp) * s["mbs"] * ctx.model.seq / s["cp"]
    sequence = tp if ctx.framework.sequence_parallel == "with-tp" else 1
    parts = {
        "none": 1, "tp": tp, "sequence": sequence, "kv": min(tp, ctx.model.kv_heads),
        "routed": tp / s["etp"], "routed_tp": tp, "expert_tp": s["etp"],
    }  # fmt: skip
    kept = sum(size / parts[shard] for shard, size in ctx.offloaded.items())
    return not kept or held * kept / pp <= ctx.host_bytes_per_gpu


def _pipeline(s: dict[str, int], ctx: RuleContext) -> bool:
    pp, vpp, framework = s["pp"], s["vpp"], ctx.framework
    cut = {"even": pp * vpp, "even-or-ends": vpp}.get(framework.layouts, 1)
    if ctx.model.layers % cut:
        return False
    if framework.needs_microbatches_at_least_pp and s["grad_acc"] < pp:
        return False
    if pp > 1 and not framework.pipeline:
        return False
    if vpp == 1:
        return True
    size = {"multiple-of-pp": pp, "whole-rounds": max(1, s["grad_acc"] // pp), "any": 1}
    left = s["grad_acc"] % size[framework.interleaved_microbatches]
    return framework.interleaved and pp > 1 and not left


def _whole(s: dict[str, int], ctx: RuleContext) -> bool:
    model, framework = ctx.model, ctx.framework
    tied = s["pp"] > 1 and model.tied_embeddings and not framework.tied_pipeline
    return not (tied or (s["pp"] * s["cp"] > 1 and model.mtp_layers and not framework.mtp_split))


def _zero(s: dict[str, int], ctx: RuleContext, stage: int) -> bool:
    zero, framework = s["zero"], ctx.framework
    if zero not in framework.zero_stages or zero < ctx.least_zero or not _hybrid(s, ctx, stage):
        return False
    if s["pp"] > 1:
        if zero == 2 and not framework.zero2_with_pipeline:
            return False
        if zero == 3 and not framework.zero3_with_pipeline:
            return False
    if zero == 3 and s["tp"] > 1 and not framework.zero3_with_tensor:
        return False
    expert_replicas = stage // (s["ep"] * s["etp"]) if ctx.model.experts else 1
    if s["dp"] * s["cp"] > 1 or expert_replicas > 1:
        return True
    return zero == min(stage for stage in framework.zero_stages if stage >= ctx.least_zero)


def _hybrid(s: dict[str, int], ctx: RuleContext, stage: int) -> bool:
    shard, least, ranks = s["shard"], ctx.framework.hybrid_least_zero, s["dp"] * s["cp"]
    if ctx.framework.shards_over_context and s["cp"] > 1 and (not s["zero"] or shard % s["cp"]):
        return False
    group = (shard or ranks) if s["zero"] else s["cp"]
    if ctx.framework.experts_in_shards and group * s["tp"] % s["ep"]:
        return False
    if (
        ctx.framework.expert_axis_shards
        and ctx.model.experts
        and (
            s["etp"] != s["tp"]
            or (s["ep"] > 1 and (s["zero"] < 3 or group % (s["ep"] * s["cp"]) or s["dp"] % s["ep"]))
        )
    ):
        return False
    if shard == 0:
        return True
    if s["zero"] < least or ranks % shard:
        return False
    expert_ranks = stage // (s["ep"] * s["etp"]) if ctx.model.experts else ranks
    return expert_ranks % (ranks // shard) == 0
