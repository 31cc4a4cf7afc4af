"""The jobs that the kernel is measured on, and their shapes, in any version of the sources."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.job.job import BatchTarget
from planner.predict.cost_model import CostModel
from planner.predict.shapes import rule_context
from planner.predict.space import enumerate_shapes, legal_shapes
from tests.cost.jobs import make_job

Columns = dict[str, np.ndarray]


def cost_model(model: str, gpus: str, batch_tokens: float) -> CostModel:
    """The cost model of a job on Megatron."""
    job = make_job(model, gpus)
    return CostModel(replace(job, batch=BatchTarget(batch_tokens / job.seq)))


def legal_columns(model: CostModel) -> Columns:
    """Every legal shape of the job."""
    context = rule_context(model.job)
    columns, _ = legal_shapes(context, enumerate_shapes(context))
    return dict(columns)
