"""Degrees as axes of MaxText's mesh, each with a part inside a node (`ici_`) and a part between
nodes (`dcn_`); and the batch as MaxText counts it, in sequences per GPU, averaged over all GPUs.

Tensor parallelism is the axis `tensor`, which divides weights and, between products, activations
along their width, or `tensor_sequence`, Megatron's sequence parallelism: the same bytes in the same
exchanges. Experts and context ranks shard the other weights together with `fsdp`; `data`
replicates. Sources: MaxText 0.2.5, configs/base.yml (logical_axis_rules), configs/types.py
(calculate_global_batch_sizes), layers/pipeline.py; XLA, distributed/topology_util.cc (the GPUs of
one host are a slice).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod

from planner.predict.plan import Degrees

# Axes from the innermost ranks outwards, in the order in which plans number ranks.
AXES = ("tensor", "context", "expert", "fsdp", "data", "pipeline")
# Axes that make up tp, and axes that shard weights as fsdp.
TENSOR = ("tensor", "tensor_sequence")
FSDP = ("fsdp", "fsdp_transpose")
# Axes that plans do not have.
OTHERS = (
    "diloco", "sequence", "context_usp_ulysses", "context_autoregressive", "autoregressive",
)  # fmt: skip
EVERY = (*TENSOR, "context", "expert", *FSDP, "data", "pipeline", *OTHERS)
Sizes = Mapping[str, int]


def key(scope: str, axis: str) -> str:
    """The name of an axis's setting, such as `ici_fsdp_parallelism`."""
    return f"{scope}_{axis}_parallelism"


def sizes_of(degrees: Degrees) -> dict[str, int] | None:
    """The size of each axis; None if expert or context parallelism does not divide the ranks."""
    ranks = degrees.dp * degrees.cp
    shards = (degrees.shard or ranks) if degrees.zero == 3 else 1
    inside = degrees.cp * degrees.ep
    if degrees.dp % degrees.ep or shards % inside or ranks % shards:
        return None
    return {
        "tensor": degrees.tp, "context": degrees.cp, "expert": degrees.ep,
        "fsdp": shards // inside, "data": ranks // shards, "pipeline": degrees.pp,
    }  # fmt: skip


def spread(sizes: Sizes, per_node: int) -> dict[str, tuple[int, int]] | None:
    """For each axis (ranks inside a node, ranks between nodes); inner axes fill the node first.
    None if an axis neither divides the GPUs that are left in the node nor is a multiple of them, or
    if all axes together do not fill a node."""
    left, found = per_node, {}
    for axis in AXES:
        inside = min(sizes[axis], left)
        if gcd(sizes[axis], left) != inside:
            return None
        found[axis] = (inside, sizes[axis] // inside)
        left //= inside
    return found if left == 1 else None


def degrees_of(sizes: Sizes, optimizer_over_data: bool) -> dict[str, int]:
    """dp, tp, pp, cp, ep, ZeRO stage and shard group that the axes of a file amount to."""
    cp, ep, data = sizes["context"], sizes["expert"], sizes["data"]
    shards = prod(sizes[axis] for axis in FSDP) * cp * ep
    zero = 3 if shards > 1 else int(optimizer_over_data)
    return {
        "tp": prod(sizes[axis] for axis in TENSOR), "pp": sizes["pipeline"], "cp": cp, "ep": ep,
        "dp": shards // cp * data, "zero": zero, "shard": shards if zero == 3 and data > 1 else 0,
    }  # fmt: skip


def filled(stated: Sizes, whole: int | None) -> dict[str, int] | None:
    """The axes with their sizes. A single open axis (-1) gets the size that follows from `whole`,
    the number of ranks; without an open axis all are unchanged. None if `whole` is unknown, several
    axes are open, or the other sizes do not divide it."""
    open_axes = [axis for axis, size in stated.items() if size == -1]
    if not open_axes:
        return dict(stated)
    known = prod(size for size in stated.values() if size != -1)
    if whole is None or len(open_axes) > 1 or known < 1 or whole % known:
        return None
    return {**stated, open_axes[0]: whole // known}


@dataclass(frozen=True, slots=True)
class Batch:
    """`per_gpu`: sequences of one forward pass divided by the number of GPUs; `accumulated`: passes
    per step; `microbatches`: pieces into which a pipeline cuts a pass."""

    per_gpu: float
    accumulated: int
    microbatches: int


def batch_of(degrees: Degrees) -> Batch:
    """The batch of a plan. A pipeline takes all micro-batches of a step in one pass."""
    passes = degrees.grad_acc if degrees.pp > 1 else 1
    per_gpu = degrees.mbs * degrees.dp * passes / degrees.gpus
    return Batch(per_gpu, degrees.grad_acc // passes, passes)


def tiles(microbatches: int, pp: int) -> int:
    """The number of pieces, one after the other, in which a rank's loss makes its logits, so that
    each piece has one micro-batch. Without a pipeline 1. A pipeline hands the loss all its
    micro-batches at once, divided over its `pp` stages: microbatches / pp pieces, rounded down, at
    least 1."""
    return max(1, microbatches // pp) if pp > 1 else 1


def micro_batch(per_gpu: float, gpus: int, dp: int, microbatches: int) -> int | None:
    """The number of sequences in a rank's micro-batch; None if that is not a whole number of at
    least 1. `per_gpu`: as in `Batch`."""
    # MaxText rounds down to a whole number of sequences.
    whole = int(gpus * per_gpu)
    return whole // (dp * microbatches) if whole and whole % (dp * microbatches) == 0 else None
