"""Degrees as axes of MaxText's mesh, each inside a node (`ici_`) and between nodes (`dcn_`); and a
micro-batch as MaxText counts it: sequences a GPU, over all GPUs, also those of one rank.

Tensor parallelism is the axis `tensor`, which divides weights and, between products, activations
along their width, or `tensor_sequence`, Megatron's sequence parallelism: the same bytes in the same
exchanges. Experts and context ranks shard the other weights along with `fsdp`; `data` replicates.
Sources: MaxText 0.2.5, configs/base.yml (logical_axis_rules), configs/types.py
(calculate_global_batch_sizes), layers/pipeline.py; XLA, distributed/topology_util.cc (the GPUs of
one host are a slice).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod

from planner.predict.plan import Degrees

# Axes from the innermost ranks outwards, as plans number them.
AXES = ("tensor", "context", "expert", "fsdp", "data", "pipeline")
# Axis -> what it divides here; the first two make tp, those that shard weights make fsdp.
TENSOR = ("tensor", "tensor_sequence")
FSDP = ("fsdp", "fsdp_transpose")
# Axes of which a plan knows nothing.
OTHERS = (
    "diloco", "sequence", "context_usp_ulysses", "context_autoregressive", "autoregressive",
)  # fmt: skip
EVERY = (*TENSOR, "context", "expert", *FSDP, "data", "pipeline", *OTHERS)
Sizes = Mapping[str, int]


def key(scope: str, axis: str) -> str:
    """`ici_fsdp_parallelism`."""
    return f"{scope}_{axis}_parallelism"


def sizes_of(degrees: Degrees) -> dict[str, int] | None:
    """The size of each axis; None where experts or context parallelism do not divide the ranks."""
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
    """(ranks inside a node, ranks between nodes) of each axis, the innermost filling the node
    first; None where an axis neither divides what is left of the node nor is a multiple of it."""
    left, found = per_node, {}
    for axis in AXES:
        inside = min(sizes[axis], left)
        if gcd(sizes[axis], left) != inside:
            return None
        found[axis] = (inside, sizes[axis] // inside)
        left //= inside
    return found if left == 1 else None


def degrees_of(sizes: Sizes, optimizer_over_data: bool) -> dict[str, int]:
    """dp, tp, pp, cp, ep, ZeRO stage and shard group of the axes as a file states them."""
    cp, ep, data = sizes["context"], sizes["expert"], sizes["data"]
    shards = prod(sizes[axis] for axis in FSDP) * cp * ep
    zero = 3 if shards > 1 else int(optimizer_over_data)
    return {
        "tp": prod(sizes[axis] for axis in TENSOR), "pp": sizes["pipeline"], "cp": cp, "ep": ep,
        "dp": shards // cp * data, "zero": zero, "shard": shards if zero == 3 and data > 1 else 0,
    }  # fmt: skip


def filled(stated: Sizes, whole: int | None) -> dict[str, int] | None:
    """Axes with the size that is -1 computed from the number of ranks; None where that number is
    not known, several axes are open, or the sizes do not divide it."""
    open_axes = [axis for axis, size in stated.items() if size == -1]
    if not open_axes:
        return dict(stated)
    known = prod(size for size in stated.values() if size != -1)
    if whole is None or len(open_axes) > 1 or known < 1 or whole % known:
        return None
    return {**stated, open_axes[0]: whole // known}


@dataclass(frozen=True, slots=True)
class Batch:
    """`per_gpu`: sequences of a forward pass over the number of GPUs; `accumulated`: passes of a
    step; `microbatches`: pieces into which a pipeline cuts a pass."""

    per_gpu: float
    accumulated: int
    microbatches: int


def batch_of(degrees: Degrees) -> Batch:
    """The batch of a plan; a pipeline takes all micro-batches of a step in one pass."""
    passes = degrees.grad_acc if degrees.pp > 1 else 1
    per_gpu = degrees.mbs * degrees.dp * passes / degrees.gpus
    return Batch(per_gpu, degrees.grad_acc // passes, passes)


def tiles(microbatches: int, pp: int) -> int:
    """Pieces in which the loss makes its logits, one for each micro-batch: a pipeline makes those
    of all micro-batches at once, divided over its stages."""
    return max(1, microbatches // pp) if pp > 1 else 1


def micro_batch(per_gpu: float, gpus: int, dp: int, microbatches: int) -> int | None:
    """Sequences of a rank's micro-batch; None where that is no whole number."""
    # As MaxText does: cut to a whole number of sequences.
    whole = int(gpus * per_gpu)
    return whole // (dp * microbatches) if whole and whole % (dp * microbatches) == 0 else None
