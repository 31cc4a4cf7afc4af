"""Allocated peaks measured on eight B200 with Megatron-Core (Transformer Engine), no recompute.

SimuMax release v1.2, docs/b200: max over ranks of torch's max_memory_allocated, one sequence of
4096 a micro-batch, distributed optimizer, vocabulary 128,256.

These rows are where three mechanisms of backward were found (a layer's weight gradients, the
head's beside them, tensors gathered over tp), so this test guards a fit; it is no evidence of how
well other runs are predicted.
"""

from __future__ import annotations

import numpy as np
import pytest

from hardware.load import parse_gpus
from planner.cost import fields as f
from planner.job.frameworks.profile import load_framework
from planner.job.job import BatchTarget, Job
from planner.job.optimizers import load_optimizer
from planner.predict.cost_model import CostModel
from tests.truth.predicted import reference_model

# model layers tp pp dp | GiB
PEAKS = [
    ("llama-3-70b", 12, 1, 2, 4, 66.55),
    ("llama-3-70b", 12, 2, 1, 4, 60.68),
    ("llama-3-70b", 12, 4, 1, 2, 39.07),
    ("llama-3-70b", 12, 8, 1, 1, 28.29),
    ("llama-3.1-405b", 4, 1, 2, 4, 87.08),
    ("llama-3.1-405b", 4, 2, 1, 4, 81.59),
    ("llama-3.1-405b", 4, 4, 1, 2, 52.89),
    ("llama-3.1-405b", 4, 8, 1, 1, 38.57),
]


@pytest.mark.parametrize(("name", "layers", "tp", "pp", "dp", "gib"), PEAKS)
def test_allocated_peak(name: str, layers: int, tp: int, pp: int, dp: int, gib: float) -> None:
    profile = load_framework("megatron-core")
    job = Job(
        # The runs' 405B has 16 key/value heads, not 8.
        model=reference_model(name, layers, **({"kv_heads": 16} if "405b" in name else {})),
        cluster=parse_gpus("8xB200-SXM-180GB"),
        framework=profile,
        optimizer=load_optimizer("adamw"),
        batch=BatchTarget(8.0 * dp, exact=True),
        seq=4096,
        recompute=(profile.recompute_mode("none"),),
    )
    columns = {
        "tp": tp, "cp": 1, "ep": 1, "etp": tp, "dp": dp, "pp": pp, "vpp": 1, "zero": 1,
        "mbs": 1, "grad_acc": 8, "recompute": 0,
    }  # fmt: skip
    costed = CostModel(job).cost_shapes({key: np.array([value]) for key, value in columns.items()})
    predicted = costed.steps[0, f.STEP_ALLOCATED_BYTES] / 2**30
    assert predicted == pytest.approx(gib, rel=0.007)
