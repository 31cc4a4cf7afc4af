"""A measurement beside the prediction: what disagrees, and what could explain it."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import NamedTuple

import pytest

from planner.job.errors import UsageError
from planner.job.request import Request
from planner.launch.check.assess import Assessment, assess
from planner.launch.check.request import as_request
from planner.launch.read.found import Found
from planner.launch.read.launch import read_launch
from planner.predict.diagnosis.findings import (
    CostedCause,
    Findings,
    GapExplanation,
    costed_causes,
    explain_gap,
    findings_of,
)
from planner.predict.diagnosis.measured import (
    Measured,
    MeasuredComparison,
    comparisons,
)
from planner.predict.evaluate import Proposal
from planner.predict.plan import Degrees, Plan
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
    assert assessment.proposal is not None
    assert assessment.job is not None
    assert assessment.plan is not None
    return findings_of(assessment.proposal, assessment.job, assessment.plan, measured)


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
    assert assessment.proposal is not None
    assert assessment.job is not None
    slower = as_request(replace(found, recompute="full"), "16xH100").plan().step_time_s
    plan = plan_of(assessment)
    gap = MeasuredComparison("step time", slower, plan.step_time_s, plan.step_time)
    best = explain_gap(assessment.proposal, plan, gap)[0]
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
    *ranked, last = result.explanations
    gaps = [abs(log(each.predicted / (2.0 * predicted))) for each in ranked]
    assert gaps == sorted(gaps)
    assert last.any_gap
    assert not any(each.any_gap for each in ranked)


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
    assert "no usual convention" in " ".join(result.verdicts)


def test_without_a_step_time_the_verdict_is_conditional(assessment: Assessment) -> None:
    result = findings(assessment, Measured(mfu=plan_of(assessment).mfu / 2.0))
    text = " ".join(result.verdicts)
    assert "only if counted" in text
    assert "--measured-step-time" in text


@pytest.mark.parametrize("wrong", [{"step_time_s": 0.0}, {"mfu": -0.1}, {"mfu": 1.2}])
def test_measurements_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="--measured"):
        Measured(**wrong)


class Diagnosed(NamedTuple):
    """A configuration, its plan, and the causes of a slower step, costed."""

    proposal: Proposal
    plan: Plan
    costed: tuple[CostedCause, ...]

    def explain(self, seconds: float) -> tuple[GapExplanation, ...]:
        """What explains a step of so many seconds."""
        plan = self.plan
        gap = MeasuredComparison("step time", seconds, plan.step_time_s, plan.step_time)
        return explain_gap(self.proposal, plan, gap, self.costed)


def diagnosed(proposal: Proposal) -> Diagnosed:
    """The causes of a configuration, costed once."""
    return Diagnosed(proposal, proposal.plan(), costed_causes(proposal, "slower"))


@pytest.fixture(scope="module")
def mixture() -> Diagnosed:
    """A mixture of experts over several nodes."""
    request = Request(model="qwen3-30b-a3b", gpus="32xH100", gbs=256, seq=4096)
    return diagnosed(Proposal(request, Degrees(ep=8, dp=32, zero=1, mbs=1, grad_acc=8)))


@pytest.fixture(scope="module")
def sharded() -> Diagnosed:
    """A dense model whose weights cross nodes."""
    request = Request(model="8b", gpus="16xH100", gbs=64, framework="hf-fsdp2")
    return diagnosed(Proposal(request, Degrees(dp=16, zero=3, mbs=1, grad_acc=4)))


@pytest.mark.parametrize("ratio", [1.05, 1.2, 1.6, 3.0, 8.0, 30.0])
def test_a_slow_step_always_has_ranked_causes(mixture: Diagnosed, ratio: float) -> None:
    """Within the interval or far beyond it: causes that the model costs, each with a test."""
    *ranked, last = mixture.explain(ratio * mixture.plan.step_time_s)
    assert ranked
    assert last.any_gap
    for each in (*ranked, last):
        assert each.test
        assert each.effect > 0.0


@pytest.mark.parametrize("name", ["mixture", "sharded"])
def test_each_cause_is_found_where_it_is_the_cause(
    name: str, request: pytest.FixtureRequest
) -> None:
    """What the model predicts with one thing changed is explained by a thing of that kind, for
    every cause and strength that changes the step at all."""
    run: Diagnosed = request.getfixturevalue(name)
    found = 0
    for cause, plans in run.costed:
        for hypothesis, changed in plans:
            if changed.step_time_s < 1.05 * run.plan.step_time_s:
                continue
            named = [one for one in run.explain(changed.step_time_s) if one.near]
            assert cause.kind in {kind for one in named for kind in one.kinds}, hypothesis.words
            found += 1
    assert found >= 15


@pytest.mark.parametrize("name", ["mixture", "sharded"])
@pytest.mark.parametrize("ratio", [3.0, 5.0, 8.0])
def test_a_step_several_times_too_slow_over_nodes_may_be_the_network(
    name: str, ratio: float, request: pytest.FixtureRequest
) -> None:
    run: Diagnosed = request.getfixturevalue(name)
    first = run.explain(ratio * run.plan.step_time_s)[:3]
    assert "network" in {kind for one in first for kind in one.kinds}


def test_agreement_leaves_the_losses_of_the_step(mixture: Diagnosed) -> None:
    plan = mixture.plan
    result = findings_of(
        mixture.proposal, mixture.proposal.request.resolve(), plan, Measured(mfu=plan.mfu)
    )
    assert not result.explanations
    shares = [loss.share for loss in result.losses]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1.0 - plan.mfu, abs=0.1)


def test_tokens_per_second_are_a_step_time(mixture: Diagnosed) -> None:
    plan = mixture.plan
    rate = Measured(tokens_per_s=plan.tokens_per_s / 2.0)
    assert next(comparisons(plan, rate)).measured == pytest.approx(2.0 * plan.step_time_s)
    with pytest.raises(UsageError, match="not both"):
        Measured(step_time_s=1.0, tokens_per_s=1.0)
