"""A trace's terms tell parameters apart that one step time leaves together."""

from __future__ import annotations

import numpy as np
import pytest

from hardware.calibration import parameters_of
from planner.cost import fields as f
from planner.evidence.learn.calibrate import calibration_of, fit_figure
from planner.evidence.learn.inputs import Traced, traced_equations
from planner.evidence.learn.linear import LearningModel
from planner.evidence.runs.predict import cost_predictions
from tests.evidence.learn import runs

TRUE = {"gemm_rate": 0.9, "inside_rate": 0.6}


@pytest.fixture(scope="module")
def traced() -> list[Traced]:
    """Two runs whose traces show the terms of the true machine."""
    plain = runs.predictions(TRUE, [{"tp": "2", "mbs": "2"}, {"tp": "4", "mbs": "4"}])
    found = []
    for one, true in zip(
        plain, cost_predictions(plain, lambda job: LearningModel(job, TRUE)), strict=True
    ):
        step = true.step
        compute = step[f.STEP_COMPUTE] + step[f.STEP_RECOMPUTE] - step[f.STEP_ISSUE]
        seconds = {"compute": compute, "exposed communication": step[f.STEP_EXPOSED].sum()}
        found.append(Traced(one, {name: float(value) for name, value in seconds.items()}))
    return found


def test_an_equation_for_each_term(traced: list[Traced]) -> None:
    found = traced_equations(traced)
    assert len(found.residuals) == 4
    compute, exposed = found.slopes[:2], found.slopes[2:]
    names = [parameter.name for parameter in parameters_of("time")]
    gemm, inside = names.index("gemm_rate"), names.index("inside_rate")
    assert (compute[:, gemm] < -0.5).all()
    assert (np.abs(compute[:, inside]) < 0.05).all()
    assert (exposed[:, inside] < -0.5).all()


def test_terms_determine_what_steps_do_not(traced: list[Traced]) -> None:
    predictions = [one.prediction for one in traced]
    alone = fit_figure(predictions, "time")
    both = fit_figure(predictions, "time", traced_equations(traced))
    widths = [
        {factor.name: factor.high / factor.low for factor in calibration_of([fit], ["x"]).factors}
        for fit in (alone, both)
    ]
    for name in TRUE:
        assert widths[1][name] < widths[0][name], name
    learnt = {factor.name: factor for factor in calibration_of([both], ["x"]).factors}
    for name, value in TRUE.items():
        assert learnt[name].low <= value <= learnt[name].high, name


def test_terms_that_hardly_count_make_no_equation(traced: list[Traced]) -> None:
    one = Traced(traced[0].prediction, {"optimizer": 1.0})
    assert len(traced_equations([one]).residuals) == 0
    assert len(traced_equations([]).residuals) == 0
