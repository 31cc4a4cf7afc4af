"""A measurement beside the prediction: what disagrees, and what could explain it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.job.errors import UsageError
from planner.launch.check.assess import Assessment, assess
from planner.launch.check.measured import (
    Findings,
    Measured,
    MeasuredComparison,
    explain_gap,
    findings_of,
)
from planner.launch.check.request import as_request
from planner.launch.read.found import Found
from planner.launch.read.launch import read_launch
from planner.predict.plan import Plan
from tests.launch.check.conftest import OVERLAPPED, SMALL, script


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """A small launch with tensor parallelism over two nodes."""
    path = tmp_path_factory.mktemp("measured") / "a.sh"
    text = f"{SMALL} {OVERLAPPED} --tensor-model-parallel-size 4 --sequence-parallel"
    path.write_text(script(text))
    return read_launch([path])


@pytest.fixture(scope="module")
def assessment(found: Found) -> Assessment:
    """The launch with its prediction."""
    return assess(found, "16xH100")


def findings(assessment: Assessment, measured: Measured) -> Findings:
    """The comparison."""
    assert assessment.setup is not None
    assert assessment.job is not None
    assert assessment.plan is not None
    return findings_of(assessment.setup, assessment.job, assessment.plan, measured)


def plan_of(assessment: Assessment) -> Plan:
    """The prediction."""
    assert assessment.plan is not None
    return assessment.plan


def test_agreement_needs_no_explanation(assessment: Assessment) -> None:
    result = findings(assessment, Measured(step_time_s=plan_of(assessment).step_time_s))
    assert result.comparisons[0].agrees
    assert not result.explanations


def test_missing_recomputation_is_named(assessment: Assessment, found: Found) -> None:
    """A run that recomputes without its file saying so is recognised."""
    assert assessment.setup is not None
    assert assessment.job is not None
    slower = as_request(replace(found, recompute="full"), "16xH100").plan().step_time_s
    plan = plan_of(assessment)
    gap = MeasuredComparison("step time", slower, plan.step_time_s, plan.step_time)
    best = explain_gap(assessment.setup, assessment.job, plan, gap)[0]
    assert best.what == "full recomputation"
    assert best.predicted == pytest.approx(slower)
    assert best.near


def test_slow_kernels_are_named(assessment: Assessment) -> None:
    """Twice the step time: something is named, near or a part, and each closes some of the gap."""
    predicted = plan_of(assessment).step_time_s
    result = findings(assessment, Measured(step_time_s=2.0 * predicted))
    assert result.explanations
    for each in result.explanations:
        assert predicted < each.predicted < 3.0 * predicted
    gaps = [abs(each.predicted - 2.0 * predicted) for each in result.explanations]
    assert gaps == sorted(gaps)


def test_memory_beyond_the_interval(assessment: Assessment, found: Found) -> None:
    eager = as_request(replace(found, attention="eager"), "16xH100").plan()
    result = findings(assessment, Measured(memory_gib=eager.peak_bytes / 2**30))
    assert not result.comparisons[0].agrees
    assert result.explanations[0].what.startswith("attention not fused")
    assert result.explanations[0].near


@pytest.mark.parametrize(
    ("factor", "convention"),
    [(0.5, "sparse"), (1.0, "")],
)
def test_sparse_peak_is_recognised_beside_a_step_time(
    assessment: Assessment, factor: float, convention: str
) -> None:
    """An MFU against the 2:1 sparse peak is half of this program's."""
    plan = plan_of(assessment)
    result = findings(assessment, Measured(step_time_s=plan.step_time_s, mfu=plan.mfu * factor))
    text = " ".join(result.verdicts)
    assert convention in text
    assert bool(text) == (factor != 1.0)


def test_causal_convention_is_recognised(assessment: Assessment) -> None:
    plan = plan_of(assessment)
    result = findings(assessment, Measured(step_time_s=plan.step_time_s, mfu=plan.mfu_causal))
    assert "causal attention and dense" in " ".join(result.verdicts)


def test_unusual_mfu_is_said(assessment: Assessment) -> None:
    plan = plan_of(assessment)
    result = findings(assessment, Measured(step_time_s=plan.step_time_s, mfu=plan.mfu * 0.77))
    assert "no usual way" in " ".join(result.verdicts)


def test_without_a_step_time_the_verdict_is_conditional(assessment: Assessment) -> None:
    result = findings(assessment, Measured(mfu=plan_of(assessment).mfu / 2.0))
    text = " ".join(result.verdicts)
    assert "only if counted" in text
    assert "--measured-step-time" in text


@pytest.mark.parametrize("wrong", [{"step_time_s": 0.0}, {"mfu": -0.1}, {"mfu": 1.2}])
def test_measurements_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="--measured"):
        Measured(**wrong)
