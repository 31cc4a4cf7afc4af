"""Calibration on runs of known parameters finds them; on none it changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from hardware.calibration import (
    PARAMETERS,
    Figure,
    LearntFactor,
    LearntFigure,
    parameters_of,
)
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.tables import FrameworkInputs
from planner.evidence.learn.calibrate import FigureFit, calibrate, calibration_of, fit_figure
from planner.evidence.learn.linear import Equations, measured_log
from planner.evidence.learn.posterior import (
    Prior,
    best_posterior,
    explain,
    solve,
    trust,
)
from planner.evidence.learn.priors import shipped_prior
from planner.evidence.runs.predict import Prediction, cost_predictions
from planner.job.errors import CannotTellError, UsageError
from tests.evidence.learn import runs

TRUE = {"gemm_rate": 0.92, "inside_rate": 0.7}


def error(logs: np.ndarray) -> float:
    """Mean |ln(measured / predicted)|."""
    return float(np.abs(logs).mean())


def fitted(measured: Sequence[Prediction], figure: Figure, *more: Equations) -> FigureFit:
    found = fit_figure(measured, figure, *more)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def fit() -> FigureFit:
    return fitted(runs.predictions(TRUE), "time")


def test_known_parameters_lie_in_their_intervals(fit: FigureFit) -> None:
    calibration = calibration_of([fit], ["made up"])
    factors = {factor.name: factor for factor in calibration.factors}
    for name, value in TRUE.items():
        assert factors[name].low <= value <= factors[name].high, name
    assert factors["inside_rate"].determined
    # What was not changed is within its interval too.
    for name in set(factors) - set(TRUE):
        assert factors[name].low <= 1.0 <= factors[name].high, name


def telling(one: Prediction, **cells: object) -> Prediction:
    """A run with other measurements."""
    texts = {
        name: value if isinstance(value, str) else repr(value) for name, value in cells.items()
    }
    return replace(one, row=replace(one.row, cells=one.row.cells | texts))


def seconds_of(one: Prediction) -> float:
    return float(one.row.cells["step_time_s"])


def learnt(truth: Mapping[str, float]) -> dict[str, LearntFactor]:
    found = fitted(runs.predictions(truth), "time")
    return {factor.name: factor for factor in calibration_of([found], ["made up"]).factors}


@pytest.mark.parametrize(("name", "value"), [("network_rate", 0.5), ("gemm_rate", 0.87)])
def test_a_factor_beyond_those_of_published_clusters(name: str, value: float) -> None:
    """Likeness does not take the credit that is the factor's."""
    factor = learnt({name: value})[name]
    assert factor.low <= value <= factor.high
    assert factor.value - value < 0.65 * (1.0 - value)


def test_intervals_hold_what_runs_were_made_of() -> None:
    """Four made-up clusters, each with three factors as far off as published clusters' are: four
    of five lie in their 80 % intervals, and so do nearly all that were left alone."""
    random = np.random.default_rng(19)
    changed: list[bool] = []
    alone: list[bool] = []
    names = [parameter.name for parameter in parameters_of("time")]
    for _ in range(4):
        chosen = random.choice(len(names), 3, replace=False)
        logs = random.normal(0.0, shipped_prior("time").spreads[chosen])
        truth = {names[at]: float(np.exp(log)) for at, log in zip(chosen, logs, strict=True)}
        for name, factor in learnt(truth).items():
            (changed if name in truth else alone).append(
                factor.low <= truth.get(name, 1.0) <= factor.high
            )
    assert len(changed) >= 4
    assert 0.7 <= np.mean(changed) <= 1.0
    assert np.mean(alone) >= 0.85


def test_the_error_falls_to_a_fifth(fit: FigureFit) -> None:
    assert error(fit.before) > 0.06
    assert error(fit.after) < 0.2 * error(fit.before)
    assert error(fit.left_out) < 0.4 * error(fit.before)
    assert not fit.is_refused


def test_a_single_run_helps_the_others() -> None:
    measured = runs.predictions({"gemm_rate": 0.8})
    learnt = fitted(measured[:1], "time")
    assert 0.0 < error(learnt.after) < 0.8 * error(learnt.before)
    assert len(learnt.left_out) == 0
    assert learnt_spread(learnt) > learnt_spread(fitted(measured, "time"))


def test_a_single_run_narrows_no_bar_and_a_far_one_widens_them() -> None:
    near, far = (calibrated(runs.predictions({"gemm_rate": rate}, [{}])) for rate in (1.0, 0.3))
    assert near.width == 1.0
    assert 1.2 < far.width < 3.0


def test_more_runs_that_agree_narrow_bars() -> None:
    measured = runs.predictions({"gemm_rate": 0.8})
    widths = [calibrated(measured[:count]).width for count in (1, 2, len(measured))]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] >= 1.0
    assert widths[-1] < 0.6


def calibrated(measured: Sequence[Prediction]) -> LearntFigure:
    found = calibration_of([fitted(measured, "time")], ["x"]).time
    assert found is not None
    return found


def learnt_spread(fit: FigureFit) -> float:
    found = calibration_of([fit], ["x"]).time
    assert found is not None
    return found.spread


def test_runs_as_predicted_change_nothing() -> None:
    found = fitted(runs.predictions({}), "time")
    assert np.abs(found.posterior.mean).max() < 1e-6
    assert error(found.after) < 1e-9


def test_one_odd_run_hardly_counts() -> None:
    measured = runs.predictions({})
    measured[3] = telling(measured[3], step_time_s=3.0 * seconds_of(measured[3]))
    found = fitted(measured, "time")
    assert [run.row.cells["tp"] for run in found.odd] == ["8"]
    assert np.delete(np.abs(found.after), 3).mean() < 0.03


def test_a_calibrated_cluster_costs_what_was_learnt() -> None:
    """Each tensor degree is off by its own share, which no factor says: what the file predicts of
    the runs is what the fit expects, and of the slowest degree more than of the others."""
    off = {"1": 0.97, "2": 1.0, "4": 0.9, "8": 1.15, "16": 1.0}
    measured = [
        telling(one, step_time_s=off[one.row.cells["tp"]] * seconds_of(one))
        for one in runs.predictions({})
    ]
    found = fitted(measured, "time")
    calibration = calibration_of([found], ["x"])
    costed = []
    for one in measured:
        cluster = one.job.cluster.model_copy(update={"calibration": calibration})
        job = replace(one.job, cluster=cluster)
        costed.append(replace(one, mapped=replace(one.configured, job=job)))
    logs = np.array([measured_log(one, "time") for one in measured])
    logs -= [np.log(one.step_time_s or np.nan) for one in cost_predictions(costed)]
    assert logs == pytest.approx(found.after, abs=0.005)
    expected = found.before - found.after
    assert expected[3] - expected[[0, 1, 2]].max() > 0.02


def test_what_no_run_depends_on_is_not_determined(fit: FigureFit) -> None:
    names = {factor.name for factor in calibration_of([fit], ["x"]).factors if factor.determined}
    assert not names & {"grouped_rate", "expert_exposed", "context_exposed"}


def test_noise_that_no_parameter_explains_is_refused() -> None:
    """Runs that scatter at random, each judged by the others, get no better."""
    random = np.random.default_rng(7)
    noisy = [
        telling(one, step_time_s=seconds_of(one) * float(np.exp(random.normal(0.0, 0.3))))
        for one in runs.predictions({})
    ]
    assert fitted(noisy, "time").is_refused


def test_memory_overheads() -> None:
    """Fragmentation three times the profile's is found from reserved memory."""
    changes = [{**one, "mem_kind": "reserved"} for one in runs.VARIANTS]
    found = fitted(runs.predictions({"fragmentation": 2.0}, changes), "memory")
    calibration = calibration_of([found], ["x"])
    [factor] = [factor for factor in calibration.factors if factor.name == "fragmentation"]
    assert error(found.after) < 0.5 * error(found.before)
    assert factor.low <= 2.0 <= factor.high


def test_runs_on_two_gpus_are_refused() -> None:
    other = runs.predictions({}, [{"gpu": "A100-80GB"}])
    with pytest.raises(UsageError, match=r"A100.* and H100.*a command of their own"):
        calibrate([*runs.predictions({}, [{}]), *other], ["a.csv"])


def test_nothing_to_learn_from() -> None:
    [one] = runs.predictions({}, [{}])
    for found in ([telling(one, step_time_s="", peak_mem_gib="")], []):
        with pytest.raises(CannotTellError, match="step_time_s and peak_mem_gib"):
            calibrate(found, ["a.csv"])


def test_every_parameter_names_fields_of_the_core() -> None:
    fields = {
        "gpu": GpuInputs._fields,
        "framework": FrameworkInputs._fields,
        "links": LinkInputs._fields,
    }
    for parameter in PARAMETERS:
        for table, names_of in fields.items():
            assert set(getattr(parameter, table)) <= set(names_of), parameter.name
        assert set(parameter.inverse) <= set(FrameworkInputs._fields)
    names = [parameter.name for parameter in PARAMETERS]
    assert len(set(names)) == len(names)
    for figure in ("time", "memory"):
        assert len(shipped_prior(figure).spreads) == len(parameters_of(figure))


# --- the posterior ------------------------------------------------------------------------------


def test_posterior_of_one_parameter_is_the_textbook_one() -> None:
    """With equal weights, the mean of n runs shrinks by n·τ²/(n·τ² + s²)."""
    residuals = np.full(200, 0.1) + np.random.default_rng(1).normal(0.0, 0.01, 200)
    found = best_posterior(
        np.ones((200, 1)), residuals, Prior(np.array([0.2]), 0.01), np.zeros((200, 200))
    )
    assert found.mean[0] == pytest.approx(0.1, abs=0.002)
    assert np.sqrt(found.covariance[0, 0]) < 0.002


def test_a_parameter_without_slope_keeps_its_prior() -> None:
    slopes = np.column_stack([np.ones(5), np.zeros(5)])
    found = solve(slopes, np.full(5, 0.1), Prior(np.array([0.2, 0.3]), 0.05), np.zeros((5, 5)))
    assert found.mean[1] == 0.0
    assert np.sqrt(found.covariance[1, 1]) == pytest.approx(0.3)


def test_intervals_of_drawn_parameters_cover() -> None:
    """Parameters drawn from the prior lie in their 80 % intervals about that often."""
    random = np.random.default_rng(5)
    prior, inside = Prior(np.array([0.1, 0.3, 0.2]), 0.05), []
    for _ in range(300):
        truth = random.normal(0.0, prior.spreads)
        slopes = random.uniform(0.0, 1.0, (6, 3))
        values = slopes @ truth + random.normal(0.0, 0.05, 6)
        found = explain(slopes, values, prior, np.zeros((6, 6)))
        deviations = np.sqrt(np.diag(found.covariance))
        inside.append(np.abs(found.mean - truth) <= 1.2816 * deviations)
    assert 0.75 <= np.mean(inside) <= 0.97


@pytest.mark.parametrize(
    ("before", "left_out", "low", "high"),
    [
        ([0.1], [0.1], 1.0, 1.0),  # nothing judges a single run
        ([0.1] * 8, [0.01] * 8, 1.0, 1.0),  # every error falls
        ([0.1, -0.1] * 4, [0.11, -0.11] * 4, 0.0, 0.0),  # every error grows
        ([0.1, -0.1] * 4, [0.04, -0.14] * 4, 0.4, 0.9),  # half of them fall
        ([0.05] * 3, [0.06] * 3, 0.1, 0.3),  # three runs are few
        ([0.05] * 20, [0.06] * 20, 0.0, 0.0),  # twenty are not
        ([0.01] * 8 + [0.2], [0.009] * 8 + [0.15], 0.4, 0.5),  # most are off as repeats are
        ([0.01] * 8 + [0.2], [0.001] * 9, 1.0, 1.0),  # no repeats agree so well
        ([0.0] * 8, [0.0] * 8, 0.2, 0.3),  # nothing to correct is nothing refused
    ],
)
def test_how_much_of_a_calibration_is_taken(
    before: list[float], left_out: list[float], low: float, high: float
) -> None:
    assert low <= trust(np.array(before), np.array(left_out)) <= high


def test_the_share_taken_is_of_all_that_was_learnt() -> None:
    before = np.array([0.1, 0.2, 0.15])
    whole = best_posterior(np.ones((3, 1)), before, Prior(np.array([0.2]), 0.05), 0.01 * np.eye(3))
    half = whole.shrunk(0.5, before)
    assert half.mean == pytest.approx(0.5 * whole.mean)
    assert half.pull == pytest.approx(0.5 * whole.pull)
    assert half.left_out == pytest.approx(0.5 * (before + whole.left_out))
    assert np.abs(half.left_out).sum() > np.abs(whole.left_out).sum()


def test_runs_that_agree_half_move_factors_less() -> None:
    """The same slow GPU, told by runs of which every second contradicts."""
    sure = runs.predictions({"gemm_rate": 0.85})
    fits = [fitted(sure, "time"), fitted(doubtful(sure), "time")]
    assert fits[0].share == 1.0
    assert 0.0 < fits[1].share < 0.5
    at = [parameter.name for parameter in parameters_of("time")].index("gemm_rate")
    assert fits[0].posterior.mean[at] < 2.0 * fits[1].posterior.mean[at] < 0.0


def doubtful(measured: Sequence[Prediction]) -> list[Prediction]:
    """Every second run a fifth faster than it was."""
    return [
        one if index % 2 else telling(one, step_time_s=0.8 * seconds_of(one))
        for index, one in enumerate(measured)
    ]


def test_left_out_judges_a_run_by_the_others() -> None:
    """The closed form is what the others, with their noise, expect of each."""
    slopes, residuals = np.ones((3, 1)), np.array([0.1, 0.1, -0.4])
    found = solve(slopes, residuals, Prior(np.array([0.2]), 0.05), np.zeros((3, 3)))
    covariance = 0.04 * slopes @ slopes.T + found.noise**2 * np.diag(1.0 / found.weights)
    expected = covariance[2, :2] @ np.linalg.solve(covariance[:2, :2], residuals[:2])
    assert found.left_out[2] == pytest.approx(-0.4 - expected)
    assert found.weights[2] < 0.5 * found.weights[0]
