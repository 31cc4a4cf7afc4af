"""Speed of the compiled kernel on the main job.

.venv/bin/pytest tests/bench -o addopts="" --benchmark-only
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from planner.cost_model import CostModel
from planner.search.shapes import rule_context
from planner.space import enumerate_shapes, legal_shapes
from tests.cost.jobs import make_job


@pytest.fixture(scope="module")
def model() -> CostModel:
    return CostModel(make_job("llama-3-70b", "64xH100"))


def legal_columns(model: CostModel) -> dict[str, np.ndarray]:
    context = rule_context(model.job)
    columns, _ = legal_shapes(context, enumerate_shapes(context))
    return dict(columns)


def test_shapes_per_second(benchmark: Callable[..., object], model: CostModel) -> None:
    """Costing every legal shape of the main job."""
    columns = legal_columns(model)
    model.cost_shapes(columns)
    costed = benchmark(model.cost_shapes, columns)
    assert len(costed.steps) == len(columns["tp"])  # type: ignore[attr-defined]


def test_sharing_keys_pays(model: CostModel) -> None:
    """Costing each distinct key once, against once per shape."""
    columns = legal_columns(model)
    keys = len(model.cost_shapes(columns).keys)
    assert len(columns["tp"]) > 20 * keys
