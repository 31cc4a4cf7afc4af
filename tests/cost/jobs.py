"""Small jobs for tests of the cost core."""

from __future__ import annotations

import numpy as np

from hardware import parse_gpus
from planner.cost.tables import Array
from planner.cost_model import CostedShapes, CostModel
from planner.frameworks import load_framework
from planner.job import BatchTarget, Job, searched_modes
from planner.models.catalog import load_model
from planner.optimizers import load_optimizer

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


def cost(model: CostModel, **degrees: int) -> tuple[CostedShapes, Array]:
    """One shape in its even layout; degrees not given are 1 (zero, recompute and shard 0)."""
    defaults = dict.fromkeys(COLUMNS, 1) | {"zero": 0, "recompute": 0, "shard": 0}
    columns = {name: np.array([value]) for name, value in (defaults | degrees).items()}
    costed = model.cost_shapes(columns)
    return costed, costed.steps[0]
