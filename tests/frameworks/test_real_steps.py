"""The small model that `planner probe` trains, built in torch on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from planner.evidence.learn.real_steps import gpt
from planner.job.models.catalog import load_model
from planner.predict.ops.table import parameter_count

pytestmark = pytest.mark.frameworks


def test_it_is_gpt2(needs: Callable[[str], ModuleType]) -> None:
    torch = needs("torch")
    model = gpt(torch, 12, 768, 12)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == parameter_count(load_model("gpt2").spec).total
    assert model(torch.zeros(1, 8, dtype=torch.long)).shape == (1, 8, 50257)
