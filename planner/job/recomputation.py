"""How many layers may recompute in a mode, as the rules over layouts ask."""

from __future__ import annotations

from constraints.layout import Recomputation
from planner.job.frameworks import FrameworkProfile, RecomputeMode
from planner.job.modules import Module


def recomputation(mode: RecomputeMode, framework: FrameworkProfile) -> Recomputation:
    """How many layers may recompute in a mode.

    Only `full` recomputation, layer by layer, can be limited to some layers, where the framework
    can say so; module lists, checkpoints of several layers and of every k-th hold for all.
    """
    if mode.mask == Module.NOTHING:
        return "none"
    if not mode.some_layers:
        return "all"
    choices: dict[str, Recomputation] = {
        "same-on-every-stage": "shared",
        "any": "free",
        "mixed": "free",
        "all-or-none": "all",
    }
    return choices[framework.parallelism.recompute_layers]
