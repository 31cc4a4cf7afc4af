"""What torchtitan's files say of a configuration, for `--fix`."""

from __future__ import annotations

from typing import Any

from planner.launch.dialects.torchtitan.options import TORCHTITAN
from planner.launch.read.found import Found
from planner.predict.evaluate import Proposal


def says(found: Found, proposal: Proposal) -> dict[str, Any]:
    """The local batch is a micro-batch, or all of a pipeline's micro-batches."""
    degrees, piped = proposal.degrees, proposal.degrees.pp > 1
    said: dict[str, Any] = {
        name: getattr(degrees, name) for name in ("tp", "pp", "cp", "ep", "zero")
    }
    said |= {"dp": degrees.dp, "gbs": degrees.gbs}
    said["mbs"] = degrees.mbs * (degrees.grad_acc if piped else 1)
    if piped and (degrees.mbs > 1 or found.setting(TORCHTITAN["microbatch"].key)):
        said["microbatch"] = degrees.mbs
    stated = found.setting(TORCHTITAN["shard"].key)
    if not degrees.shard and stated is not None and stated.value != -1:
        said["shard"] = degrees.dp
    if piped:
        # Embedding and head count for a layer each.
        layers = proposal.request.find_model().spec.layers + 2
        said["layers"] = -(-layers // (degrees.pp * degrees.vpp))
        if proposal.request.schedule is None:
            said["schedule"] = "interleaved" if degrees.vpp > 1 else "1f1b"
    # In 0.3 it is a class.
    if found.format == "torchtitan-0.2":
        mode = proposal.request.find_framework().recompute_mode(proposal.recompute)
        said["recompute"] = mode.name if mode.name in ("none", "full") else "selective"
        if said["recompute"] == "selective":
            said["recompute-of"] = f'"{mode.every}"' if mode.every > 1 else "op"
    return said
