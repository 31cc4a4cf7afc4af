"""What MaxText's settings say of a configuration, for `--fix`."""

from __future__ import annotations

from typing import Any

from planner.launch.dialects.maxtext.batch import batch_of, tiles
from planner.launch.dialects.maxtext.mesh import sizes_of, spread
from planner.launch.read.found import Found
from planner.predict.evaluate import Proposal


def says(found: Found, proposal: Proposal) -> dict[str, Any]:  # noqa: ARG001 (the registry's function)
    """The axes of the mesh, the share of a GPU in the batch, and the policy."""
    degrees, cluster = proposal.degrees, proposal.request.find_cluster()
    batch = batch_of(degrees)
    said: dict[str, Any] = {
        "recompute": proposal.recompute,
        "per-gpu": f"{batch.per_gpu:g}",
        "grad_acc": batch.accumulated,
        "optimizer-over-data": str(degrees.zero == 1).lower(),
    }
    sizes = sizes_of(degrees)
    placed = spread(sizes, min(cluster.gpus_per_node, degrees.gpus)) if sizes else None
    for axis, (inside, between) in (placed or {}).items():
        said |= {f"ici-{axis}": inside, f"dcn-{axis}": between}
    if degrees.pp > 1:
        layers = proposal.request.find_model().spec.layers
        said |= {"microbatches": batch.microbatches, "stage-layers": layers // degrees.pp}
        said["vocab-tiles"] = tiles(batch.microbatches, degrees.pp)
    return said
