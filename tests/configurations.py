"""Configurations that tests cost: of a request or of a job, in a layout or as the framework lays
them out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from constraints.rule import Layout
from planner.cost import fields as f
from planner.cost.layout import usual_counts
from planner.job.job import Job
from planner.job.recompute import Recomputed
from planner.job.request import Request
from planner.predict import evaluate
from planner.predict.calibrated import Factors
from planner.predict.configuration import Configuration
from planner.predict.cost_model import CostedShapes, CostModel, KernelLayout
from planner.predict.memory import account
from planner.predict.memory.account import Footprint, footprint_of
from planner.predict.plan import Degrees, Plan


def configure(job: Job, degrees: Degrees, recompute: str = "none") -> Configuration:
    """A legal configuration of a job in its even layout. UsageError."""
    return evaluate.checked(Configuration.even(job, degrees, recompute))


def evaluate_job(
    job: Job, degrees: Degrees, recompute: str = "none", factors: Factors | None = None
) -> Plan:
    """What it costs."""
    return evaluate.evaluated(configure(job, degrees, recompute), factors)


def memory_footprint(
    request: Request,
    degrees: Degrees,
    recompute: str = "none",
    block_layers: Sequence[int] | None = None,
    recomputed: Recomputed | None = None,
    mtp_standalone: bool = False,
) -> Footprint:
    """The memory of a configuration; arguments as `planner.evaluate`."""
    blocks = None if block_layers is None else tuple(block_layers)
    proposal = evaluate.Proposal(request, degrees, recompute, blocks, recomputed, mtp_standalone)
    return footprint_of(proposal.resolve())


def laid_out(job: Job, degrees: Degrees, layout: Layout) -> Configuration:
    """Degrees of a job in a layout, in the job's first recompute mode."""
    return Configuration(job, degrees, job.recompute[0], layout)


def stage_accounts(job: Job, degrees: Degrees, layout: Layout) -> tuple[account.StageAccount, ...]:
    """Memory of each stage of it."""
    return account.stage_accounts(laid_out(job, degrees, layout))


def even_counts(model: CostModel, costed: CostedShapes, row: int) -> KernelLayout:
    """The layout in which the core costs a shape of `cost_shapes`."""
    shape, kinds = costed.shapes[row], len(model.job.model.kinds)
    pp, vpp = (int(shape[f.SHAPE[name]]) for name in ("pp", "vpp"))
    counts = np.zeros((len(model.pieces), pp))
    schedule = model.framework_inputs.schedule
    usual_counts(model.prefix, pp, vpp, model.job_inputs, schedule, counts)
    recomputed = np.zeros_like(counts)
    if costed.keys[int(shape[f.SHAPE["key"]]), f.KEY["modules"]]:
        recomputed[:kinds] = counts[:kinds]
    return KernelLayout(counts, recomputed)
