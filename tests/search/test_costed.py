"""A table of shapes against its shapes one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.job.frameworks.switches import with_tables
from planner.job.request import Request
from planner.search.shares import cost_job


@pytest.mark.parametrize(
    ("model", "gpus", "framework", "state"),
    [
        ("llama-3-8b", "16xH100", "megatron-core", {}),
        ("mixtral-8x7b", "16xH100", "megatron-bridge", {}),
        ("llama-3-8b", "8xH100", "torchtitan", {}),
        # What is reduced after the last micro-batch: shapes of one a step differ from the others.
        ("llama-3-8b", "8xH100", "torchtitan", {"unreduced_gradients": True}),
    ],
)
def test_a_shape_costs_the_same_alone_and_among_others(
    model: str, gpus: str, framework: str, state: dict[str, object]
) -> None:
    """What shapes of a table share (frames, keys) depends on nothing in which they differ."""
    gbs = 16 if state else 64
    job = Request(model=model, gpus=gpus, gbs=gbs, framework=framework).resolve()
    job = replace(job, framework=with_tables(job.framework, {"state": state}))
    costed_job = cost_job(job)
    columns, steps = costed_job.candidates.columns, costed_job.costed.steps
    rows = np.random.default_rng(0).choice(len(steps), size=min(60, len(steps)), replace=False)
    for row in rows.tolist():
        alone = {name: values[row : row + 1] for name, values in columns.items()}
        found = costed_job.cost_model.cost_shapes(alone).steps[0]
        np.testing.assert_array_equal(found, steps[row])
