"""Small jobs for tests of the cost core."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hardware.load import parse_gpus
from planner.cost import fields as f
from planner.cost._jit import Row, rows
from planner.cost.tables import Array
from planner.job.frameworks.profile import load_framework
from planner.job.job import BatchTarget, Job, searched_modes
from planner.job.models.catalog import load_model
from planner.job.optimizers import load_optimizer
from planner.predict.cost_model import CostedShapes, CostModel
from planner.predict.kernel_rows import fill_groups

COLUMNS = (
    "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "mbs", "grad_acc", "recompute", "shard",
)  # fmt: skip


def make_job(
    model: str = "llama-3-8b", gpus: str = "16xH100", framework: str = "megatron-core"
) -> Job:
    """A job on the real catalogue; every recompute mode that the search would try."""
    spec = load_model(model).spec
    profile = load_framework(framework)
    return Job(
        model=spec,
        cluster=parse_gpus(gpus),
        framework=profile,
        optimizer=load_optimizer("adamw"),
        batch=BatchTarget(64.0),
        seq=spec.pretraining_seq,
        recompute=searched_modes(spec, profile),
    )


def with_table(job: Job, table: str, **values: object) -> Job:
    """The job with other values in a table of its framework's profile."""
    changed = getattr(job.framework, table).model_copy(update=values)
    return replace(job, framework=job.framework.model_copy(update={table: changed}))


def with_links(job: Job, **changes: float) -> CostModel:
    """The job's costs on other links."""
    model = CostModel(job)
    model.__dict__["link_inputs"] = model.link_inputs._replace(**changes)
    return model


def on_ideal_links(job: Job) -> CostModel:
    """On links that take no time."""
    changed = {
        name: math.inf if name.endswith("bytes_per_s") else 0.0
        for name in CostModel(job).link_inputs._fields
        if name.endswith("_s")
    }
    return with_links(job, **changed)


def key_of(costed: CostedShapes, row: int = 0) -> Row:
    """Key of a costed shape as the functions of the core take it."""
    return rows(costed.keys[int(costed.shapes[row, f.SHAPE["key"]])], f.KEY_ROW)


def grid_of(costed: CostedShapes, row: int = 0, **columns: float) -> Row:
    """A costed shape as the functions of the core take it, `columns` of it changed."""
    shapes = costed.shapes[row : row + 1].copy()
    for name, value in columns.items():
        shapes[0, f.SHAPE[name]] = value
    fill_groups(shapes, costed.keys)
    return rows(shapes[0], f.SHAPE_ROW)


def cost(model: CostModel, **degrees: int) -> tuple[CostedShapes, Array]:
    """One shape in its even layout; degrees not given are 1 (zero, recompute and shard 0)."""
    defaults = dict.fromkeys(COLUMNS, 1) | {"zero": 0, "recompute": 0, "shard": 0}
    columns = {name: np.array([value]) for name, value in (defaults | degrees).items()}
    costed = model.cost_shapes(columns)
    return costed, costed.steps[0]


def with_kernels(job: Job, **values: float) -> Job:
    """The job with other figures of kernels."""
    return with_table(job, "kernels", **values)
