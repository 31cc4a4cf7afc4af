"""Budgets: what follows of which question, and that its plans are those of a search."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.compare.budget import FAMILY, Ask, Budget, budget, shaped
from planner.compare.laws import load_laws
from planner.job.models.catalog import load_model
from planner.job.request import Request
from planner.predict.ops.table import parameter_count
from planner.search.search import find_plans

LAW = load_laws()[0]
BASE = Request(model="llama-3-8b", gbs=64, seq=2048, recompute=("none",), limits={"zero": (1,)})


def test_without_gpus_the_law_alone_answers() -> None:
    found = budget(BASE, Ask(flops=1e22))
    assert found.goal == "least loss" and found.run is None and found.loss is not None
    assert found.parameters == pytest.approx(LAW.best_parameters(1e22).value, rel=0.05)
    assert found.flop.value == pytest.approx(1e22)
    tokens = budget(BASE, Ask(tokens="chinchilla", model="llama-3-70b")).tokens.value
    assert tokens == pytest.approx(LAW.best_tokens(70.55e9).value, rel=0.01)
    large = budget(BASE, Ask(flops=1e22, tokens=10**11))
    assert large.goal == "largest model"
    assert large.parameters == pytest.approx(1e22 / 6e11, rel=0.05)
    assert budget(BASE, Ask(tokens=10**12, model="llama-3-70b")).goal == "as given"
    most = budget(BASE, Ask(flops=1e22, parameters=1e9))
    assert most.goal == "most tokens" and most.flop.value == pytest.approx(1e22)


def test_experts_and_state_spaces_have_no_loss() -> None:
    for name in ("mixtral-8x7b", "mamba2-2.7b"):
        found = budget(BASE, Ask(flops=1e22, model=name))
        assert found.loss is None and "dense" in found.why_no_loss
        assert found.parameters < 14e9


@pytest.fixture(scope="module")
def in_time() -> Budget:
    return budget(BASE, Ask(days=3.0, gpus="8xH100"))


def test_days_on_gpus_give_the_best_size_with_the_plan_of_a_search(
    in_time: Budget, tmp_path: Path
) -> None:
    from planner.compare.budget import shape_toml

    assert in_time.run is not None and in_time.shape is not None
    assert in_time.run.days.value == pytest.approx(3.0, rel=1e-3)
    assert in_time.tokens.low < in_time.tokens.value < in_time.tokens.high
    # As near to the optimum as shapes are to each other.
    assert in_time.parameters == pytest.approx(in_time.best_parameters.value, rel=0.06)
    path = tmp_path / "shape.toml"
    path.write_text(shape_toml(in_time.shape))
    request = BASE.model_copy(update={"model": str(path), "gpus": "8xH100"})
    plan = find_plans(request, fastest_only=True).plans[0]
    assert plan.step_time_s == pytest.approx(in_time.run.plan.step_time_s, rel=1e-3)


def test_the_largest_model_in_time(in_time: Budget) -> None:
    tokens = round(in_time.tokens.value / 2)
    found = budget(BASE, Ask(days=3.0, gpus="8xH100", tokens=tokens))
    assert found.goal == "largest model" and found.parameters > 1.4 * in_time.parameters
    assert found.tokens.value >= 0.95 * tokens


def test_memory_limits_the_size() -> None:
    """Ten years on one GPU would pay for more parameters than it holds."""
    found = budget(BASE, Ask(days=3000.0, gpus="1xH100", tokens=10**10))
    assert 1e9 < found.parameters < 6e9
    assert any("No larger one runs: dense-" in note for note in found.notes)


def test_shapes_of_the_familys_sizes_are_its_models() -> None:
    for name in FAMILY[2:4]:
        spec = load_model(name).spec
        made = shaped(float(parameter_count(spec).total))
        assert (made.layers, made.hidden, made.ffn) == (spec.layers, spec.hidden, spec.ffn)
    for size in (2e9, 13e9, 33e9, 140e9, 9e11):
        made = shaped(size)
        assert parameter_count(made).total == pytest.approx(size, rel=0.07)
        assert made.hidden == made.heads * made.head_dim and made.heads % made.kv_heads == 0
