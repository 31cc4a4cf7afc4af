"""The layers that may recompute in a mode, in the form that layout rules use, and its flags."""

from __future__ import annotations

from collections.abc import Sequence

from constraints.layout_context import Recomputation, shared_count
from constraints.rule import Layout
from planner.job.frameworks.profile import FrameworkProfile
from planner.job.job import Job
from planner.job.recompute import Module, RecomputeMode


def recomputation(mode: RecomputeMode, framework: FrameworkProfile) -> Recomputation:
    """How many layers may recompute in a mode.

    Only `full` recomputation, layer by layer, can be limited to some layers, if the framework can
    express it. Module lists, checkpoints of several layers and of every k-th layer apply to all
    layers.
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


def layer_modes(job: Job, mode: RecomputeMode) -> tuple[RecomputeMode, ...]:
    """Recompute modes that the layers of one plan may use: `mode`, then other modes of the job, if
    the framework can express a mixture.

    The others must work layer by layer: no checkpoints of several layers, no memory budgets.
    """
    kind = recomputation(mode, job.framework)
    mixes = kind == "free" and job.framework.parallelism.recompute_layers == "mixed"
    others = (
        item
        for item in job.recompute
        if item.mask and item != mode and (item.every, item.span, item.budget) == (1, 1, None)
    )
    return () if kind == "none" else (mode, *(others if mixes else ()))


def layout_flags(mode: RecomputeMode, framework: FrameworkProfile, layout: Layout) -> str:
    """The framework's flags for the recompute modes of a layout. `mode`: the mode of its shape.

    Partial `full` recomputation is the method `block`.
    """
    forms, layers = framework.recomputing, layout.recomputed.get(mode.name)
    if len(layout.recomputed) > (layers is not None):
        modes = ((framework.recompute_mode(name), row) for name, row in layout.recomputed.items())
        return "; ".join(_by_stage(one, row) for one, row in modes)
    if not mode.some_layers or layers == layout.stage_layers:
        # All layers, although requested by their number.
        uniform = forms.uniform_flags.format(layers=1) if mode.block else ""
        return uniform or mode.flags
    if layers is None:
        return ""
    shared = shared_count(layout)
    if shared is None or not forms.block_flags:
        return _by_stage(mode, layers)
    return forms.block_flags.format(layers=shared)


def _by_stage(mode: RecomputeMode, counts: Sequence[int]) -> str:
    """A mode's flags, and the number of layers on each stage that use it."""
    layers = ", ".join(str(count) for count in counts)
    return f"{mode.flags} (layers by stage: {layers})".strip()
