"""The jobs that the kernel is measured on, and their shapes, in any version of the sources."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from tests.cost.jobs import make_job


def first_of(*names: str) -> ModuleType:
    """The module by its name today, or by that of an older version."""
    for name in names[:-1]:
        try:
            return import_module(name)
        except ImportError:
            continue
    return import_module(names[-1])


cost_model_module = first_of("planner.predict.cost_model", "planner.cost_model")
_job = first_of("planner.job.job", "planner.job")
_shapes = first_of("planner.predict.shapes", "planner.search.shapes")
_space = first_of("planner.predict.space", "planner.space")

Columns = dict[str, np.ndarray]


def cost_model(model: str, gpus: str, batch_tokens: float) -> Any:
    """The cost model of a job on Megatron."""
    job = make_job(model, gpus)
    return cost_model_module.CostModel(replace(job, batch=_job.BatchTarget(batch_tokens / job.seq)))


def legal_columns(model: Any) -> Columns:
    """Every legal shape of the job."""
    context = _shapes.rule_context(model.job)
    columns, _ = _space.legal_shapes(context, _space.enumerate_shapes(context))
    return dict(columns)
