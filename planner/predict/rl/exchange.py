"""Seconds of a decoding step in which the ranks of an engine exchange data: many small messages."""

from __future__ import annotations

from functools import lru_cache

from hardware.schema import Cluster
from planner.cost.communication import all_gather_time_s, all_reduce_time_s, all_to_all_time_s
from planner.cost.inputs import LinkInputs
from planner.job.specs import LayerKind
from planner.predict.cost_tables import gpu_inputs, half_precision
from planner.predict.links import link_inputs
from planner.predict.memory.serving.deployment import Deployment

_ELEMENT = 2.0
# Largest all-reduce of the engines' own kernel, in which every rank reads the others' buffers over
# NVLink (vLLM, custom_all_reduce.py: 8 MiB), and the most ranks that it serves.
_DIRECT_BYTES = 8.0 * 2**20
_DIRECT_RANKS = 8
# Barriers of that kernel: after all ranks have written, and after all have read.
_BARRIERS = 2.0


@lru_cache(maxsize=64)
def _links(cluster: Cluster) -> LinkInputs:
    return link_inputs(cluster)


def layer_exchange_s(
    deployment: Deployment, cluster: Cluster, kind: LayerKind, tokens: float
) -> float:
    """Seconds of exchange in one layer of this kind, for `tokens` tokens on each dp rank: the
    all-reduces after attention and after the feed-forward block, or the exchange with experts on
    other dp ranks."""
    links = _links(cluster)
    payload = _ELEMENT * tokens * deployment.model.hidden
    reduced = tensor_reduce_s(payload, deployment, links)
    seconds = reduced if kind.attention != "none" else 0.0
    if kind.ffn == "moe" and deployment.dp > 1:
        return seconds + _experts_s(deployment, links, tokens)
    return seconds + (reduced if kind.ffn != "none" else 0.0)


def tensor_reduce_s(payload: float, deployment: Deployment, links: LinkInputs) -> float:
    """Seconds of one all-reduce of `payload` bytes among tp ranks, with NCCL or the engine's own
    kernel, whichever is faster."""
    ranks = deployment.tp
    if ranks == 1:
        return 0.0
    usual = all_reduce_time_s(payload, ranks, links.scale_up_domain, links)
    inside = ranks <= min(_DIRECT_RANKS, links.scale_up_domain)
    if not inside or links.root_gpus or payload > _DIRECT_BYTES:
        return usual
    gpu = gpu_inputs(deployment.gpu, half_precision(deployment.gpu), "auto")
    start = gpu.kernel_floor_s + _BARRIERS * links.scale_up_latency_s
    moved = 2.0 * payload * (ranks - 1) / ranks / links.scale_up_bytes_per_s
    return min(usual, start + moved)


def _experts_s(deployment: Deployment, links: LinkInputs, tokens: float) -> float:
    """Seconds of the exchange to the experts and back, among all tp·dp ranks of a stage."""
    moe = deployment.model.moe
    top_k = moe.top_k if moe else 1
    ranks = deployment.tp * deployment.dp
    width = moe.latent if moe and moe.latent else deployment.model.hidden
    mine = _ELEMENT * tokens / deployment.tp * width
    sent = all_to_all_time_s(mine * top_k, ranks, links.scale_up_domain, links)
    gathered = all_gather_time_s(mine * ranks, ranks, links.scale_up_domain, links)
    return 2.0 * min(sent, gathered)


def logits_gather_s(deployment: Deployment, cluster: Cluster, tokens: float) -> float:
    """Seconds to gather the logits of every sequence, whose vocabulary is split over tp."""
    links = _links(cluster)
    payload = _ELEMENT * tokens * deployment.padded_vocabulary
    return all_gather_time_s(payload, deployment.tp, links.scale_up_domain, links)
