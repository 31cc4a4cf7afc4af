"""A table of shapes against its shapes one by one."""

from __future__ import annotations

import numpy as np
import pytest

from planner.job.request import Request
from planner.search.costed import cost_job


@pytest.mark.parametrize(
    ("model", "gpus", "framework"),
    [
        ("llama-3-8b", "16xH100", "megatron-core"),
        ("mixtral-8x7b", "16xH100", "megatron-bridge"),
        ("llama-3-8b", "8xH100", "torchtitan"),
    ],
)
def test_a_shape_costs_the_same_alone_and_among_others(
    model: str, gpus: str, framework: str
) -> None:
    """What shapes of a table share (frames, keys) depends on nothing in which they differ."""
    job = Request(model=model, gpus=gpus, gbs=64, framework=framework).resolve()
    costed_job = cost_job(job)
    columns, steps = costed_job.candidates.columns, costed_job.costed.steps
    rows = np.random.default_rng(0).choice(len(steps), size=min(60, len(steps)), replace=False)
    for row in rows.tolist():
        alone = {name: values[row : row + 1] for name, values in columns.items()}
        found = costed_job.cost_model.cost_shapes(alone).steps[0]
        np.testing.assert_array_equal(found, steps[row])
