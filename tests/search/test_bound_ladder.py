"""Bounds of shapes under a ladder of memory limits against those of each limit alone."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost import compiled
from planner.cost.tables import Array
from planner.job.request import Request
from planner.search.explorer import Explorer
from planner.search.limit_results import Effort
from planner.search.shares import cost_job
from planner.search.terms import RECOMPUTE_CODES


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    """Shapes of a pipeline that memory binds on some rungs and not on others."""
    request = Request(
        model="llama-3-8b", gpus="8xA100-40GB", gbs=32, seq=4096, limits={"pp": (2, 4)}
    )
    return cost_job(request.resolve()).explorer(Effort())


def bound(explorer: Explorer, limits: Array) -> Array:
    """[shapes, limits] seconds."""
    model, rows = explorer.cost_model, explorer.rows
    codes = np.array(
        [RECOMPUTE_CODES[recomputation] for recomputation in explorer.recomputations],
        dtype=np.float64,
    )
    found = np.full((len(rows), len(limits)), np.inf)
    compiled.bound_shapes(
        explorer.costed.shapes[rows], codes[explorer.columns["recompute"][rows]], limits, False,
        explorer.costed.keys, explorer.costed.costs, model.prefix, model.totals,
        model.job_inputs, *model.machine_inputs,
        found,
    )  # fmt: skip
    return found


@pytest.mark.parametrize("order", ["falling", "rising"])
def test_what_a_wider_limit_says_changes_nothing(explorer: Explorer, order: str) -> None:
    limits = np.asarray(explorer.limits[:10], dtype=np.float64)
    if order == "rising":
        limits = np.ascontiguousarray(limits[::-1])
    ladder = bound(explorer, limits)
    alone = np.column_stack([bound(explorer, limits[[index]]) for index in range(len(limits))])
    assert ladder == pytest.approx(alone, rel=1e-9)
    # Memory binds somewhere, and somewhere it does not.
    falling = alone if order == "falling" else alone[:, ::-1]
    pairs = np.isfinite(falling[:, 1:])
    steps = falling[:, 1:][pairs] / falling[:, :-1][pairs]
    assert (steps > 1.001).any()
    assert (steps == 1.0).any()
