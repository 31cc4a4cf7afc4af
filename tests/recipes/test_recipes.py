"""Published recipes against the best plan of their jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from planner.cost.terms import TIME_WORDS
from planner.evidence.runs.mapping import MappedRow
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.rows import MeasuredRow
from planner.evidence.runs.worst import term_seconds
from planner.job.quantities import seconds
from planner.predict.uncertainty.differences import Ratio
from tests.fit.command import measured_rows
from tests.fit.reliability import fit_errors
from tests.recipes.__main__ import main
from tests.recipes.compare import (
    NOT_CLAIMED,
    NOTABLE,
    RecipeComparison,
    _single_changes,
    _telling_run,
    _verdict,
    compare_recipe,
    falling_terms,
    published,
    recipe_rows,
    search_job,
)
from tests.recipes.page import page, recipe_table, reliability_table


@pytest.fixture(scope="module")
def recipes() -> list[MeasuredRow]:
    return recipe_rows(measured_rows([]))


@pytest.fixture(scope="module")
def predictions(recipes: list[MeasuredRow]) -> list[Prediction]:
    """A few recipes: dense models on H100, and one that is predicted beyond its memory."""
    dense = [row for row in recipes if row.source == "nemo-perf" and not row.text("moe")][:4]
    large = [
        row for row in recipes if row.says("model", "nemotron4-340b") and row.says("gpu", "h1")
    ]
    return predict_rows([*dense, *large[:1]])


@pytest.fixture(scope="module")
def comparisons(predictions: list[Prediction]) -> list[RecipeComparison]:
    recipes = published(predictions)
    found = [compare_recipe(prediction, [], recipes) for prediction in predictions]
    return [one for one in found if one is not None]


def test_recipes_state_their_degrees(recipes: list[MeasuredRow]) -> None:
    assert len(recipes) > 200
    for row in recipes:
        assert row.integer("tp")
        assert row.integer("pp")
        assert row.integer("mbs")
        assert row.measurement("step_time_s")


def test_the_best_plan_is_no_slower_than_the_recipe(comparisons: list[RecipeComparison]) -> None:
    """A search finds it or a faster plan, even where it is predicted beyond its memory."""
    assert len(comparisons) > 4
    assert any(one.peak_share > 1.0 for one in comparisons)
    for one in comparisons:
        assert one.gain is not None
        assert one.gain >= -1e-3
        assert one.verdict != "lost"


def test_gains_are_named(comparisons: list[RecipeComparison]) -> None:
    for one in comparisons:
        if one.gain is not None and one.gain > NOTABLE:
            assert one.verdict in ("gain", "within the error bar", "cannot tell")
            assert ": " in one.reason
            assert (NOT_CLAIMED in one.reason) == (one.verdict == "within the error bar")


def test_terms_that_fall_are_named(predictions: list[Prediction]) -> None:
    """The two that fall most, in seconds; the second only where it counts, and none that grows."""
    first = next(one for one in predictions if one.step is not None)
    ours = term_seconds(first)
    whole_s = first.step_time_s or 0.0

    def told(**falls: float) -> str:
        time = {name: ours[words] - falls.get(name, 0.0) for name, words in TIME_WORDS.items()}
        plan: Any = SimpleNamespace(time=SimpleNamespace(**time))
        return falling_terms(first, plan)

    named = {name: seconds(part * whole_s) for name, part in (("s", 0.02), ("m", 0.1), ("l", 0.3))}
    words = TIME_WORDS
    assert told(compute_s=0.3 * whole_s, tp_s=0.1 * whole_s, dp_s=0.02 * whole_s) == (
        f"{words['compute_s']} −{named['l']}, {words['tp_s']} −{named['m']}"
    )
    assert told(bubble_s=0.1 * whole_s, tp_s=0.001 * whole_s, cp_s=-0.2 * whole_s) == (
        f"{words['bubble_s']} −{named['m']}"
    )
    assert told(dp_s=-0.1 * whole_s) == ""


def test_the_run_that_would_tell_is_named(recipes: list[MeasuredRow]) -> None:
    """Changes alone: degrees of as many GPUs and the same batch, recomputation, techniques."""
    small = [row for row in recipes if row.says("model", "grok1") and row.says("precision", "fp8")]
    found = predict_rows(small)
    compared = [compare_recipe(prediction, [], published(found)) for prediction in found[:1]]
    assert all(one is not None for one in compared)
    (comparison,) = [one for one in compared if one is not None]
    told = "would tell" in comparison.reason
    assert told == (comparison.verdict == "cannot tell")
    mapped = found[0].mapped
    assert mapped is not None
    degrees = mapped.degrees.model_copy(update={"tp": 1, "etp": 1, "dp": 16, "ep": 8})
    plan: Any = SimpleNamespace(
        degrees=degrees,
        recompute="full",
        techniques=("fused-dispatch",),
        step_time_s=1.0,
        fit_probability=0.8,
    )
    changes = dict(_single_changes(mapped, plan))
    assert set(changes) == {"tp 4→1, etp 4→1", "recompute full", "fused-dispatch"}
    for changed in changes.values():
        assert changed.degrees.gpus == mapped.degrees.gpus
        assert changed.degrees.gbs == mapped.degrees.gbs
    assert _telling_run(found[0], mapped, plan) == "; a run of this plan would tell"
    assert found[0].step_time_s is not None
    plan.step_time_s = 0.8 * found[0].step_time_s
    assert "; a run of the recipe with " in _telling_run(found[0], mapped, plan)
    # What would not fit is no run that tells.
    plan.fit_probability, found[0] = 0.8, replace(found[0], mapped=_on(mapped, 20.0))
    assert _telling_run(found[0], _on(mapped, 20.0), plan) == "; a run of this plan would tell"


def _on(mapped: MappedRow, gib: float) -> MappedRow:
    """A recipe on GPUs of so much memory."""
    gpu = mapped.job.cluster.gpu.model_copy(update={"hbm_usable_bytes": gib * 2**30})
    cluster = mapped.job.cluster.model_copy(update={"gpu": gpu})
    return replace(mapped, job=replace(mapped.job, cluster=cluster))


def test_a_search_keeps_what_a_recipe_states(predictions: list[Prediction]) -> None:
    """Precision, batch and rounding stay: no technique that rounds otherwise is added."""
    for prediction in predictions:
        assert prediction.mapped is not None
        job, open_job = prediction.mapped.job, search_job(prediction.mapped)
        assert open_job.batch == job.batch
        assert open_job.precision == job.precision
        assert open_job.framework.state.gradient_bytes == job.framework.state.gradient_bytes
        assert len(open_job.recompute) > 1


def test_the_page(comparisons: list[RecipeComparison], predictions: list[Prediction]) -> None:
    text = page(comparisons, predictions)
    assert f"{len(comparisons)} recipes" in text
    assert "given 80 % or more" in text and "data/reliability.csv" in text
    again = recipe_table([comparisons[0], replace(comparisons[0], measured_s=9.9)])
    (row,) = again.rows
    names = [column.name for column in again.columns]
    assert row[names.index("measured_high_s")] == "9.9"
    assert reliability_table(predictions).rows


def test_both_errors_of_the_probability(predictions: list[Prediction]) -> None:
    """Of runs that state what they recompute: that of 340B ran, and is given little."""
    errors = fit_errors(predictions)
    assert (errors.ran, errors.lost, errors.sure, errors.wrong) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("predicted_s", "unused_s", "times_s", "verdict"),
    [
        (10.0, 10.0, [10.5], "gain"),
        (10.0, 10.0, [13.0], "cannot tell"),
        # A technique that no recipe of the job has brings most of it.
        (10.0, 8.5, [13.0], "gain"),
        # Published twice, and once as it is predicted.
        (10.0, 10.0, [13.0, 9.5], "gain"),
    ],
)
def test_what_a_gain_is(
    predicted_s: float, unused_s: float, times_s: list[float], verdict: str
) -> None:
    plan: Any = SimpleNamespace(step_time_s=8.0)
    sure = Ratio(value=1.2, low=1.1, high=1.3)
    assert _verdict(plan, sure, predicted_s, unused_s, times_s) == verdict


def test_no_gain_is_claimed_that_is_not_sure_of_the_best_of_so_many() -> None:
    plan: Any = SimpleNamespace(step_time_s=8.0)
    doubtful = Ratio(value=1.1, low=0.95, high=1.27)
    assert _verdict(plan, doubtful, 10.0, 10.0, [10.5]) == "within the error bar"


def test_what_is_expected_of_the_best_is_at_most_what_is_predicted(
    comparisons: list[RecipeComparison],
) -> None:
    for one in comparisons:
        assert one.expected is not None and one.best_s is not None
        assert one.expected.low <= one.expected.value <= one.predicted_s / one.best_s * (1 + 1e-9)
    assert any(one.rivals > 1 for one in comparisons)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--only", "gpt3-5b", "--json"])
    record = json.loads(capsys.readouterr().out)[0]
    assert record["source"] == "nemo-perf"
    assert record["predicted_s"] > 0
    assert 0.0 <= record["unused_gain"] < 1.0
