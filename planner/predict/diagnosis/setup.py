"""A plan of a search as a configuration that can be predicted again with something changed."""

from __future__ import annotations

import re

from planner.job.request import Request
from planner.predict.decided import decided_request
from planner.predict.memory.option_changes import Setup
from planner.predict.plan import Plan

# `64x`, or `8x8x` of nodes and the GPUs of one.
_COUNTED = re.compile(r"^\d+x(?:\d+x)?")


def plan_setup(request: Request, plan: Plan) -> Setup:
    """The configuration of a plan, on the GPUs that it uses."""
    decided = decided_request(request, plan)
    used = plan.degrees.gpus
    if decided.find_cluster().num_gpus != used:
        shape = _COUNTED.sub("", decided.gpus or f"1x{decided.cluster}")
        decided = decided.model_copy(update={"gpus": f"{used}x{shape}", "cluster": None})
    layout = plan.layout
    block = request.find_framework().recompute_mode(plan.recompute).block
    return Setup(
        decided,
        plan.degrees,
        plan.recompute,
        layout.block_layers,
        None if block or not layout.recomputed else layout.recomputed,
        layout.mtp_standalone,
    )
