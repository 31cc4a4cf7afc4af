"""Predictions of serving memory against what vLLM printed when it started (facts by others)."""

from __future__ import annotations

from statistics import median

import pytest

from hardware.load import load_gpu
from planner.job.models.catalog import load_model
from planner.predict.memory.serving.deployment import Deployment
from planner.predict.memory.serving.engine import ENGINES, graph_bytes
from planner.predict.memory.serving.formats import WEIGHT_FORMATS
from planner.predict.memory.serving.logs import StartUpComparison, compare_logs, spread_of

GIB = 2**30


def token_errors() -> list[float]:
    """Errors of the tokens that the KV cache holds, where they were printed."""
    return [
        abs(c.predicted_tokens / c.row.kv_tokens - 1) for c in compare_logs() if c.row.kv_tokens
    ]


def test_every_row_has_its_source() -> None:
    rows = [comparison.row for comparison in compare_logs()]
    assert len(rows) >= 40
    assert all(row.source.startswith("https://") for row in rows)


def test_kv_tokens() -> None:
    errors = token_errors()
    assert len(errors) >= 30
    assert median(errors) < 0.002
    assert max(errors) < 0.03


# Looked up after the constants had been fixed: other models, another GPU, another TP degree.
def test_rows_that_no_constant_was_read_off() -> None:
    held = [comparison for comparison in compare_logs() if comparison.row.held_out]
    assert len(held) >= 4
    assert len({c.row.deployment.gpu.name for c in held}) == 2
    assert max(abs(c.residual_bytes) / c.measured_bytes for c in held) < 0.005


def _name(comparison: StartUpComparison) -> str:
    row = comparison.row
    degrees = f"tp{row.deployment.tp}-pp{row.deployment.pp}"
    return f"{row.engine}-{row.deployment.model.name}-{row.deployment.weights.name}-{degrees}"


@pytest.mark.parametrize("comparison", compare_logs(), ids=_name)
def test_weights(comparison: StartUpComparison) -> None:
    """Within 1 % or 60 MiB: engines hold small buffers that are no weights."""
    predicted = comparison.stages[0].weights.total
    if comparison.row.deployment.pp > 1:
        # The log gives the largest stage.
        predicted = max(stage.weights.total for stage in comparison.stages)
    assert predicted == pytest.approx(comparison.row.weights, rel=0.01, abs=60 * 2**20)


@pytest.mark.parametrize("comparison", compare_logs(), ids=_name)
def test_room_for_the_kv_cache(comparison: StartUpComparison) -> None:
    """Within 0.5 GiB, which is 1 % of most caches."""
    assert abs(comparison.residual_bytes) < 0.5 * GIB
    if comparison.row.deployment.pp == 1:
        assert comparison.measured_bytes == comparison.row.kv_cache


def test_graphs_of_dense_models() -> None:
    errors = [
        c.row.graphs - graph_bytes(c.stages[0].layers)
        for c in compare_logs()
        if c.row.graphs is not None and c.row.deployment.model.moe is None
    ]
    assert len(errors) >= 28
    assert max(abs(error) for error in errors) < 0.25 * GIB


def deployment(gpu: str = "h100", **settings: int) -> Deployment:
    """Llama-3.1-8B as in the logs."""
    return Deployment(load_model("llama-3.1-8b").spec, load_gpu(gpu), **settings)


def test_intervals_hold_most_residuals() -> None:
    inside = [
        spread_of(c.row.deployment).low <= c.residual_bytes <= spread_of(c.row.deployment).high
        for c in compare_logs()
    ]
    assert sum(inside) >= 0.75 * len(inside)


def test_the_interval_widens_where_nothing_was_logged() -> None:
    known, other = spread_of(deployment()), spread_of(deployment("mi300x"))
    assert known.uncovered == ()
    # A share of the room that was measured, not bytes.
    assert 0 < known.median_error < 0.05
    assert "CDNA3 GPUs" in other.uncovered
    assert other.low <= known.low
    assert other.high >= known.high
    wide = Deployment(
        load_model("mixtral-8x7b").spec,
        load_gpu("h100"),
        dp=2,
        ep=2,
        weights=WEIGHT_FORMATS["nvfp4"],
    )
    assert set(spread_of(wide).uncovered) == {
        "nvfp4 weights",
        "expert parallelism",
        "data-parallel attention",
    }


def test_every_engine_has_logs_of_its_own() -> None:
    logged = {comparison.row.engine for comparison in compare_logs()}
    assert {engine.logs for engine in ENGINES.values()} == logged
