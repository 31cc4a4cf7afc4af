"""Cost of one piece (a layer of one kind, the embedding, the head) on one rank, per micro-batch.

Everything here depends only on a *key* (degrees, micro-batch, recompute mode), so each distinct key
is costed once, and all the shapes that share it use the result.
"""

from __future__ import annotations

from planner.cost import fields as f
from planner.cost._jit import Row, Rows, jit
from planner.cost.inputs import GpuInputs
from planner.cost.piece_compute import ComputeTerms, compute_terms
from planner.cost.piece_memory import (
    cast_bytes,
    exchange_bytes_held,
    logits_kept_bytes,
    offloaded_bytes,
    piece_parameters,
    saved_bytes,
    softmax_terms,
    table_parameters,
    working_bytes,
)
from planner.cost.piece_traffic import communication_terms, exposed_traffic
from planner.cost.tables import FrameworkInputs, JobInputs
from planner.cost.update import update_costs


@jit
def recompute_costs(kept: float, key: Row, out: Row) -> None:
    """Fill the columns that depend on the share of layers that recompute, and scale their seconds.

    `kept`: bytes of a layer that recomputes. A checkpoint of n layers keeps the input of its first
    one and brings all of their tensors back at once. If every k-th layer recomputes, each layer
    costs the average of all.
    """
    saved = out.saved
    out.saved_recomputed = (1.0 - key.share) * saved + key.share * kept / key.span
    out.again = max(0.0, key.span * saved - kept)
    out.recompute *= key.share
    out.recompute_tp *= key.share
    out.recompute_cp *= key.share
    out.recompute_ep *= key.share
    for link in range(2 * f.LINK_PASS, 3 * f.LINK_PASS):
        out.links[link] *= key.share


@jit
def most_repeats(piece: int, ops: Rows) -> float:
    """The largest number of equal layers that a row of a piece stands for."""
    most = 1.0
    for row in range(ops.shape[0]):
        if int(ops[row].piece) == piece:
            most = max(most, ops[row].repeats)
    return most


@jit
def run_again_in_backward(repeats: float, kept: float, out: Row) -> None:
    """Count the recomputation of a vision tower as backward. The tower is a part of the embedding,
    so its layers cannot be chosen one by one. Its layers bring their tensors back one at a time."""
    out.again = max(0.0, out.saved - kept) / repeats
    out.backward += out.recompute
    out.backward_tp += out.recompute_tp
    out.issue += out.issue_again
    out.recompute = out.recompute_tp = out.issue_again = 0.0
    for link in range(f.LINK_PASS):
        out.links[f.LINK_PASS + link] += out.links[2 * f.LINK_PASS + link]
        out.links[2 * f.LINK_PASS + link] = 0.0


@jit
def exposed_copies(copied: float, window_s: float, gpu: GpuInputs, network: Rows) -> float:
    """Seconds that copying activations over the host link adds to a pass of `window_s` seconds.

        t = max(0, c/B - T) + c/W

    Each layer's copies run at the same time as the compute of a layer, on copy engines, and each
    direction is independent (to the host in forward, back in backward); they also use the HBM's
    rate. Symbols: c = bytes, B = host link, T = `window_s`, W = HBM bandwidth. Ignores that the
    first and the last layer of a stage have less to copy, and that copies may slow compute of other
    micro-batches.
    """
    late_s = max(0.0, copied / network[0].host_bytes_per_s - window_s)
    return late_s + copied / gpu.hbm_bytes_per_s


# Ranks of a tensor-parallel group meet at every collective and wait for the slowest host thread:
# each further rank adds this share of the issue time. Measured steps of dense models that wait for
# the CPU, over their prediction without this, at tp 2, 4 and 8, relative to tp 1: vTrain's 253 on
# A100 1.06, 1.06 and 1.22; 126 tests of Megatron-Core on A100, H100 and GB200 1.06, 1.06 and 1.32.
# A step that grows with the logarithm instead fits tp 8 as well, tp 2 worse (mean error on
# vTrain's: with the logarithm 6.4 %, with this 5.9 %, without either 6.9 %).
HOST_SPREAD = 0.024


@jit
def issue_seconds(
    issue: float, chunks: float, key: Row, framework: FrameworkInputs, network: Rows
) -> float:
    """Seconds that the CPU thread of one rank takes to issue a pass. `issue`: the seconds that it
    takes without tensor parallelism.

    Every further rank of tensor parallelism adds the share HOST_SPREAD. `chunks`: number of
    products around which ranks exchange over tp; if a pipeline's stages talk between domains at the
    same time, each of the tp exchanges of each product takes at least `pipeline_exchange_s`, and
    more if the group leaves its scale-up domain.
    """
    issue *= 1.0 + HOST_SPREAD * (key.tp - 1.0)
    if key.pipelined > 0.0 and key.tp > 1.0:
        issue += chunks * key.tp * framework.pipeline_exchange_s
        if key.tp > network[0].scale_up_domain:
            issue += chunks * (key.tp - 1.0) * framework.outer_tensor_step_s
    return issue


@jit
def waited_seconds(device: float, issue: float, framework: FrameworkInputs) -> float:
    """Seconds that the GPU waits for the CPU in a pass whose kernels take `device` seconds and
    whose launches take the CPU `issue` seconds.

    A pass takes at least `issue` seconds, so the wait is issue - device, at least 0. If the CPU
    waits for each kernel (`blocking_launches`), the times add up and the wait is `issue`. Issuing
    collectives costs next to nothing.
    """
    if framework.blocking_launches > 0.0:
        return issue
    return max(0.0, issue - device)


@jit
def add_issue(
    terms: ComputeTerms, copies: float, key: Row, framework: FrameworkInputs, network: Rows,
    out: Row,
) -> None:  # fmt: skip
    """Add to the seconds of forward, backward and recomputation the seconds that the GPU waits for
    the CPU in each. `copies`: number of copies of activations over the host link, each of which the
    CPU issues."""
    fetching = key.fetches * terms.products * framework.fetch_s
    again_s = key.fetches * terms.returned * framework.fetch_s
    device = out.forward + out.forward_tp + out.forward_cp + out.forward_ep
    issue = terms.issue_forward + copies * framework.issue_s + fetching
    waited = waited_seconds(
        device, issue_seconds(issue, terms.products, key, framework, network), framework
    )
    out.forward += waited
    out.issue += waited
    device = out.backward + out.backward_tp + out.backward_cp + out.backward_ep
    issue = terms.issue_backward + copies * framework.issue_s + again_s
    waited = waited_seconds(
        device, issue_seconds(issue, 2.0 * terms.returned, key, framework, network), framework
    )
    out.backward += waited
    out.issue += waited
    device = out.recompute + out.recompute_tp + out.recompute_cp + out.recompute_ep
    again = terms.issue_recompute + again_s if terms.issue_recompute > 0.0 else 0.0
    waited = waited_seconds(device, issue_seconds(again, 0.0, key, framework, network), framework)
    out.recompute += waited
    out.issue_again += waited


@jit
def add_copies(copied: float, gpu: GpuInputs, network: Rows, out: Row) -> None:
    """Fill the seconds that activation copies over the host link add to the forward and the
    backward pass (`exposed_copies`). `copied`: bytes in each direction; nothing is filled if 0."""
    if copied <= 0.0:
        return
    forward_s = out.forward + out.forward_tp + out.forward_cp + out.forward_ep
    backward_s = out.backward + out.backward_tp + out.backward_cp + out.backward_ep
    backward_s += out.recompute + out.recompute_tp + out.recompute_cp + out.recompute_ep
    out.forward_offload = exposed_copies(copied, forward_s, gpu, network)
    out.backward_offload = exposed_copies(copied, backward_s, gpu, network)


@jit
def piece_cost(
    piece: int, key: Row, ops: Rows, parameters: Rows, saved: Rows, collectives: Rows,
    job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs, network: Rows, traffic: Rows,
    out: Row,
) -> None:  # fmt: skip
    """Fill one row of piece costs (columns PIECE_* in `planner.cost.fields`). `traffic`: working
    array for `communication_terms`."""
    modules = int(key.modules)
    terms = compute_terms(piece, key, ops, job, framework, gpu)
    out.forward = terms.forward
    out.backward = terms.backward
    out.recompute = terms.recompute
    out.weight = terms.weight
    out.weight_saved = terms.weight_bytes
    communication_terms(piece, key, collectives, job, framework, network, traffic)
    exposed_traffic(traffic, terms, framework.contention, out)
    piece_parameters(piece, key, parameters, job, framework, out)
    out.backward += parameter_traffic_s(out.trained, framework.accumulation_traffic_bytes, gpu)
    left, copied, copies = offloaded_bytes(piece, key, modules, saved, job, framework)
    add_issue(terms, copies, key, framework, network, out)
    add_copies(copied, gpu, network, out)
    out.saved = saved_bytes(piece, key, 0, saved, job)
    kept = saved_bytes(piece, key, modules, saved, job)
    if piece < job.kinds:
        recompute_costs(kept, key, out)
    else:
        out.saved_recomputed = kept
        if piece == job.kinds:
            run_again_in_backward(most_repeats(piece, ops), kept, out)
    out.offloaded = offloaded_bytes(piece, key, 0, saved, job, framework)[0]
    out.offloaded_recomputed = left
    out.duplicated = copied - left
    out.saved -= out.offloaded
    out.saved_recomputed -= left
    out.working, out.weight_gradient = working_bytes(piece, out.trained, key, ops, job, framework)
    out.working = max(out.working, exchange_bytes_held(piece, key, ops, job, framework))
    out.softmax, out.after_core = softmax_terms(piece, key, ops, parameters, saved, job, framework)
    out.casts = cast_bytes(piece, key, ops, framework)
    out.logits = logits_kept_bytes(piece, key, saved, job)
    out.table = table_parameters(key, job)
    update_costs(piece, key, parameters, job, framework, out)


@jit
def parameter_traffic_s(parameters: float, per_parameter_bytes: float, gpu: GpuInputs) -> float:
    """Seconds of streaming kernels that move `per_parameter_bytes` HBM bytes for each parameter."""
    return parameters * per_parameter_bytes / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)
